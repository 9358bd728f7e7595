"""The reference backend runs programs in float64, refuses what does not fit, and shows what is asked for."""

import numpy as np
import pytest

from weft.backends import backends_present
from weft.backends.reference import ReferenceBackend
from weft.errors import BackendError, FormatError, InputError
from weft.graph import T, Trace, named
from weft.graph.plan import plan
from weft.graph.program import Instr
from weft.ops import add, attention_paged, kv_write, matmul, scale
from weft.ops.packed import pack
from weft.ops.samples import paged
from weft.ops.state import KvArray

x = np.float32([[1, 1e-9], [2, 3], [5, 7]])
eye = np.eye(2, dtype=np.float32)


def traced():
    with Trace("small") as trace:
        h = named(matmul(trace.input("x", (T, 2)), trace.weight("w", (2, 2))), "product")
        trace.output("y", add(h, scale(h, by=-1.0)))
        trace.output("z", h)
    return plan(trace.program())


def test_is_always_present():
    assert backends_present()[0].name == "reference"
    assert all(backend.supports("rms_norm", []) for backend in backends_present())


def test_intermediates_stay_wide_unless_rounding_is_asked_for():
    with Trace("sum") as trace:
        a = trace.input("a", (1, 1))
        big = add(a, trace.input("b", (1, 1)))
        trace.output("y", add(big, scale(a, by=-1.0)))
    program = plan(trace.program())
    inputs = {"a": np.float32([[1e8]]), "b": np.float32([[1]])}
    assert ReferenceBackend().compile(program, {}, {}).run(inputs)["y"] == 1
    assert ReferenceBackend(wide=False).compile(program, {}, {}).run(inputs)["y"] == 0


def test_one_executable_serves_every_size():
    executable = ReferenceBackend().compile(traced(), {"w": eye}, {})
    for rows in (3, 1, 2):
        out = executable.run({"x": x[:rows]})
        np.testing.assert_array_equal(out["z"], x[:rows])
        np.testing.assert_array_equal(out["y"], 0 * x[:rows])


@pytest.mark.parametrize(
    "weights, complaint",
    [
        ({}, "weight w is missing"),
        ({"w": np.eye(3, dtype=np.float32)}, "the program needs f32"),
        ({"w": pack(eye, "f16")}, "is f16"),
    ],
)
def test_weights_must_fit(weights, complaint):
    with pytest.raises(BackendError, match=complaint):
        ReferenceBackend().compile(traced(), weights, {})


def test_inputs_must_fit():
    executable = ReferenceBackend().compile(traced(), {"w": eye}, {})
    with pytest.raises(InputError, match="x must be"):
        executable.run({"x": x[:, :1]})
    with pytest.raises(BackendError, match="x must be f32"):
        executable.run({"x": x.astype(np.int32)})


def test_a_broken_program_is_refused():
    program = traced()
    broken = type(program)(program.name, program.values, (*program.body, Instr("conv", (), ())), program.slots)
    with pytest.raises(FormatError, match="unknown op"):
        ReferenceBackend().compile(broken, {"w": eye}, {})


def state_program():
    with Trace("state") as trace:
        q, kv = trace.input("q", (T, 2, 4)), trace.kv("kv", (2, 4), "f16")
        table = [trace.input("positions", (T,), "i32"), trace.input("segments", (2,), "i32")]
        table.append(trace.input("pages", (1, 2), "i32"))
        kv_write(q, q, kv, *table)
        trace.output("y", attention_paged(q, kv, *table, scale=1.0))
    return plan(trace.program())


def test_states_change_in_place():
    rng = np.random.default_rng(0)
    state, positions, segments, pages = paged(rng, [0], [3], 2, 4, "f16")
    before = state.copy()
    q = rng.standard_normal((3, 2, 4)).astype(np.float32)
    executable = ReferenceBackend().compile(state_program(), {}, {"kv": state})
    executable.run({"q": q, "positions": positions, "segments": segments, "pages": pages})
    changed = np.any(state.key != before.key, axis=(1, 2))  # [pages, columns]
    assert changed[pages[0, 0], :3].all() and changed.sum() == 3


@pytest.mark.parametrize("states", [{}, {"kv": None}, {"kv": KvArray.zeros(1, 2, 5)}])
def test_states_must_fit(states):
    with pytest.raises(BackendError, match="kv kv"):
        ReferenceBackend().compile(state_program(), {}, states)


def test_watched_values_are_shown(monkeypatch, capsys):
    monkeypatch.setenv("WEFT_WATCH", "product,y")
    with Trace("watched") as trace:
        h = named(matmul(trace.input("x", (T, 2)), trace.weight("w", (2, 2))), "product")
        trace.output("y", scale(h, by=2.0))
    ReferenceBackend().compile(plan(trace.program()), {"w": eye}, {}).run({"x": np.float32([[3, 4]])})
    assert capsys.readouterr().err.splitlines() == ["product [1, 2] norm 5 [3, 4, …]", "y [1, 2] norm 10 [6, 8, …]"]
