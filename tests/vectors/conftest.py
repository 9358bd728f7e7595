import pytest

from weft import _core
from weft.backends.cpu import levels_present


@pytest.fixture(params=levels_present())
def level(request):
    """Each instruction-set level of the machine in turn."""
    import weft.vectors.distance  # noqa: F401  importing it chooses a level

    _core.vectors.set_level(request.param)
    yield request.param
    _core.vectors.set_level("")
