"""A session opens the GPU once; skipped with one line where there is none."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def gpu():
    from gpus import backend_or_skip

    return backend_or_skip()
