"""A session opens the GPU once; skipped with one line where there is none."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "pictures")]


@pytest.fixture(scope="session")
def gpu():
    from gpus import backend_or_skip

    return backend_or_skip()
