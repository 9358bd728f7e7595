"""Rotations share one table of cosines and sines, and keys are turned on their way into the state; the bits stay."""

from collections import Counter

import numpy as np
import pytest

from weft.backends import backends_present
from weft.backends.reference import ReferenceBackend
from weft.graph import B, Program, T, Trace
from weft.graph.passes import decompose, fuse_rope
from weft.graph.plan import plan
from weft.graph.verify import verify
from weft.ops import add, attention_paged, kv_write, rope
from weft.ops.samples import normal, paged
from weft.ops.tolerance import relative_error

HEADS, GROUPS, DIM = 4, 2, 16


def attending(kind: str = "plain", dtype: str = "f32") -> Program:
    """Two layers of attention over states; `kind` says what is unusual in the second."""
    with Trace("attending") as trace:
        q = trace.input("q", (T, HEADS, DIM))
        k, v = trace.input("k", (T, GROUPS, DIM)), trace.input("v", (T, GROUPS, DIM))
        positions, segments = trace.input("positions", (T,), "i32"), trace.input("segments", (B + 1,), "i32")
        pages, inv_freq = trace.input("pages", (B, 5), "i32"), trace.weight("inv_freq", (6,))
        total = None
        for layer in range(2):
            odd = kind if layer else "plain"
            state = trace.kv(f"kv.{layer}", (GROUPS, DIM), dtype)
            query = rope(q, positions, inv_freq, interleaved=odd == "apart")
            early = rope(q, positions, inv_freq, scale=2.0) if odd == "scaled" else query
            key = k if odd == "still" else rope(k, positions, inv_freq)
            seen = add(query, query) if odd == "read before" else None
            kv_write(key, v, state, positions, segments, pages)
            out = attention_paged(early, state, positions, segments, pages, scale=0.25)
            out = out if seen is None else add(out, seen)
            out = add(out, query) if odd == "read after" else out
            total = out if total is None else add(total, out)
            if odd == "read keys":
                trace.output("keys", key)
        trace.output("y", total)
    return trace.program()


def ops_of(program: Program) -> Counter:
    return Counter(instr.op for instr in program.body if instr.op != "add")


def ran(program: Program, backend: object, dtype: str = "f32") -> dict[str, np.ndarray]:
    """The outputs, and what the states hold afterwards."""
    rng = np.random.default_rng(7)
    lengths, wide = [33, 5, 1], {"q": HEADS, "k": GROUPS, "v": GROUPS}
    (first, positions, segments, pages), (second, *_) = (
        paged(np.random.default_rng(seed), [3, 0, 64], lengths, GROUPS, DIM, dtype) for seed in (0, 0)
    )
    table = np.zeros((3, 5), np.int32)
    table[:, : pages.shape[1]] = pages
    inputs = {"positions": positions, "segments": segments, "pages": table}
    inputs |= {name: normal(rng, sum(lengths), heads, DIM) for name, heads in wide.items()}
    weights = {"inv_freq": (10.0 ** -np.arange(6)).astype(np.float32)}
    states = {f"kv.{layer}": backend.state_from(state) for layer, state in enumerate((first, second))}
    got = backend.compile(plan(program), weights, states).run(inputs)
    kept = {f"{name} {i}": a for name in states for i, a in enumerate(backend.state_to_array(states[name]).arrays)}
    return {**got, **kept}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i8", "i8r", "i4r"])
@pytest.mark.parametrize("backend", [b for b in backends_present() if "cpu" in repr(b)], ids=repr)
def test_the_fused_step_has_the_bits_of_the_ops_it_replaces(backend, dtype):
    program = attending(dtype=dtype)
    fused = fuse_rope(program)
    verify(fused)
    assert ops_of(fused) == Counter(rope_table=1, rope_write=2, attention_paged=2)
    before, now = ran(program, backend, dtype), ran(fused, backend, dtype)
    assert before.keys() == now.keys()
    for name in before:
        np.testing.assert_array_equal(now[name], before[name], err_msg=name)


@pytest.mark.parametrize(
    "kind, ops",
    [
        ("still", {"rope_table": 1, "rope_write": 1, "rope_turn": 1, "kv_write": 1}),
        ("apart", {"rope_table": 1, "rope_write": 1, "rope_turn": 2, "kv_write": 1}),
        ("scaled", {"rope_table": 2, "rope_write": 1, "rope_turn": 3, "kv_write": 1}),
        ("read keys", {"rope_table": 1, "rope_write": 1, "rope_turn": 2, "kv_write": 1}),
        ("read before", {"rope_table": 1, "rope_write": 1, "rope_turn": 2, "kv_write": 1}),
        ("read after", {"rope_table": 1, "rope_write": 2}),
    ],
)
def test_only_queries_and_keys_that_turn_alike_and_for_the_state_are_fused(kind, ops):
    program = attending(kind)
    fused = fuse_rope(program)
    verify(fused)
    assert ops_of(fused) == Counter(attention_paged=2, **ops)
    before, now = ran(program, ReferenceBackend()), ran(fused, ReferenceBackend())
    assert max(relative_error(now[name], before[name]) for name in before) < 1e-6, "the table is rounded to float32"


def test_a_backend_without_the_fused_op_turns_and_writes_apart():
    fused = fuse_rope(attending())
    after = decompose(fused, lambda op, dtypes: op != "rope_write")
    verify(after)
    assert ops_of(after) == Counter(rope_table=1, rope_turn=4, kv_write=2, attention_paged=2)
    want, got = ran(fused, ReferenceBackend()), ran(after, ReferenceBackend())
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
