"""What the tests of GPUs share: the device, or one line that says why they are skipped."""

import os
from pathlib import Path

import numpy as np
import pytest

GOLDEN = Path(__file__).parents[2] / "golden"
ALL = os.environ.get("WEFT_TEST_GPU", "0") not in ("", "0")  # make test-gpu: every sample, not a few


def backend_or_skip():
    """The first GPU, which may be a software device."""
    from weft.backends.webgpu import GpuBackend
    from weft.errors import BackendError, NotFoundError

    try:
        return GpuBackend()
    except (BackendError, NotFoundError) as error:
        pytest.skip(f"no GPU here: {error}")


def agree(gpu, one, other):
    """Whether two sets of products agree. The contract is about one set on one device; the software device computes
    what the shaders say, in all of them, and a real driver may contract or reorder in some."""
    if gpu.device.adapter.software:
        return np.array_equal(one, other)
    return np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)
