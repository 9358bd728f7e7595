"""Stacks of matrices that are larger than the memory for them: which matrices stay, and that products are the same."""

import threading
from collections import OrderedDict

import numpy as np
import pytest
from soaking import times

from weft import ops
from weft._core import pack
from weft.backends.cpu import CpuBackend
from weft.errors import InputError, UnsupportedError, WeightError
from weft.graph import Trace
from weft.graph.plan import plan

COUNT, COLS, ROWS = 8, 32, 40  # 40 rows: the last panel of a matrix is half empty
MATRIX = 3 * 16 * COLS * 4  # bytes of a packed one


def values(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(COUNT, ROWS, COLS)).astype(np.float32)


def added(memory: pack.ExpertMemory, stack: np.ndarray) -> pack.Weight:
    data = [np.ascontiguousarray(matrix).reshape(-1).view(np.uint8) for matrix in stack]
    return memory.add("panels", "f32", ROWS, COLS, data, [None] * len(data))


def program(stacks: int) -> object:
    """y0 = x times stack 0, y1 = x times stack 1 and so on; the groups of each are an input."""
    with Trace("stacks") as trace:
        x = trace.input("x", (COUNT * 2, COLS))
        for i in range(stacks):
            weight = trace.weight(f"w{i}", (COUNT, ROWS, COLS))
            trace.output(f"y{i}", ops.matmul(x, weight, None, trace.input(f"starts{i}", (COUNT + 1,), "i32")))
    return plan(trace.program())


def starts_of(matrices: list[int]) -> np.ndarray:
    """Two rows for each of these; what is left of the rows goes to the first of them."""
    sizes = np.zeros(COUNT, np.int32)
    sizes[matrices] = 2
    sizes[matrices[0]] += 2 * COUNT - sizes.sum()
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)


class Lru:
    """What should be in memory: the oracle of one kind of matrix."""

    def __init__(self, slots: int) -> None:
        self.slots, self.kept, self.hits, self.misses = slots, OrderedDict(), 0, 0

    def want(self, stack: int, matrices: list[int]) -> None:
        for key in [(stack, m) for m in sorted(matrices)]:
            if key in self.kept:
                self.kept.move_to_end(key)
                self.hits += 1
        for key in [(stack, m) for m in sorted(matrices)]:
            if key not in self.kept:
                self.misses += 1
                self.kept[key] = True
        while len(self.kept) > self.slots:
            self.kept.popitem(last=False)


@pytest.mark.soak
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("slots", [8, 11, 19, 24])
def test_matrices_used_last_stay_and_products_are_the_same(threads: int, slots: int) -> None:
    backend, planned = CpuBackend(threads=threads), program(3)
    stacks = [values(seed) for seed in range(3)]
    memory = pack.ExpertMemory(slots * MATRIX, [])
    limited = backend.compile(planned, {f"w{i}": added(memory, stack) for i, stack in enumerate(stacks)}, {})
    whole = backend.compile(planned, {f"w{i}": stack for i, stack in enumerate(stacks)}, {})
    oracle, rng = Lru(slots), np.random.default_rng(slots)
    for _ in range(times(2000, 60)):
        inputs = {"x": rng.normal(size=(COUNT * 2, COLS)).astype(np.float32)}
        for i in range(3):
            chosen = sorted(rng.choice(COUNT, rng.integers(1, COUNT + 1), replace=False).tolist())
            inputs[f"starts{i}"] = starts_of(chosen)
            oracle.want(i, chosen)
        found, want = limited.run(inputs), whole.run(inputs)
        assert all(np.array_equal(found[name], want[name]) for name in want)
        counts = memory.counts
        assert (counts["hits"], counts["misses"]) == (oracle.hits, oracle.misses)
        assert counts["bytes"] == counts["resident"] * MATRIX == len(oracle.kept) * MATRIX <= counts["budget"]
    assert counts["budget"] == slots * MATRIX


def test_a_budget_below_one_product_is_raised_and_one_above_all_is_not_used_up() -> None:
    planned = program(2)
    for asked, slots in ((0, COUNT), (MATRIX, COUNT), (1 << 30, 2 * COUNT)):
        memory = pack.ExpertMemory(asked, [])
        weights = {f"w{i}": added(memory, values(i)) for i in range(2)}
        executable = CpuBackend().compile(planned, weights, {})
        x, every = np.ones((COUNT * 2, COLS), np.float32), starts_of(list(range(COUNT)))
        executable.run({"x": x, "starts0": every, "starts1": every})
        assert memory.counts["budget"] == slots * MATRIX == memory.counts["bytes"]


@pytest.mark.soak
def test_programs_that_share_a_memory_run_at_the_same_time() -> None:
    """Two programs of one model, each with a team of its own: steps take turns, and each finds its own matrices."""
    backend, planned = CpuBackend(threads=2), program(2)
    stacks = [values(seed) for seed in range(2)]
    memory = pack.ExpertMemory(9 * MATRIX, [])
    weights = {f"w{i}": added(memory, stack) for i, stack in enumerate(stacks)}
    failed: list[str] = []

    def steps(seed: int) -> None:
        own = backend.compile(planned, weights, {}, threads=2)
        whole = backend.compile(planned, {f"w{i}": stack for i, stack in enumerate(stacks)}, {}, threads=1)
        rng = np.random.default_rng(seed)
        for _ in range(times(1000, 40)):
            inputs = {"x": rng.normal(size=(COUNT * 2, COLS)).astype(np.float32)}
            for i in range(2):
                chosen = sorted(rng.choice(COUNT, rng.integers(1, COUNT + 1), replace=False).tolist())
                inputs[f"starts{i}"] = starts_of(chosen)
            found, want = own.run(inputs), whole.run(inputs)
            if not all(np.array_equal(found[name], want[name]) for name in want):
                failed.append("a product differs")

    running = [threading.Thread(target=steps, args=(seed,)) for seed in range(3)]
    for thread in running:
        thread.start()
    added(memory, values(9))  # a stack of another program, loaded meanwhile
    for thread in running:
        thread.join()
    assert not failed


def test_what_cannot_be_packed_when_it_is_needed_is_refused() -> None:
    memory = pack.ExpertMemory(0, [])
    data = [np.zeros(ROWS * COLS * 4, np.uint8)]
    with pytest.raises(UnsupportedError, match="layout quads"):
        memory.add("quads", "f32", ROWS, COLS, data, [None])
    with pytest.raises(InputError, match="does not fill"):
        memory.add("panels", "f32", ROWS + 1, COLS, data, [None])
    with pytest.raises(InputError, match="at least one matrix"):
        memory.add("panels", "f32", ROWS, COLS, [], [])
    weights = {"w0": added(memory, values(0)), "w1": added(pack.ExpertMemory(0, []), values(1))}
    with pytest.raises(WeightError, match="w1 has another memory of experts"):
        CpuBackend().compile(program(2), weights, {})
