"""Requests of a model with recurrent state get the tokens they have alone: its slots follow their pages and drafts."""

import numpy as np
import pytest
from fake_decoder import VOCAB, always_draft, expected_tokens
from recurrent_decoder import RecurrentDecoder, idle
from soaking import times

from weft.errors import BackendError, InputError
from weft.generate import Engine, Request, Sampling
from weft.generate.result import Stats
from weft.nn.step import Step
from weft.runtime.paged.slots import CHECKPOINT_TOKENS, SlotPool


def family(rng: np.random.Generator) -> tuple[int, ...]:
    """A prompt that begins as others do, often past a checkpoint or two, and then goes its own way."""
    start = np.random.default_rng(int(rng.integers(3))).integers(0, 9, 600)
    return tuple(start[: rng.integers(1, 600)].tolist() + rng.integers(0, VOCAB, rng.integers(0, 8)).tolist())


def tokens_of(request: Request, index: int = 0) -> tuple[int, ...]:
    seed = (request.sampling.seed or 0) + index
    alone = Request(request.prompt, Sampling(request.sampling.temperature, seed=seed), ignore_eos=True)
    return expected_tokens(alone, request.max_tokens or 0)[0]


def run_mixture(seed: int, drafts: bool) -> Stats:
    """Twenty requests with random arrivals, chunks and cancellations, over few pages and slots: all are right."""
    rng = np.random.default_rng(seed)
    decoder = RecurrentDecoder(pages=int(rng.integers(22, 34)), slots=int(rng.integers(2, 24)), max_context=700)
    bits, chunk = int(rng.choice([2, 8, 128])), int(rng.choice([7, 100, 512]))
    engine = Engine(decoder, step_tokens=chunk, max_running=int(rng.integers(2, 9)), hash_bits=bits, speculate=False)
    if drafts:
        always_draft(engine)
    temperature = 0.0 if drafts else 1.0  # greedy texts repeat themselves
    requests = [
        Request(
            family(rng),
            Sampling(temperature, seed=i),
            max_tokens=int(rng.integers(1, 90)),
            n=int(rng.choice([1, 1, 3])),
            prefix_cache=bool(rng.random() < 0.9),
            ignore_eos=True,
        )
        for i in range(20)
    ]
    handles, cancelled = [], set()
    while len(handles) < len(requests) or not all(h.finished for h in handles):
        if len(handles) < len(requests) and rng.random() < 0.4:
            handles.append(engine.submit(requests[len(handles)]))
        if handles and rng.random() < 0.01:
            victim = int(rng.integers(len(handles)))
            handles[victim].cancel()
            cancelled.add(victim)
        engine.step()
    for i, (request, handle) in enumerate(zip(requests, handles)):
        for result in handle.results():
            expected = tokens_of(request, result.index)
            assert result.tokens == (expected if i not in cancelled else expected[: len(result.tokens)])
    assert idle(decoder)
    return engine.stats()


@pytest.mark.soak
@pytest.mark.parametrize("drafts", [False, True])
def test_company_changes_nothing(drafts: bool) -> None:
    stats = [run_mixture(seed, drafts) for seed in range(times(10, 3))]
    assert sum(s.cached_tokens for s in stats) > 100 * len(stats) and 2 * sum(s.preemptions for s in stats) > len(stats)


class Repeating(RecurrentDecoder):
    """Texts that repeat themselves, with a surprise now and then."""

    def plain_logits(self, step: Step) -> np.ndarray:
        super().plain_logits(step)
        logits = np.zeros((len(step.rows), VOCAB), np.float32)
        for i, row in enumerate(step.rows):
            place, last = int(step.positions[row]), int(step.ids[row])
            logits[i, place % VOCAB if place % 23 == 0 else (5 * last + 1) % 8] = 9.0
        return logits


def test_right_drafts_are_taken_and_wrong_ones_forgotten() -> None:
    found = []
    for drafts in (True, False):
        decoder = Repeating(max_context=700)
        engine = Engine(decoder, speculate=False)
        if drafts:
            always_draft(engine)
        handles = [engine.submit(Request((i, 1, 2), max_tokens=300, ignore_eos=True)) for i in range(4)]
        found.append([handle.result().tokens for handle in handles])
        assert idle(decoder)
        stats = engine.stats()
        assert not drafts or stats.drafted_tokens > stats.accepted_tokens > 200
        assert not drafts or stats.steps < 250
    assert found[0] == found[1]


def test_a_prompt_is_computed_once_up_to_the_last_page_that_all_have() -> None:
    decoder = RecurrentDecoder(pages=200, slots=64, max_context=700)
    engine = Engine(decoder, step_tokens=128)
    prompt = tuple(i % VOCAB for i in range(600))
    handles = [engine.submit(Request((*prompt, i), max_tokens=3, ignore_eos=True)) for i in range(8)]
    results = [handle.result() for handle in handles]
    assert [r.usage.cached_tokens for r in results] == [0] + [576] * 7
    again = engine.submit(Request((*prompt, 1), max_tokens=3, n=3, ignore_eos=True)).results()
    assert [r.tokens for r in again] == [results[1].tokens] * 3
    assert [r.usage.cached_tokens for r in again] == [576] * 3 and idle(decoder)


def test_pages_without_a_checkpoint_are_computed_again() -> None:
    decoder = RecurrentDecoder(pages=200, slots=2, max_context=700)
    engine = Engine(decoder)
    first, second = (tuple((i * k) % VOCAB for i in range(600)) for k in (1, 7))
    for request in [Request(p, max_tokens=2, ignore_eos=True) for p in (first, second, first)]:
        result = engine.submit(request).result()
        assert result.tokens == tokens_of(request) and result.usage.cached_tokens == 0, "two slots keep no checkpoint"
    roomy = Engine(RecurrentDecoder(pages=200, slots=8, max_context=700))
    cached = []
    for prompt in (first, second, first, second, first[:300]):
        cached.append(roomy.submit(Request(prompt, max_tokens=2, ignore_eos=True)).result().usage.cached_tokens)
    assert cached == [0, 0, 576, 576, 256]


def test_a_preempted_request_goes_on_from_its_last_checkpoint() -> None:
    decoder = RecurrentDecoder(pages=24, slots=12, max_context=700)
    engine = Engine(decoder, step_tokens=64)
    requests = [Request(tuple(range(i, i + 50)), max_tokens=400, ignore_eos=True) for i in range(3)]
    handles = [engine.submit(r) for r in requests]
    assert [h.result().tokens for h in handles] == [tokens_of(r) for r in requests]
    assert engine.preemptions and engine.stats().cached_tokens and idle(decoder)


class Interrupted(RecurrentDecoder):
    """Writes its states, and then is interrupted or fails, every so many steps."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error, self.left = error, 3

    def run(self, step: Step) -> np.ndarray:
        logits = super().run(step)
        self.left -= 1
        if self.left == 0:
            self.left = 5
            raise self.error
        return logits


def test_an_interrupted_step_is_run_again_from_the_same_state() -> None:
    decoder = Interrupted(KeyboardInterrupt())
    engine = Engine(decoder)
    request, interrupts = Request((1, 2, 3), max_tokens=30, ignore_eos=True), 0
    handle = engine.submit(request)
    while not handle.finished:
        try:
            engine.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert handle.result().tokens == tokens_of(request) and interrupts > 3 and idle(decoder)


def test_a_step_that_fails_loses_no_slot() -> None:
    decoder = Interrupted(BackendError("fake", "no"))
    engine = Engine(decoder)
    handles = [engine.submit(Request((1, i), max_tokens=9, ignore_eos=True)) for i in range(3)]
    for handle in handles:
        with pytest.raises(BackendError):
            handle.result()
    assert idle(decoder)


def test_what_recurrent_state_cannot_do_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2"):
        Engine(RecurrentDecoder(slots=1))


PREFIX = tuple((7 * i + i // 50) % VOCAB for i in range(2_000))


def roomy(**options) -> tuple[RecurrentDecoder, Engine]:
    decoder = RecurrentDecoder(pages=300, slots=64, max_context=4_096)
    return decoder, Engine(decoder, **options)


def test_sixteen_requests_compute_a_prefix_of_two_thousand_tokens_once() -> None:
    decoder, engine = roomy()
    requests = [Request((*PREFIX, *range(i, i + 40)), max_tokens=3, ignore_eos=True) for i in range(16)]
    results = [handle.result() for handle in [engine.submit(request) for request in requests]]
    assert [r.usage.cached_tokens for r in results] == [0] + [1984] * 15, "up to the last whole page of the prefix"
    assert [r.tokens for r in results] == [tokens_of(r) for r in requests] and idle(decoder)
    assert sum(len(step.ids) for step in decoder.steps) == 2_040 + 15 * 56 + 16 * 2


def test_a_second_text_leaves_a_checkpoint_where_it_parts_from_the_first() -> None:
    _, engine = roomy()
    cached = []
    for i in range(4):  # one after another: only the second shows where texts part
        request = Request((*PREFIX, i, *range(60), i), max_tokens=2, ignore_eos=True)
        cached.append(engine.submit(request).result().usage.cached_tokens)
    assert cached == [0, 1792, 1984, 1984]


def test_the_next_turn_of_a_chat_does_not_compute_the_last_one() -> None:
    decoder, engine = roomy()
    text: tuple[int, ...] = tuple(range(40)) * 2
    for turn in range(4):
        request = Request(text, max_tokens=150, ignore_eos=True)
        result = engine.submit(request).result()
        assert result.tokens == tokens_of(request)
        computed = len(text) - result.usage.cached_tokens
        assert turn == 0 or computed <= 31 + 10, "the last page of the answer, and the new question"
        text = (*text, *result.tokens, *range(turn, turn + 10))
    stats = engine.stats()
    assert 4 <= stats.checkpoints <= 12 and stats.checkpoint_bytes == stats.checkpoints * decoder.slot_bytes
    assert (stats.slots, stats.free_slots) == (64, 64)


def test_an_answer_keeps_its_last_checkpoint_and_one_for_every_eight_pages() -> None:
    _, engine = roomy()
    engine.submit(Request((1, 2, 3), max_tokens=1_000, ignore_eos=True)).result()
    assert engine.stats().checkpoints == 1_002 // CHECKPOINT_TOKENS + 1


@pytest.mark.parametrize("drafts", [False, True])
def test_a_restart_finds_states_on_disk(tmp_path, drafts: bool) -> None:
    prompt, found = PREFIX[:700], []
    for start in range(3):
        decoder = Repeating(pages=200, slots=32, max_context=2_000)
        engine = Engine(decoder, prefix_dir=tmp_path, speculate=False)
        if drafts:
            always_draft(engine)
        first = engine.submit(Request(prompt, max_tokens=200, ignore_eos=True)).result()
        turn = Request((*prompt, *first.tokens, 5, 6), max_tokens=9, ignore_eos=True)
        second = engine.submit(turn).result()
        found.append((first.tokens, second.tokens))
        engine.close()
        assert first.usage.cached_tokens == (672 if start else 0) and second.usage.cached_tokens == 896
        assert idle(decoder)
    assert found[0] == found[1] == found[2]
    for path in tmp_path.rglob("*.slot"):
        path.write_bytes(path.read_bytes()[:-1])
    engine = Engine(Repeating(pages=200, slots=32, max_context=2_000), prefix_dir=tmp_path)
    result = engine.submit(Request(prompt, max_tokens=200, ignore_eos=True)).result()
    assert result.usage.cached_tokens == 0 and result.tokens == found[0][0], "damaged states are not used"


class Follows(RecurrentDecoder):
    """A draft model that agrees with the target after most tokens."""

    def run(self, step: Step) -> np.ndarray:
        logits = super().run(step)
        for i, row in enumerate(step.rows):
            if step.ids[row] % 5 == 0:
                logits[i] = np.roll(logits[i], 1)
        return logits


@pytest.mark.parametrize("slots", [2, 7, 64])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_draft_model_may_have_recurrent_state(slots: int, temperature: float) -> None:
    target, drafter = RecurrentDecoder(pages=80), Follows(pages=80, slots=slots)
    engine = Engine(target, draft=drafter, step_tokens=64)
    engine._costs.marginal_share = lambda tokens, drafting=0.0: 0.1  # type: ignore[method-assign]
    requests = [
        Request(tuple(range(i, i + 30)), Sampling(temperature, seed=i), max_tokens=60, ignore_eos=True)
        for i in range(5)
    ]
    for request, handle in zip(requests, [engine.submit(r) for r in requests]):
        assert handle.result().tokens == tokens_of(request)
    stats = engine.stats()
    if slots == 2:  # too few for a request
        assert stats.drafted_tokens < 20
    else:
        assert stats.accepted_tokens > max(100, 0.5 * stats.drafted_tokens)
    assert idle(target) and idle(drafter)


def test_a_request_drafts_on_in_the_step_that_computes_right_tokens_again() -> None:
    decoder = RecurrentDecoder(pages=80)
    engine = Engine(decoder, draft=Follows(pages=80, slots=32))
    engine._costs.marginal_share = lambda tokens, drafting=0.0: 0.1  # type: ignore[method-assign]
    request = Request((1, 2, 3), max_tokens=300, ignore_eos=True)
    assert engine.submit(request).result().tokens == tokens_of(request)
    stats = engine.stats()
    assert stats.steps < 0.45 * 300 and stats.drafted_tokens > stats.accepted_tokens > 150


def test_slots_bound_how_many_run() -> None:
    decoder = RecurrentDecoder(slots=7)
    engine = Engine(decoder)
    handles = [engine.submit(Request((i,), max_tokens=5, ignore_eos=True)) for i in range(9)]
    engine.step()
    assert (engine.running, engine.waiting) == (3, 6) and isinstance(decoder.slots, SlotPool)
    assert [h.result().tokens for h in handles] == [tokens_of(Request((i,), max_tokens=5)) for i in range(9)]
