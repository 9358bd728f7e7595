"""No plan lets two live buffers overlap, for any sizes; memory is reused and aligned."""

import numpy as np
import pytest

from weft.backends import backends_present
from weft.backends.reference import ReferenceBackend
from weft.graph import B, L, Program, T, Tensor, Trace
from weft.graph.plan import ALIGN, arena, offsets, peak_bytes, plan
from weft.graph.program import Instr
from weft.ops import activate, add, add_rms_norm, gated, matmul, pool, quantise_rows, rms_norm, take_rows
from weft.ops.samples import integers
from weft.ops.tolerance import relative_error


def random_program(seed: int) -> Program:
    """A random graph of forty ops over tensors of T, B and L rows and several widths, some of them reshaped."""
    rng = np.random.default_rng(seed)
    trace = Trace(f"random{seed}")
    alive = [trace.input("x", (T, 64))]
    for _ in range(40):
        flat = [tensor for tensor in alive if len(tensor.shape) == 2]
        x = flat[rng.integers(len(flat))]
        twins = [tensor for tensor in flat if tensor.shape == x.shape]
        alive += random_op(trace, rng, x, twins[rng.integers(len(twins))])
        if rng.random() < 0.3 and len(alive) > 3:
            alive.pop(rng.integers(1, len(alive)))
    trace.output("out", next(tensor for tensor in reversed(alive) if len(tensor.shape) == 2))
    return trace.program()


def random_op(trace: Trace, rng: np.random.Generator, x: Tensor, twin: Tensor) -> list[Tensor]:
    rows, width = x.shape
    norm = trace.weight(f"norm{width}", (width,))
    choice = rng.integers(9)
    if choice == 0:
        return [add(x, twin)]
    if choice == 1:
        return [gated(x, twin, kind="silu")]
    if choice == 2:
        return [activate(x, kind="relu")]
    if choice == 3:
        return [rms_norm(x, norm, eps=1e-5)]
    if choice == 4:
        return list(add_rms_norm(x, twin, norm, eps=1e-5))
    if choice == 5 and width % 2 == 0:
        return [x.reshape(rows, 2, -1), x.reshape(2 * rows, width // 2)]
    if choice == 6 and rows == T:
        return [take_rows(x, trace.input("rows", (L,), "i32"))]
    if choice == 7 and rows == T:
        return [pool(x, trace.input("segments", (B + 1,), "i32"), mode="mean")]
    n = int(rng.choice([16, 33, 64, 256]))
    return [matmul(x, trace.weight(f"w{width}.{n}", (n, width)))]


def check_memory(program: Program, **sizes: int) -> None:
    """Play the program on the arena, each 64-byte line remembering the value it holds."""
    table, starts = program.table, offsets(program, **sizes)
    lines = np.full(arena(program).at(**sizes) // ALIGN + 1, -1)
    identity: dict[str, int] = {}

    def place(name: str) -> slice:
        start = starts[table[name].slot]
        assert start % ALIGN == 0
        return slice(start // ALIGN, -(-(start + table[name].spec.at(**sizes).nbytes) // ALIGN))

    for number, instr in enumerate(program.body):
        read = [name for name in instr.operands if table[name].kind == "buffer"]
        for name in read:
            assert (lines[place(name)] == identity[name]).all(), f"{name} was overwritten before {number} {instr.op}"
        for name in instr.outputs:
            if table[name].kind != "buffer":
                continue
            if instr.op == "reshape":
                identity[name] = identity[read[0]]
                continue
            check_overlap(program, instr, name, place)
            identity[name] = 1000 * number + instr.outputs.index(name)
            lines[place(name)] = identity[name]
        for name in instr.outputs:  # two results of one op do not overlap either
            assert table[name].kind != "buffer" or (lines[place(name)] == identity[name]).all()


def check_overlap(program: Program, instr: Instr, result: str, place) -> None:
    table = program.table
    allowed = instr.meaning.in_place[0] if instr.meaning.in_place and instr.outputs[0] == result else ()
    here = place(result)
    for index, name in enumerate(instr.inputs):
        if name is None or table[name].kind != "buffer":
            continue
        there = place(name)
        if here.start < there.stop and there.start < here.stop:
            assert index in allowed and here == there and table[name].spec == table[result].spec


@pytest.mark.parametrize("seed", range(60))
def test_no_live_buffers_overlap(seed):
    program = plan(random_program(seed))
    rng = np.random.default_rng(seed)
    for _ in range(5):
        check_memory(program, T=int(rng.integers(1, 300)), B=int(rng.integers(1, 20)), L=int(rng.integers(1, 40)))


@pytest.mark.parametrize("backend", backends_present()[1:], ids=repr)
def test_random_plans_compute_the_same_on_every_backend(backend):
    """In a real arena, where a buffer that was overwritten too early would show."""
    for seed in range(30):
        program = plan(random_program(seed))
        rng = np.random.default_rng(seed)
        weights = {v.name: rng.standard_normal(v.shape).astype(np.float32) / 8 for v in program.weights}
        given = {
            "x": rng.standard_normal((9, 64)).astype(np.float32),
            "rows": integers([8, 0, 3]),
            "segments": integers([0, 4, 9]),
        }
        inputs = {value.name: given[value.name] for value in program.inputs}
        want, got = (b.compile(program, weights, {}).run(inputs)["out"] for b in (ReferenceBackend(), backend))
        assert relative_error(got, want) < 1e-4, seed


def test_plans_reuse_memory():
    """Over the random programs, the arena is on average under half of what giving everyone a place would take."""
    ratios = []
    for seed in range(60):
        program = plan(random_program(seed))
        roots = [v for v in program.of_kind("buffer") if program.body[program.writer[v.name]].op != "reshape"]
        whole = sum(value.spec.at(T=100, B=4, L=4).nbytes for value in roots)
        ratios.append(peak_bytes(program, T=100, B=4, L=4) / max(whole, 1))
    assert np.mean(ratios) < 0.5


def test_a_chain_of_elementwise_ops_takes_one_slot():
    with Trace("chain") as trace:
        x = matmul(trace.input("x", (T, 64)), trace.weight("w", (64, 64)))
        for kind in ("gelu", "silu", "relu"):
            x = activate(x, kind=kind)
        trace.output("y", matmul(x, trace.weight("w", (64, 64))))
    program = plan(trace.program())
    assert len(program.slots) == 1
    assert peak_bytes(program, T=10) == 10 * 256


def test_a_buffer_with_a_later_reader_is_not_overwritten():
    with Trace("late") as trace:
        x = matmul(trace.input("x", (T, 64)), trace.weight("w", (64, 64)))
        y = activate(x, kind="gelu")
        trace.output("z", add(y, x))
    a, b = (value.slot for value in plan(trace.program()).of_kind("buffer"))
    assert a != b


def test_int8_rows_are_sized_in_blocks():
    with Trace("rows") as trace:
        rows = quantise_rows(trace.input("x", (T, 64)), block=32)
        trace.output("a", rows)
        trace.output(
            "y", pool(activate(trace.input("x", (T, 64)), kind="relu"), trace.input("s", (B + 1,), "i32"), mode="mean")
        )
    program = plan(trace.program())
    assert program.table["a"].spec.nbytes == 80 * T
    assert peak_bytes(program, T=7, B=3) == 7 * 256
