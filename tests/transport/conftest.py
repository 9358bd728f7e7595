"""Tests of transport that ask for `level` run at every level of the machine."""

from collections.abc import Iterator

import pytest

from weft import _core
from weft.backends.cpu import levels_present


@pytest.fixture(params=levels_present())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """A level that the passes run at."""
    import weft.transport.costs  # noqa: F401  sets the level of the process when it is imported

    _core.transport.set_level(request.param)
    yield request.param
    _core.transport.set_level("")
