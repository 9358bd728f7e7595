"""What the tests of GPUs share: the device, or one line that says why they are skipped."""

import os
from pathlib import Path

import numpy as np
import pytest

from weft.graph.single import single
from weft.ops.state import AdapterArray, KvArray, SlotArray
from weft.ops.tolerance import relative_error

GOLDEN = Path(__file__).parents[2] / "golden"
ASKED = os.environ.get("WEFT_TEST_GPU", "0")
ALL = ASKED not in ("", "0")  # make test-gpu: every sample, not a few
CUDA = ASKED == "cuda"


def backend_or_skip():
    """The first GPU, which may be a software device; through CUDA with WEFT_TEST_GPU=cuda."""
    from weft.backends.webgpu import GpuBackend
    from weft.backends.webgpu.cuda.backend import CudaBackend
    from weft.errors import BackendError, NotFoundError

    if CUDA:
        return CudaBackend()  # asked for by name: what is missing fails
    try:
        return GpuBackend()
    except (BackendError, NotFoundError) as error:
        pytest.skip(f"no GPU here: {error}")


webgpu_only = pytest.mark.skipif(CUDA, reason="about WebGPU's shaders of products, or its errors")


def agree(gpu, one, other):
    """Whether two sets of products agree. The contract is about one set on one device; the software device computes
    what the shaders say, in all of them, and a real driver may contract or reorder in some."""
    if gpu.device.adapter.software:
        return np.array_equal(one, other)
    return np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other)


def copied(operands):
    return tuple(value.copy() if isinstance(value, (KvArray, SlotArray)) else value for value in operands)


def ran(backend, op, operands, attrs):
    """An op with its own states: the program, what became of its states, and its results."""
    bound = single(op, copied(operands), attrs)
    states = {key: backend.state_from(state) for key, state in bound.states.items()}
    return bound, states, backend.compile(bound.program, bound.weights, states).run(bound.inputs)


def errors_of(backend, op, operands, attrs):
    """How far the results and the states of an op are from those of its reference."""
    expected = copied(operands)
    want = op(*expected, **attrs)
    want = () if want is None else want if isinstance(want, tuple) else (want,)
    bound, states, got = ran(backend, op, operands, attrs)
    errors = [relative_error(got[f"out{index}"], result) for index, result in enumerate(want)]
    for key, state in states.items():
        if isinstance(bound.states[key], AdapterArray):
            continue
        before = next(value for operand, value in zip(op.operands, expected) if operand.name == key)
        for kept, wanted in zip(backend.state_to_array(state).arrays, before.arrays):
            errors.append(relative_error(kept.reshape(wanted.shape), wanted))
    return errors
