"""The largest logits, found on the device, are numpy's, and requests choose the same tokens by them."""

import numpy as np
import pytest
import tiny
from gpus import ALL

import weft
from weft.backends.webgpu import top
from weft.backends.webgpu.executable import GpuExecutable
from weft.backends.webgpu.top import scratch_words, sizes_of
from weft.errors import BackendError
from weft.generate import Request, Sampling
from weft.graph.single import single
from weft.ops.registry import catalogue


def test_passes_end_with_as_many_as_are_kept():
    assert sizes_of(151_936, 1) == [151_936, 149, 1]
    assert sizes_of(151_936, 64) == [151_936, 9_536, 640, 64]
    assert sizes_of(59, 64) == [59, 64]
    assert scratch_words(2, 151_936, 1) == 2 * 2 * 150


def expected(rows, count):
    """Numpy's: larger first, then lower columns."""
    order = np.stack([np.lexsort((np.arange(len(row)), -row)) for row in rows.astype(np.float64)])[:, :count]
    return order, np.take_along_axis(rows, order, axis=1)


@pytest.mark.parametrize("width", [1, 59, 1024, 5000] if ALL else [59, 2500])
@pytest.mark.parametrize("count", [1, 40])
def test_the_largest_of_a_row_are_numpys(gpu, width, count):
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((5, width)).astype(np.float32)
    rows[1] = np.round(rows[1])  # many are equal, among them both zeros
    rows[2] = -np.abs(rows[2])
    rows[3, width // 2] = 3e38
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    executable = gpu.compile(bound.program, bound.weights, {})
    found = executable.run_top(bound.inputs, "out0", count)
    kept = min(width, 1 if count == 1 else 64)
    ids, values = expected(rows, kept)
    assert found.finite and np.array_equal(found.ids, ids) and np.array_equal(found.values, values)
    assert [one.ids[0, 0] for one in found[1:3]] == ids[1:3, 0].tolist()


@pytest.mark.parametrize("bad", [np.nan, -np.inf, np.inf])
def test_a_number_that_is_not_finite_is_noticed(gpu, bad):
    rows = np.ones((2, 1500), np.float32)
    rows[1, 1400] = bad
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    executable = gpu.compile(bound.program, bound.weights, {})
    assert not executable.run_top(bound.inputs, "out0", 1).finite
    aside = [np.array([3]), np.array([1400])]  # where it is put aside, too
    assert not executable.run_top(bound.inputs, "out0", 1, None, aside).finite


@pytest.mark.parametrize("width", [59, 2500])
@pytest.mark.parametrize("masked", [False, True])
def test_columns_that_are_put_aside_come_back_and_are_not_among_the_largest(gpu, width, masked):
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((3, width)).astype(np.float32)
    largest = rows.argmax(axis=1)
    aside = [np.array([0, largest[0]]), np.zeros(0, np.int64), np.unique(rng.integers(0, width, 150))]
    mask = np.full(-(-width // 32), 0xFFFFFFFF, np.uint32)
    mask[0] &= ~np.uint32(1)  # column 0 may not be chosen
    masks = [mask, None, None] if masked else None
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    found = gpu.compile(bound.program, bound.weights, {}).run_top(bound.inputs, "out0", 40, masks, aside)
    kept = min(width, 64)
    for row, given, ids, values in zip(rows, aside, found.ids, found.values):
        rest = np.delete(np.arange(width), given)
        order, sorted_values = expected(row[None, rest], kept)
        many = order.shape[1]
        assert np.array_equal(ids[:many], rest[order[0]]) and np.array_equal(values[:many], sorted_values[0])
        assert found.finite and found.largest == kept
        assert np.isneginf(values[many:kept]).all() and np.isneginf(values[kept + len(given) :]).all()
        wanted = row[given]
        if masked and len(given) == 2:
            wanted = np.array([-np.inf, row[given[1]]])
        assert np.array_equal(ids[kept : kept + len(given)], given)
        assert np.array_equal(values[kept : kept + len(given)], wanted)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.write_folder(tmp_path_factory.mktemp("top"), tiny.CONFIGS["llama-grouped"]))


RULES = [
    {},
    {"temperature": 0.9, "top_k": 7, "seed": 3},
    {"temperature": 1.1, "top_k": 40, "top_p": 0.8, "min_p": 0.02, "seed": 4},
    {"temperature": 1.0, "top_k": 20, "typical_p": 0.7, "seed": 5},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "top_k": 12, "repetition_penalty": 0.8, "frequency_penalty": 0.9, "seed": 6},
    {"presence_penalty": -1.5, "logit_bias": {3: 2.0, 50: -100.0}},
    {"temperature": 1.0, "seed": 9},
    {"temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 10},
]


def test_requests_choose_the_tokens_that_whole_rows_give(gpu, folder, monkeypatch):
    """A mixture of greedy and sampled requests, by the largest logits and by whole rows; and one that needs rows."""
    model = weft.load(folder, device="gpu", context=96)
    calls = []
    run_top = GpuExecutable.run_top
    monkeypatch.setattr(GpuExecutable, "run_top", lambda *given: calls.append(given[3]) or run_top(*given))

    def tokens(rules):
        engine = weft.Engine(model)
        wanted = [
            Request([1, 5, 9, n], max_tokens=6, ignore_eos=True, sampling=Sampling(**one))
            for n, one in enumerate(rules)
        ]
        return [handle.result().tokens for handle in [engine.submit(one) for one in wanted]]

    few = tokens(RULES)
    assert calls and set(calls) == {64}
    calls.clear()
    assert tokens(RULES[:7]) == few[:7] and set(calls) == {40}
    calls.clear()
    whole = tokens([*RULES, {"temperature": 0.8, "typical_p": 0.9, "seed": 1}])
    assert not calls and whole[:-1] == few
    assert tokens(RULES[:1]) == few[:1] and set(calls) == {1}


def test_rows_whose_largest_do_not_decide_are_read(gpu, folder, monkeypatch):
    model = weft.load(folder, device="gpu", context=96)
    monkeypatch.setattr(top, "KEPT", (1, 4))  # of 59
    monkeypatch.setattr(type(model.decoder.backend), "top", 4)
    read = []
    read_row = GpuExecutable._read_row
    monkeypatch.setattr(GpuExecutable, "_read_row", lambda *given: read.append(given[-1]) or read_row(*given))
    rules = [
        {"temperature": 1.0, "seed": 9},
        {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.2, "seed": 10},
        {"temperature": 1.3, "min_p": 0.05, "logit_bias": {3: 2.0, 50: -100.0}, "seed": 11},
        {},
    ]

    def tokens():
        engine = weft.Engine(model)
        wanted = [
            Request([1, 5, 9, n], max_tokens=20, ignore_eos=True, sampling=Sampling(**one))
            for n, one in enumerate(rules)
        ]
        return [handle.result().tokens for handle in [engine.submit(one) for one in wanted]]

    few = tokens()
    assert {0, 1, 2} <= set(read) and len(read) < 60
    read.clear()
    monkeypatch.setattr(type(model.decoder), "top", 0)
    assert tokens() == few and not read


@pytest.mark.parametrize("masked", [False, True])
def test_masses_are_those_of_the_numbers_that_count(gpu, masked):
    rng = np.random.default_rng(3)
    rows = rng.normal(0, 3, (3, 2500)).astype(np.float32)
    aside = [np.array([5, int(rows[0].argmax())]), np.zeros(0, np.int64), np.arange(1024, 2048)]
    temperatures = [1.0, 0.05, 40.0]
    mask = np.full(-(-2500 // 32), 0xFFFFFFFF, np.uint32)
    mask[3] = 0
    bound = single(catalogue()["scale"], (rows,), {"by": 1.0})
    executable = gpu.compile(bound.program, bound.weights, {})
    masks = [None, mask, None] if masked else None
    found = executable.run_top(bound.inputs, "out0", 40, masks, aside, temperatures)
    for place, (row, given, temperature) in enumerate(zip(rows, aside, temperatures)):
        counts = np.ones(2500, bool)
        counts[given] = False
        if masked and place == 1:
            counts[96:128] = False
        numbers = row[counts].astype(np.float64)
        expected_mass = np.exp((numbers - numbers.max()) / temperature).sum()
        largest, sums = found.masses[place].T.astype(np.float64)
        assert sums @ np.exp((largest - numbers.max()) / temperature) == pytest.approx(expected_mass, rel=1e-5)
        assert np.array_equal(found[place : place + 1].whole(), row)
    executable.run_top(bound.inputs, "out0", 1)
    with pytest.raises(BackendError, match="after the next step"):
        found.whole()
