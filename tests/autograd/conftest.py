"""Goldens of PyTorch: tests/golden/autograd/make_autograd.py."""

from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "autograd"


def golden(name):
    """Case -> name -> array."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        found = {}
        for key in file:
            case, _, part = key.partition("/")
            found.setdefault(case, {})[part] = file[key]
        return found


@pytest.fixture(scope="session")
def modules():
    return golden("modules")


@pytest.fixture(scope="session")
def training():
    return golden("training")
