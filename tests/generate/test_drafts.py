"""Drafts change no token, greedy or sampled, and their sampled texts have the model's distribution, not the drafts'."""

import numpy as np
import pytest
from fake_decoder import VOCAB, FakeDecoder, always_draft, expected_tokens
from soaking import times

from weft.errors import InputError
from weft.generate import Engine, Request, Sampling
from weft.generate.choice.costs import Parts, StepCosts
from weft.generate.choice.drafts import (
    Acceptance,
    AcceptanceByDepth,
    PromptLookup,
    agreement,
    draft_length,
    recurrent_draft_length,
)
from weft.generate.sequence import Sequence
from weft.nn.step import Step


class Repeating(FakeDecoder):
    """Logits that depend on the last token alone, and that little, so that texts repeat themselves."""

    def run(self, step: Step) -> np.ndarray:
        super().run(step)
        owner = np.repeat(np.arange(len(step.segments) - 1), np.diff(step.segments))
        out = np.empty((len(step.rows), VOCAB), np.float32)
        for i, row in enumerate(step.rows):
            history = self.store[step.pages[owner[row]]].reshape(-1)
            out[i] = repeating_logits(int(history[step.positions[row]]))
        return out


def repeating_logits(last: int) -> np.ndarray:
    rng = np.random.default_rng(last % 7)
    return rng.normal(0, 4, VOCAB).astype(np.float32)


@pytest.mark.soak
@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(times(8, 2)))
def test_the_text_is_the_one_without_drafts(seed: int, temperature: float) -> None:
    rng = np.random.default_rng(seed)
    prompts = [tuple(rng.integers(0, 9, rng.integers(2, 80)).tolist()) for _ in range(5)]
    requests = [
        Request(p, Sampling(temperature, seed=i), max_tokens=100, ignore_eos=True, logprobs=1)
        for i, p in enumerate(prompts)
    ]
    found = []
    for speculate in (True, False):
        engine = Engine(Repeating(pages=40), step_tokens=int(rng.choice([5, 16, 512])), speculate=False)
        if speculate:
            always_draft(engine)
        results = [h.result() for h in [engine.submit(r) for r in requests]]
        found.append([(r.tokens, r.logprobs) for r in results])
        stats = engine.stats()
        assert stats.free_pages == stats.pages
        assert (stats.accepted_tokens > 20) == speculate
        assert stats.accepted_tokens == sum(r.usage.accepted_tokens for r in results)
    assert found[0] == found[1]


def test_fewer_steps_are_taken_where_texts_repeat() -> None:
    steps = []
    for speculate in (True, False):
        engine = Engine(Repeating(), speculate=False)
        if speculate:
            always_draft(engine)
        engine.submit(Request((1, 2), max_tokens=200, ignore_eos=True)).result()
        steps.append(engine.stats().steps)
    assert steps[0] < 140 and steps[1] == 200


def texts(engine: Engine, count: int) -> np.ndarray:
    """How often each pair of tokens is drawn after a prompt that has a draft for every first one."""
    counts = np.zeros((VOCAB, VOCAB))
    prompt = (*(token for first in range(VOCAB) for token in (2, first, 7 * first % VOCAB)), 1, 2)
    for seed in range(count):
        request = Request(prompt, Sampling(1.0, seed=seed), max_tokens=3, ignore_eos=True)
        first, second, _ = engine.submit(request).result().tokens
        counts[first, second] += 1
    return counts


def chi_square(counts: np.ndarray) -> tuple[float, int]:
    """The statistic against the model's own probabilities of the first two tokens, and its degrees of freedom."""
    total, expected = counts.sum(), np.zeros((VOCAB, VOCAB))
    first = _softmax(repeating_logits(2))
    for token in range(VOCAB):
        expected[token] = first[token] * _softmax(repeating_logits(token))
    large = expected * total >= 5
    seen = np.append(counts[large], counts[~large].sum())
    wanted = np.append(expected[large], expected[~large].sum()) * total
    return float(((seen - wanted) ** 2 / wanted).sum()), len(seen) - 1


def _softmax(x: np.ndarray) -> np.ndarray:
    weights = np.exp(x.astype(np.float64) - x.max())
    return weights / weights.sum()


@pytest.mark.soak
def test_sampled_texts_have_the_models_distribution_and_the_test_would_notice_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = times(1_500, 500)
    engine = Engine(Repeating(), speculate=False)
    always_draft(engine)
    value, freedom = chi_square(texts(engine, count))
    assert engine.stats().drafted_tokens >= count
    assert value < freedom + 4 * np.sqrt(2 * freedom), (value, freedom)

    def believing(self: Sequence, rows: np.ndarray, now: float) -> None:
        """Drafts are taken half of the time without being looked at: the rule, broken."""
        drafts, self.drafts = self.drafts[: len(rows) - 1], []
        for place, row in enumerate(rows):
            token = self.sampler.choose(row, self.generated)
            if place < len(drafts) and self.sampler.seed % 2:
                token = drafts[place]
            self._take(token, row, now)
            if self.finished or place == len(drafts) or drafts[place] != token:
                break
            self.computed += 1

    monkeypatch.setattr(Sequence, "advance", believing)
    engine = Engine(Repeating(), speculate=False)
    always_draft(engine)
    value, freedom = chi_square(texts(engine, count))
    assert value > freedom + 4 * np.sqrt(2 * freedom), (value, freedom)


def test_what_followed_last_time_is_proposed() -> None:
    lookup = PromptLookup([5, 1, 2, 3, 4, 9, 1, 2])
    assert lookup.propose(3) == [3, 4, 9]
    lookup.add(7)
    assert lookup.propose(3) == []
    for token in (1, 2):
        lookup.add(token)
    assert lookup.propose(8) == [7, 1, 2], "the last occurrence counts"
    assert PromptLookup([1]).propose(4) == PromptLookup([]).propose(4) == []


def test_drafting_stops_where_it_does_not_pay() -> None:
    assert draft_length([0.9] * 8, 0.3, 8) == 8 and draft_length([0.5] * 8, 0.3, 8) == 1
    assert draft_length([0.2] * 8, 0.3, 8) == 0 and draft_length([0.9, 0.5, 0.9], 0.42, 8) == 2
    every = AcceptanceByDepth()
    by_depth = AcceptanceByDepth(every)
    for _ in range(30):
        by_depth.note(1, True)
    assert by_depth.rates[0] > 0.95 and by_depth.rates[1] < 0.05 and by_depth.rates[2] == pytest.approx(0.7)
    assert AcceptanceByDepth(every).rates == pytest.approx(every.rates)  # the next request begins with what was found
    assert every.rates[0] > 0.9 and every.rates[1] < 0.1 and every.rates[2] == pytest.approx(0.7)
    costs = StepCosts()
    for tokens in (1, 2, 4, 8) * 20:
        costs.note(Parts(decoding=tokens), 2.0 + 0.5 * tokens)
    assert costs.marginal_share(1) == pytest.approx(0.2) and costs.marginal_share(8) == pytest.approx(4 / 6)
    rate = Acceptance()
    for _ in range(20):
        rate.note(0, True)
    assert rate.rate < 0.05
    for _ in range(5):
        rate.note(3, False)
    assert rate.rate > 0.6
    assert agreement([1, 2, 3], [1, 2, 4]) == 2 and agreement([1], [1, 2]) == 1 and agreement([], [1]) == 0


def test_drafts_of_recurrent_models_count_what_is_computed_again() -> None:
    assert recurrent_draft_length([0.9] * 8, 0.05, 8) == 8 and recurrent_draft_length([0.2] * 8, 0.3, 8) == 0
    half = [0.5] * 8
    assert draft_length(half, 0.4, 8) == 1 and recurrent_draft_length(half, 0.4, 8) == 0, "0.5 tokens more for 0.6 more"
    for rate in (0.1, 0.4, 0.7, 0.95):
        for share in (0.02, 0.1, 0.3, 0.8):
            rates = [rate] * 8
            assert recurrent_draft_length(rates, share, 8) <= draft_length(rates, share, 8)


class Half(FakeDecoder):
    """Logits of a target, or of a draft model that agrees with it after even tokens."""

    def __init__(self, draft: bool, pages: int = 64) -> None:
        super().__init__(pages=pages, eos_ids=frozenset())
        self.draft = draft

    def run(self, step: Step) -> np.ndarray:
        logits = super().run(step)
        for i, row in enumerate(step.rows):
            if self.draft and step.ids[row] % 2:
                logits[i] = np.roll(logits[i], 1)
        return logits


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("pages", [3, 12, 64])
def test_a_draft_model_changes_no_token_and_half_of_its_own_are_right(pages: int, temperature: float) -> None:
    requests = [
        Request(tuple(range(i, i + 30)), Sampling(temperature, seed=i), max_tokens=60, ignore_eos=True)
        for i in range(5)
    ]
    drafter = Half(draft=True, pages=pages)
    engine = Engine(Half(draft=False), draft=drafter, step_tokens=64)
    engine._costs.marginal_share = lambda tokens, drafting=0.0: 0.1  # type: ignore[method-assign]
    for request, handle in zip(requests, [engine.submit(r) for r in requests]):
        assert handle.result().tokens == expected_tokens(request, 60)[0]
    stats = engine.stats()
    assert stats.drafted_tokens > (50 if pages > 3 else 0) and stats.accepted_tokens > stats.drafted_tokens / 6
    assert drafter.pages.free_count == drafter.pages.count and stats.free_pages == stats.pages


def test_a_draft_model_of_another_vocabulary_is_refused() -> None:
    other = FakeDecoder()
    other.vocab_size = VOCAB + 1
    with pytest.raises(InputError, match="draft must have the same vocabulary"):
        Engine(FakeDecoder(), draft=other)


class Timed(Half):
    """Takes a millisecond a step and a tenth of that a token, times `cost`, of a clock that stands still otherwise."""

    def __init__(self, draft: bool, clock: list[float], cost: float) -> None:
        super().__init__(draft, pages=200)
        self.clock, self.cost, self.spent = clock, cost, 0.0
        self.max_context, self.max_pages = 4_096, 128

    def run(self, step: Step) -> np.ndarray:
        took = self.cost * (1e-3 + 1e-4 * len(step.ids))
        self.clock[0] += took
        self.spent += took
        return super().run(step)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    return now


def timed_run(clock: list[float], cost: float | None, requests: int = 1) -> tuple[float, Timed]:
    """Seconds that 900 tokens take with a draft model of this cost, half of whose drafts are right."""
    drafter = Timed(True, clock, cost or 0.0)
    engine = Engine(Timed(False, clock, 1.0), draft=None if cost is None else drafter)
    before = clock[0]
    for i in range(requests):
        request = Request(tuple(range(i, i + 30)), max_tokens=900 // requests, ignore_eos=True)
        assert engine.submit(request).result().tokens == expected_tokens(request, 900 // requests)[0]
    return clock[0] - before, drafter


@pytest.mark.parametrize("requests", [1, 15])
def test_a_draft_model_that_does_not_pay_is_left_alone(clock: list[float], requests: int) -> None:
    plain, _ = timed_run(clock, None, requests)
    for cost in (0.3, 0.5, 1.0):
        drafted, drafter = timed_run(clock, cost, requests)
        assert drafted < 1.03 * plain and drafter.spent < 0.03 * plain, cost
    cheap, drafter = timed_run(clock, 0.05, requests)
    assert cheap < 0.8 * plain and len(drafter.steps) > 900


def test_a_draft_model_that_begins_to_pay_is_used_again(clock: list[float]) -> None:
    drafter = Timed(True, clock, 2.0)
    engine = Engine(Timed(False, clock, 1.0), draft=drafter)
    steps = []
    for number in range(60):
        if number == 30:
            drafter.cost = 0.05
        engine.submit(Request((number, *range(20)), max_tokens=50, ignore_eos=True)).result()
        steps.append(len(drafter.steps))
    assert steps[29] < 20 and steps[59] > steps[29] + 300
