"""The model of step times finds what steps cost in spite of noise, and a prompt beside others stays within its time."""

import random

import pytest
from fake_decoder import FakeDecoder

from weft.generate import Engine, Request, Sampling, engine
from weft.generate.choice.costs import Parts, StepCosts
from weft.generate.schedule import Cost
from weft.nn.step import Step

TRUE = Cost(step=0.010, row=0.001, token=0.0012, attended=3e-7, scored=0.0004)


def seconds(parts: Parts, cost: Cost = TRUE) -> float:
    prompt = cost.token * parts.prompt + cost.attended * parts.attended + cost.scored * parts.scored
    return cost.step + cost.row * parts.decoding + prompt


def some_parts(rng: random.Random) -> Parts:
    """A step that decodes, one with a part of a prompt, or both."""
    kind, place = rng.random(), rng.randint(0, 8000)
    prompt = 0 if kind < 0.4 else rng.randint(4, 200)
    scored = prompt if rng.random() < 0.3 else 0
    return Parts(0 if kind > 0.8 else rng.randint(1, 9), prompt, prompt * (place + prompt / 2), scored)


@pytest.mark.parametrize("seed", range(6))
def test_what_steps_cost_is_learnt_in_spite_of_noise(seed: int) -> None:
    rng, costs = random.Random(seed), StepCosts()
    for _ in range(400):
        parts = some_parts(rng)
        held_up = rng.choice([1.0] * 19 + [20.0])  # by other processes
        costs.note(parts, seconds(parts) * rng.uniform(0.9, 1.2) * held_up)
    for _ in range(50):
        parts = some_parts(rng)
        assert seconds(parts, costs.cost) == pytest.approx(seconds(parts), rel=0.6)


def test_a_machine_that_becomes_slower_is_noticed_and_prompts_are_not_forgotten() -> None:
    rng, costs = random.Random(7), StepCosts()
    for factor in (1.0, 4.0):
        for _ in range(400):
            parts = some_parts(rng)
            costs.note(parts, factor * seconds(parts))
        assert costs.cost.token == pytest.approx(factor * TRUE.token, rel=0.3)
    for _ in range(2000):
        costs.note(Parts(decoding=2), 4 * seconds(Parts(decoding=2)))
    assert costs.cost.token == pytest.approx(4 * TRUE.token, rel=0.3)


def test_nothing_measured_sets_no_limit_and_the_first_step_gives_a_guess() -> None:
    costs = StepCosts()
    assert costs.cost == Cost() and not costs.cost.known
    first = Parts(prompt=64, attended=64 * 32)
    costs.note(first, seconds(first))
    assert costs.cost.known and seconds(first, costs.cost) == pytest.approx(seconds(first), rel=0.05)


class Timed(FakeDecoder):
    """A decoder whose steps take the time of TRUE, on a clock of its own."""

    now = 0.0

    def run(self, step: Step) -> "object":  # type: ignore[override]
        lengths = [int(end - start) for start, end in zip(step.segments, step.segments[1:])]
        asked = set(step.rows.tolist())
        decoding = sum(n for n, end in zip(lengths, step.segments[1:]) if n == 1 and int(end) - 1 in asked)
        places = [
            int(p) for n, start in zip(lengths, step.segments) if n > 1 for p in step.positions[start : start + n]
        ]
        scored = max(0, len(asked) - len(lengths))
        self.took = seconds(Parts(decoding, len(places), float(sum(places)), scored))
        self.now += self.took
        return super().run(step)


@pytest.mark.parametrize("scored", [None, 0])
def test_a_long_prompt_neither_delays_a_short_one_nor_widens_the_gaps_of_a_stream(
    monkeypatch: pytest.MonkeyPatch, scored: int | None
) -> None:
    """First tokens and gaps beside a prompt of 8,000 tokens stay within three times what they are alone."""
    decoder = Timed(pages=400, max_context=9000, eos_ids=frozenset())
    monkeypatch.setattr(engine.time, "perf_counter", lambda: decoder.now)
    running = Engine(decoder, responsive=True, prefix_cache=False, speculate=False)

    def first_token_s() -> float:
        """Of a short prompt that comes now, driving the engine."""
        began, handle = decoder.now, running.submit(Request((3,) * 40, max_tokens=1))
        while not handle.finished:
            running.step()
        return decoder.now - began

    def gap_s() -> float:
        """Of a step; the stream has a token in each."""
        assert running.step()
        return decoder.took

    stream = running.submit(Request((2,) * 20, Sampling(), max_tokens=600))
    first_token_s()
    gap_alone = max(gap_s() for _ in range(5))  # the costs are known from here on
    alone = first_token_s()
    long = running.submit(Request((5,) * 8000, max_tokens=1, prompt_logprobs=scored))
    firsts, gaps = [], []
    for number in range(40):
        gaps.append(gap_s())
        if number % 4 == 0:
            firsts.append(first_token_s())
    assert max(firsts) < 3 * alone and max(gaps) < 3 * gap_alone
    before = decoder.now
    result = long.result()
    assert result.finish_reason == "length" and decoder.now - before < 3 * seconds(Parts(0, 8000, 8000 * 4000, 8000))
    stream.cancel()
