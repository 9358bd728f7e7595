"""Sampling follows its rules in their order, and a seed fixes the draw."""

import math
from itertools import accumulate

import numpy as np
import pytest

from weft.backends.base import TopRows
from weft.errors import InputError
from weft.generate.choice.sampling import Sampler, Sampling, _top_k, draw, draw_first, penalise, uniform


def normalised(p: list[float]) -> list[float]:
    total = sum(p)
    return [q / total for q in p]


def slow_choice(logits: np.ndarray, seen: set[int], rules: Sampling, r: float) -> int:
    """The rules read aloud, on Python floats."""
    x = [float(v) for v in logits]
    for i in seen:
        x[i] = float(np.float32(x[i] / rules.repetition_penalty if x[i] > 0 else x[i] * rules.repetition_penalty))
    if rules.temperature == 0:
        return x.index(max(x))
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if rules.top_k:
        order = order[: rules.top_k]
    p = normalised([math.exp((x[i] - x[order[0]]) / rules.temperature) for i in order])
    keep = [q >= rules.min_p * p[0] for q in p]
    order, p = [i for i, k in zip(order, keep) if k], [q for q, k in zip(p, keep) if k]
    p = normalised(p)
    if rules.top_p < 1:
        count = next((n for n, total in enumerate(accumulate(p), 1) if total >= rules.top_p), len(p))
        order, p = order[:count], p[:count]
        p = normalised(p)
    total = 0.0
    for i, q in zip(order, p):
        total += q
        if r < total:
            return i
    return order[-1]


def random_rules(rng: np.random.Generator) -> Sampling:
    return Sampling(
        temperature=float(rng.choice([0.0, 0.3, 0.8, 1.0, 2.5])),
        top_k=int(rng.choice([0, 1, 5, 40, 1000])),
        top_p=float(rng.choice([1.0, 0.95, 0.5, 0.01, 0.0])),
        min_p=float(rng.choice([0.0, 0.05, 0.3, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.1, 1.7, 0.8])),
        seed=int(rng.integers(2**63)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_logits_and_those_that_penalties_change_decide_as_whole_rows_do(seed: int) -> None:
    """What a GPU returns: the largest of the others that are allowed, then those that change."""
    rng = np.random.default_rng(seed)
    for _ in range(30):
        width = int(rng.integers(2, 3000))
        logits = rng.normal(0, rng.choice([0.5, 3.0]), width).astype(np.float32)
        logits = np.round(logits, int(rng.choice([1, 6])))  # with many equal ones, too
        allowed = rng.random(width) < rng.choice([0.1, 1.0]) if rng.random() < 0.5 else None
        if allowed is not None:
            allowed[rng.integers(width)] = True
        biases = {int(i): float(rng.normal(0, 3)) for i in rng.integers(0, width, rng.choice([0, 4]))}
        rules = Sampling(
            temperature=float(rng.choice([0.0, 0.8, 2.0])),
            top_k=int(rng.choice([1, 5, 64])),
            top_p=float(rng.choice([1.0, 0.9])),
            typical_p=float(rng.choice([1.0, 0.7])),
            min_p=float(rng.choice([0.0, 0.05])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.7])),
            presence_penalty=float(rng.choice([0.0, 1.5])),
            frequency_penalty=float(rng.choice([0.0, -1.0])),
            logit_bias=biases,
            seed=seed,
        )
        sampler = Sampler(rules, rng.integers(0, width, 20).tolist())
        for token in rng.integers(0, width, 10).tolist():
            sampler.note(token)
        aside = sampler.changed
        some = logits.copy()
        some[aside] = -np.inf
        if allowed is not None:
            some[~allowed] = -np.inf
        largest = np.lexsort((np.arange(width), -some.astype(np.float64)))[:64]
        values = logits[aside]
        if allowed is not None:
            values = np.where(allowed[aside], values, np.float32(-np.inf))
        nowhere = np.array([0xFFFFFFFF])
        ids = np.concatenate([np.where(np.isneginf(some[largest]), nowhere, largest), aside, nowhere])
        found = np.concatenate([some[largest], values, [-np.inf]]).astype(np.float32)
        row = TopRows(ids[None], found[None], len(largest))
        assert sampler.decided_by == (1 if rules.temperature == 0 else rules.top_k)
        assert sampler.choose(row, 3) == sampler.choose(logits, 3, allowed)


def masses(logits: np.ndarray, temperature: float) -> np.ndarray:
    """As a GPU sums them: float32, in chunks."""
    chunks = [logits[at : at + 1024] for at in range(0, len(logits), 1024)]
    largest = [one.max() for one in chunks]
    with np.errstate(over="ignore"):
        sums = [np.exp((one - most) / np.float32(temperature)).sum() for one, most in zip(chunks, largest)]
    return np.array([largest, sums], np.float32).T


@pytest.mark.parametrize("seed", range(20))
def test_some_logits_and_the_masses_of_all_draw_what_whole_rows_draw(seed: int) -> None:
    """The largest 64 of 2,000 to 5,000 and what penalties change; where they do not decide, the whole row is read."""
    rng = np.random.default_rng(seed)
    read = 0
    for index in range(100):
        width = int(rng.integers(2000, 5000))
        logits = rng.normal(0, rng.choice([1.0, 4.0]), width).astype(np.float32)
        logits = np.round(logits, int(rng.choice([1, 6])))
        rules = Sampling(
            temperature=float(rng.choice([0.3, 1.0, 1.7])),
            top_p=float(rng.choice([1.0, 0.9, 0.2, 0.0])),
            min_p=float(rng.choice([0.0, 0.0, 0.1])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.7])),
            frequency_penalty=float(rng.choice([0.0, -1.0])),
            seed=seed,
        )
        sampler = Sampler(rules, rng.integers(0, width, 20).tolist())
        for token in rng.integers(0, width, 10).tolist():
            sampler.note(token)
        drafts = rng.integers(0, width, 3).tolist() if sampler.changes else []
        aside = np.array(list(dict.fromkeys([*sampler.changed.tolist(), *drafts])), int)
        some = logits.copy()
        some[aside] = np.finfo(np.float32).min
        largest = np.lexsort((np.arange(width), -some.astype(np.float64)))[:64]
        ids = np.concatenate([largest, aside])
        row = TopRows(ids[None], logits[ids][None], len(largest))
        row.masses = masses(some, rules.temperature)[None]
        whole: list[int] = []
        row.read = lambda place, logits=logits, whole=whole: whole.append(place) or logits  # type: ignore[misc]
        assert sampler.masses and sampler.choose(row, index) == sampler.choose(logits, index)
        read += len(whole)
    assert 0 < read < 60


def test_a_draw_on_the_edge_reads_the_whole_row() -> None:
    """Half of the weight is in the first token: what is drawn by 0.5 depends on the last place of the sum."""
    logits = np.log(np.array([0.5, 0.3, 0.1], np.float32))
    total = 2.0  # of weights 1, 0.6, 0.2 and 0.2 that are not here
    assert draw_first(logits, total, Sampling(temperature=1.0), 0.499) == 0
    assert draw_first(logits, total, Sampling(temperature=1.0), 0.501) == 1
    assert draw_first(logits, total, Sampling(temperature=1.0), 0.5) is None
    assert draw_first(logits, total, Sampling(temperature=1.0), 0.95) is None  # not one of these
    assert draw_first(logits, total, Sampling(temperature=1.0, top_p=0.7), 0.99) == 1
    assert draw_first(logits, total, Sampling(temperature=1.0, top_p=0.8), 0.99) is None  # the second or the third
    assert draw_first(logits, total, Sampling(temperature=1.0, min_p=0.4), 0.99) == 1
    assert draw_first(logits, total, Sampling(temperature=1.0, min_p=0.1), 0.01) is None  # another may count, too


@pytest.mark.parametrize("seed", range(20))
def test_every_rule_agrees_with_the_slow_reading(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(30):
        logits = rng.normal(0, rng.choice([0.5, 3.0]), rng.integers(2, 300)).astype(np.float32)
        rules = random_rules(rng)
        prompt = rng.integers(0, len(logits), 20).tolist()
        index = int(rng.integers(1000))
        got = Sampler(rules, prompt).choose(logits, index)
        assert got == slow_choice(logits, set(prompt), rules, uniform(rules.seed or 0, index)), rules


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.3])
def test_a_large_vocabulary_is_drawn_like_a_small_one(spread: float, top_p: float) -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0, spread, 9000).astype(np.float32)  # large enough that only a head is sorted
    rules = Sampling(temperature=0.9, top_p=top_p)
    for r in (0.0, 0.1, 0.5, 0.9, 0.999):
        assert draw(logits, rules, r) == slow_choice(logits, set(), rules, r)
    # At the very end a token may weigh less than the rounding of the sums, 9,000 times 2^-53 for each of the two.
    last = 1 - 2**-53
    drawn = logits[draw(logits, rules, last)]
    assert (
        logits[slow_choice(logits, set(), rules, math.inf)]
        <= drawn
        <= logits[slow_choice(logits, set(), rules, last - 1e-11)]
    )


@pytest.mark.parametrize("k", [1, 2, 40, 256, 257, 8999])
@pytest.mark.parametrize("levels", [3, 50, 10**6])
def test_the_k_largest_of_many_are_found_with_their_ties(k: int, levels: int) -> None:
    rng = np.random.default_rng(k)
    logits = rng.integers(-levels, levels, 9000).astype(np.float32)
    wanted = sorted(range(9000), key=lambda i: (-logits[i], i))[:k]
    assert sorted(_top_k(logits, k).tolist()) == sorted(wanted)


def test_equal_logits_are_taken_in_order_of_their_ids() -> None:
    flat = np.zeros(10, np.float32)
    assert Sampler(Sampling(), ()).choose(flat, 0) == 0
    assert [draw(flat, Sampling(temperature=1.0), (i + 0.5) / 10) for i in range(10)] == list(range(10))
    assert {draw(flat, Sampling(temperature=1.0, top_k=3), r / 100) for r in range(100)} == {0, 1, 2}
    assert {draw(flat, Sampling(temperature=1.0, top_p=0.35), r / 100) for r in range(100)} == {0, 1, 2, 3}
    steps = np.array([1, 2, 2, 0, 2], np.float32)
    assert {draw(steps, Sampling(temperature=1.0, top_k=2), r / 100) for r in range(100)} == {1, 2}


def test_the_penalty_falls_once_on_each_id_and_always_downwards() -> None:
    logits = np.array([2.0, -2.0, 0.0, 4.0], np.float32)
    assert penalise(logits, 2.0).tolist() == [1.0, -4.0, 0.0, 2.0]
    assert logits.tolist() == [2.0, -2.0, 0.0, 4.0]
    repeated = Sampler(Sampling(repetition_penalty=1.5), [3, 3, 3, 3])
    assert repeated.choose(np.array([2.5, 0, 0, 4.0], np.float32), 0) == 3  # 4 / 1.5 > 2.5, but 4 / 1.5^2 < 2.5
    repeated.note(0)
    assert repeated.choose(np.array([3.9, 2.65, 0, 4.0], np.float32), 1) == 3


def test_a_penalty_beyond_all_bounds_keeps_logits_finite() -> None:
    logits = np.array([3e38, -3e38, 1.0], np.float32)
    for penalty in (1e-300, 1e300):
        assert np.isfinite(penalise(logits, penalty)).all()


@pytest.mark.parametrize("temperature", [5e-324, 1e-30, 1e-3, 1e3, 1e30, 1e308])
def test_extreme_temperatures_are_greedy_or_flat_and_raise_nothing(temperature: float) -> None:
    logits = np.array([0.0, 3.0, 1.0, -2.0], np.float32)
    with np.errstate(all="raise", under="ignore", over="ignore"):
        drawn = {draw(logits, Sampling(temperature=temperature, min_p=0.01), r / 8) for r in range(8)}
    assert drawn == ({1} if temperature < 1 else {0, 1, 2, 3})
    many = np.resize(np.array([0.0, 3e38, 1.0, -3e38], np.float32), 3000)
    rules = Sampling(temperature=temperature)
    for r in (0.0, 0.3003, 0.6006, 0.9901):  # no multiples of 1 in 3000
        assert draw(many, rules, r) == slow_choice(many, set(), rules, r)


def test_frequencies_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    draws = 20_000
    sampler = Sampler(Sampling(temperature=1.0, seed=1), ())
    counts = np.bincount([sampler.choose(logits, i) for i in range(draws)], minlength=4)
    wanted = np.array([0.5, 0.25, 0.15, 0.1]) * draws
    assert ((counts - wanted) ** 2 / wanted).sum() < 16.3  # chi-square, 3 degrees of freedom: p = 0.001


def test_neighbouring_seeds_draw_independently() -> None:
    bins = np.zeros((8, 8))
    for seed in range(20_000):
        bins[int(uniform(seed, 0) * 8), int(uniform(seed + 1, 0) * 8)] += 1
    wanted = 20_000 / 64
    assert ((bins - wanted) ** 2 / wanted).sum() < 103.5  # 63 degrees of freedom: p = 0.001


def test_the_uniform_numbers_are_splitmix64() -> None:
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [uniform(1234567, i) for i in range(4)] == [(z >> 11) * 2.0**-53 for z in outputs]
    assert max(uniform(2**64 - 1, i) for i in range(1000)) < 1.0


def test_a_seed_nobody_gave_is_fresh_and_known() -> None:
    first, second = Sampler(Sampling(temperature=1.0), ()), Sampler(Sampling(temperature=1.0), ())
    assert first.seed != second.seed
    logits = np.zeros(100, np.float32)
    again = Sampler(Sampling(temperature=1.0, seed=first.seed), ())
    assert [first.choose(logits, i) for i in range(50)] == [again.choose(logits, i) for i in range(50)]


BAD = [
    *[("temperature", v) for v in (-0.1, math.nan, math.inf, True, "1", None, 10**400)],
    *[("top_k", v) for v in (-1, 1.0, True, "5", None, 2**31)],
    *[(name, v) for name in ("top_p", "min_p") for v in (-0.01, 1.01, math.nan, False, "0.5", None)],
    *[("repetition_penalty", v) for v in (0, 0.0, -1, math.nan, math.inf, True, "1")],
    *[("seed", v) for v in (-1, 2**64, 1.5, True, "0")],
]


@pytest.mark.parametrize("name, value", BAD)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"\[sampling\] {name} must be .*: got ") as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert caught.value.field == name and caught.value.given is value


def test_numbers_of_numpy_are_numbers() -> None:
    rules = Sampling(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(2**64 - 1))  # type: ignore[arg-type]
    assert rules == Sampling(temperature=0.5, top_k=3, seed=2**64 - 1)
    assert type(rules.top_k) is int and type(rules.temperature) is float
