"""Outputs that are written to given arrays, which may be the inputs that something is added to."""

import numpy as np
import pytest

from weft import ops
from weft.backends.cpu import CpuBackend
from weft.errors import InputError
from weft.graph import T, Trace
from weft.graph.plan import plan
from weft.ops.training import weight_grad


def made(backend: CpuBackend) -> object:
    with Trace("sums") as trace:
        grad, x = trace.input("grad", (T, 130)), trace.input("x", (T, 129))
        into = trace.input("into", (130, 129))
        trace.output("sum", weight_grad(grad, x, trace.input("segments", (3,), "i32"), into))
        trace.output("twice", ops.scale(x, by=2.0))
    return backend.compile(plan(trace.program()), {}, {})


def test_a_sum_is_written_over_what_it_is_added_to() -> None:
    executable, rng = made(CpuBackend(threads=2)), np.random.default_rng(3)
    given = {
        name: rng.normal(size=size).astype(np.float32)
        for name, size in (("grad", (40, 130)), ("x", (40, 129)), ("into", (130, 129)))
    }
    given["segments"] = np.int32([0, 17, 40])
    wanted = executable.run(given)
    into = given["into"].copy()
    found = executable.run_into(given | {"into": into}, {"sum": into})
    assert found["sum"] is into and all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert not np.array_equal(into, given["into"])
    with pytest.raises(InputError, match="the memory for sum has another shape"):
        executable.run_into(given, {"sum": into[:129]})
