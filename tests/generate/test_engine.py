"""A request gets the same tokens alone and in any company: chunks, preemption, cancellation and errors of others."""

import gc
import signal
import threading

import numpy as np
import pytest
from fake_decoder import VOCAB, FakeDecoder, FakeTokenizer, expected_tokens, logits_after

from weft.errors import BackendError, BusyError, InputError, TooLongError
from weft.generate import Engine, Piece, Request, Sampling, generate, stream
from weft.nn.step import Step
from weft.runtime.paged.pages import PagePool


def test_ids_that_pad_the_models_vocabulary_have_no_text() -> None:
    tokenizer = FakeTokenizer(vocab_size=VOCAB // 2)
    result = generate(Engine(FakeDecoder(), tokenizer), [3], max_tokens=40, ignore_eos=True)
    assert max(result.tokens) >= tokenizer.vocab_size > min(result.tokens)
    assert result.text == tokenizer.text(result.tokens)


def random_request(rng: np.random.Generator, longest: int) -> Request:
    prompt = rng.integers(0, VOCAB, rng.integers(1, longest)).tolist()
    sampling = Sampling(
        temperature=float(rng.choice([0.0, 0.7, 1.5])),
        top_k=int(rng.choice([0, 10])),
        top_p=float(rng.choice([1.0, 0.8])),
        repetition_penalty=float(rng.choice([1.0, 1.3])),
        seed=int(rng.integers(2**32)),
    )
    return Request(tuple(prompt), sampling, max_tokens=int(rng.integers(1, 60)), ignore_eos=bool(rng.random() < 0.5))


def all_free(engine: Engine, decoder: FakeDecoder) -> bool:
    return decoder.pages.free_count == decoder.pages.count and engine.running == engine.waiting == 0


@pytest.mark.parametrize("seed", range(40))
def test_company_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    decoder = FakeDecoder(pages=int(rng.integers(7, 24)))  # the largest request takes 6 pages
    engine = Engine(decoder, step_tokens=int(rng.choice([1, 7, 32, 100, 512])), max_running=int(rng.integers(1, 9)))
    requests = [random_request(rng, 120) for _ in range(int(rng.integers(2, 16)))]
    handles, cancelled = [], set()
    while len(handles) < len(requests) or not all(h.finished for h in handles):
        if len(handles) < len(requests) and rng.random() < 0.4:
            handles.append(engine.submit(requests[len(handles)]))
        if handles and rng.random() < 0.01:
            victim = int(rng.integers(len(handles)))
            if not handles[victim].finished:
                handles[victim].cancel()
                cancelled.add(victim)
        engine.step()
    for i, (request, handle) in enumerate(zip(requests, handles)):
        tokens, reason = expected_tokens(request, request.max_tokens or 0)
        result = handle.result()
        if i in cancelled:
            assert result.finish_reason == "cancelled" and result.tokens == tokens[: len(result.tokens)]
        else:
            assert (result.tokens, result.finish_reason) == (tokens, reason)
    assert all_free(engine, decoder)
    assert all(len(step.ids) <= engine._step_tokens for step in decoder.steps)


def test_a_small_pool_preempts_and_the_results_are_the_same() -> None:
    decoder = FakeDecoder(pages=6, eos_ids=frozenset())
    engine = Engine(decoder, step_tokens=64)
    requests = [Request(tuple(range(i, i + 20)), Sampling(1.0, seed=i), max_tokens=120) for i in range(6)]
    handles = [engine.submit(r) for r in requests]
    for request, handle in reversed(list(zip(requests, handles))):
        assert (
            handle.result().tokens
            == expected_tokens(Request(request.prompt, request.sampling, ignore_eos=True), 120)[0]
        )
    assert engine.preemptions > 0 and all_free(engine, decoder)


def test_a_prompt_comes_in_chunks_and_only_its_end_asks_for_logits() -> None:
    decoder = FakeDecoder()
    result = generate(Engine(decoder, step_tokens=100), [1, 2, 3] * 90, max_tokens=3, ignore_eos=True)
    assert [len(step.ids) for step in decoder.steps] == [100, 100, 70, 1, 1]
    assert [step.rows.tolist() for step in decoder.steps] == [[], [], [69], [0], [0]]
    assert result.usage.total_tokens == 273 and result.finish_reason == "length"


@pytest.mark.parametrize("seed", range(30))
def test_stop_strings_cut_the_text_and_pieces_join_to_the_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokenizer = FakeTokenizer()
    prompt = rng.integers(0, VOCAB, 5).tolist()
    sampling = Sampling(1.0, seed=seed)
    free, _ = expected_tokens(Request(tuple(prompt), sampling, ignore_eos=True), 40)
    text = tokenizer.text(free)
    start = int(rng.integers(0, len(text) - 3))
    stop = text[start : start + 3]
    handle = Engine(FakeDecoder(), tokenizer).submit(
        Request(tuple(prompt), sampling, max_tokens=40, stop=(stop, "never"), ignore_eos=True)
    )
    pieces = list(handle)
    result = handle.result()
    assert result.finish_reason == "stop"
    assert result.text == text[: text.index(stop)]
    assert result.text == "".join(p.text for p in pieces)
    assert result.tokens == tuple(t for p in pieces for t in p.tokens) == free[: len(result.tokens)]
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "stop"


def test_text_held_back_comes_out_at_the_end() -> None:
    tokenizer = FakeTokenizer()
    result = generate(Engine(FakeDecoder(), tokenizer), [3], max_tokens=9, stop="never", ignore_eos=True)
    assert result.text == tokenizer.text(result.tokens) and result.finish_reason == "length"


def test_a_stop_token_is_neither_counted_nor_shown() -> None:
    tokenizer = FakeTokenizer()
    plain = generate(Engine(FakeDecoder(), tokenizer), [3], max_tokens=9, ignore_eos=True)
    fifth = plain.tokens[4]
    kept = plain.tokens[: plain.tokens.index(fifth)]
    *pieces, last = stream(Engine(FakeDecoder(), tokenizer), [3], stop_ids=[fifth], ignore_eos=True)
    assert tuple(t for p in pieces for t in p.tokens) == kept
    assert last.tokens == () and last.finish_reason == "stop"
    assert "".join(p.text for p in [*pieces, last]) == tokenizer.text(kept)
    by_model = generate(Engine(FakeDecoder(eos_ids=frozenset({fifth})), tokenizer), [3])
    assert (by_model.tokens, by_model.usage.completion_tokens) == (kept, len(kept))


def test_without_a_limit_the_context_is_the_limit() -> None:
    for decoder, total in ((FakeDecoder(max_context=80), 80), (FakeDecoder(pages=2), 65)):
        result = generate(Engine(decoder), range(10), ignore_eos=True)
        assert result.usage.total_tokens == total and result.finish_reason == "length"
    capped = generate(Engine(FakeDecoder(max_context=80)), range(10), max_tokens=10**9, ignore_eos=True)
    assert capped.usage.total_tokens == 80


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers() -> None:
    engine = Engine(FakeDecoder(max_context=80))
    with pytest.raises(TooLongError, match="prompt has 80 tokens, the context leaves room for 79") as caught:
        generate(engine, [1] * 80)
    assert (caught.value.length, caught.value.limit) == (80, 79)
    assert generate(engine, [1] * 79, ignore_eos=True).usage.completion_tokens == 1
    with pytest.raises(TooLongError, match="pages for 65 tokens"):
        generate(Engine(FakeDecoder(pages=2)), [1] * 10, max_tokens=56)


@pytest.mark.parametrize("side, head, tail", [("left", 0, 64), ("right", 64, 0), ("middle", 32, 32)])
def test_a_truncated_prompt_is_the_one_that_runs_and_is_reported(side: str, head: int, tail: int) -> None:
    prompt = [i % VOCAB for i in range(200)]
    result = generate(Engine(FakeDecoder(max_context=80)), prompt, max_tokens=16, truncate=side, ignore_eos=True)
    kept = tuple(prompt[:head] + prompt[200 - tail :])
    assert result.tokens == expected_tokens(Request(kept, ignore_eos=True), 16)[0]
    assert (result.usage.prompt_tokens, result.usage.truncated_tokens) == (64, 136)
    fits = generate(Engine(FakeDecoder(max_context=80)), prompt[:79], truncate=side)
    assert fits.usage.truncated_tokens == 0


def test_too_many_waiting_requests_are_turned_away_and_may_come_back() -> None:
    engine = Engine(FakeDecoder(), max_waiting=2)
    first, _ = engine.submit(Request((1,))), engine.submit(Request((2,)))
    with pytest.raises(BusyError, match="2 requests wait"):
        engine.submit(Request((3,)))
    first.cancel()
    assert engine.submit(Request((3,), max_tokens=2)).result().finish_reason


@pytest.mark.parametrize(
    "options, message",
    [
        ({"prompt": ()}, "prompt is empty"),
        ({"prompt": (1, VOCAB)}, f"prompt has token id {VOCAB}"),
        ({"prompt": (-1,)}, "token id -1"),
        ({"prompt": (1.5,)}, "prompt must be a sequence of whole numbers"),
        ({"prompt": (1, True)}, "prompt must be a sequence of whole numbers"),
        ({"prompt": "words"}, "prompt must be a sequence of whole numbers"),
        ({"prompt": None}, "prompt must be a sequence of whole numbers"),
        ({"prompt": (1,), "max_tokens": True}, "max_tokens must be"),
        ({"prompt": (1,), "stop": 5}, "stop must be a string .* got 5"),
        ({"prompt": (1,), "max_tokens": -1}, "max_tokens must be .* got -1"),
        ({"prompt": (1,), "min_tokens": -1}, "min_tokens must be .* got -1"),
        (
            {"prompt": (1,), "min_tokens": 5, "max_tokens": 4},
            "min_tokens must be at most max_tokens, which is 4: got 5",
        ),
        ({"prompt": (1,), "n": 0}, "n must be .* got 0"),
        ({"prompt": (1,), "n": 129}, "n must be .* got 129"),
        ({"prompt": (1,), "logprobs": 21}, "logprobs must be .* got 21"),
        ({"prompt": (1,), "prompt_logprobs": True}, "prompt_logprobs must be"),
        ({"prompt": (1,), "priority": "high"}, "priority must be"),
        ({"prompt": (1,), "priority": 1001}, "priority must be .* got 1001"),
        ({"prompt": (1,), "tenant": 5}, "tenant must be a string: got 5"),
        ({"prompt": (1,), "speculate": 1}, "speculate must be .* got 1"),
        ({"prompt": (1,), "reasoning_budget": -2}, "reasoning_budget must be .* got -2"),
        ({"prompt": (1,), "sampling": Sampling(logit_bias={VOCAB: 1.0})}, "logit_bias has token id"),
        ({"prompt": (1,), "max_tokens": "5"}, "max_tokens must be"),
        ({"prompt": (1,), "stop_ids": (VOCAB,)}, "stop_ids has token id"),
        ({"prompt": (1,), "stop": ("",)}, "stop 0 must be a string that is not empty"),
        ({"prompt": (1,), "stop": ("x",) * 17}, "stop has 17 strings"),
        ({"prompt": (1,), "stop": ("é" * 129,)}, "258 bytes"),
        ({"prompt": (1,), "stop": ("x",)}, "stop needs a tokenizer"),
        ({"prompt": (1,), "truncate": "top"}, "truncate must be .* got 'top'"),
        ({"prompt": (1,), "sampling": None}, "sampling must be a Sampling"),
        ({"prompt": (1,), "ignore_eos": 1}, "ignore_eos must be True or False: got 1"),
    ],
)
def test_a_bad_request_is_refused_before_anything_runs(options: dict, message: str) -> None:
    decoder = FakeDecoder()
    with pytest.raises(InputError, match=message) as caught:
        Engine(decoder).submit(Request(**options))
    assert caught.value.field in (*options, "logit_bias")
    assert not decoder.steps


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(InputError, match="unknown option temprature"):
        generate(Engine(FakeDecoder()), [1], temprature=1.0)


class Poisoned(FakeDecoder):
    """Not finite after a given token."""

    def __init__(self, value: float) -> None:
        super().__init__(eos_ids=frozenset())
        self.value = value

    def run(self, step: Step) -> np.ndarray:
        logits = super().run(step)
        logits[step.ids[step.rows] == 13, 5] = self.value
        return logits


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_end_that_request_only(value: float) -> None:
    decoder = Poisoned(value)
    engine = Engine(decoder)
    good = engine.submit(Request((1, 2), max_tokens=1))
    bad = engine.submit(Request((1, 2, 13)))
    with pytest.raises(BackendError, match=f"request 1: the logits after token 2 are not finite: {value} for id 5"):
        bad.result()
    assert good.result().tokens == (int(logits_after([1, 2]).argmax()),)
    assert all_free(engine, decoder)


class Failing(FakeDecoder):
    def run(self, step: Step) -> np.ndarray:
        if 13 in step.ids:
            raise BackendError("fake", "no")
        return super().run(step)


def test_a_step_that_fails_ends_its_requests_and_not_the_engine() -> None:
    decoder = Failing(eos_ids=frozenset())
    engine = Engine(decoder, max_running=2)
    handles = [engine.submit(Request((1, i), max_tokens=1)) for i in (12, 13, 14)]
    for handle in handles[:2]:
        with pytest.raises(BackendError, match=r"\[fake\] no"):
            handle.result()
    assert handles[2].result().finish_reason == "length" and all_free(engine, decoder)


def test_logits_of_another_shape_or_type_are_refused() -> None:
    decoder = FakeDecoder()
    run = decoder.run
    decoder.run = lambda step: run(step).astype(np.float64)  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="float64"):
        generate(Engine(decoder), [1])


@pytest.mark.parametrize("cancel", [True, False])
def test_a_tokenizer_that_fails_ends_the_request_and_loses_no_page(cancel: bool) -> None:
    decoder, tokenizer = FakeDecoder(eos_ids=frozenset()), FakeTokenizer()
    engine = Engine(decoder, tokenizer)
    handle = engine.submit(Request((1,), max_tokens=3))
    engine.step()
    tokenizer.pieces.clear()
    handle._sequences[0]._stream.finish = lambda: tokenizer.pieces[0]  # type: ignore[method-assign, union-attr]
    if cancel:
        handle.cancel()
    with pytest.raises(IndexError):
        handle.result()
    assert all_free(engine, decoder)


class Interrupting:
    """Sends this process one SIGINT at the n-th call."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def tick(self) -> None:
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)


class InterruptingPool(PagePool):
    def __init__(self, count: int, interrupt: Interrupting) -> None:
        super().__init__(count)
        self.interrupt = interrupt

    def take(self, count: int) -> list[int]:
        self.interrupt.tick()
        pages = super().take(count)
        self.interrupt.tick()
        return pages

    def release(self, pages: list[int]) -> None:
        self.interrupt.tick()
        super().release(pages)
        self.interrupt.tick()


class InterruptingDecoder(FakeDecoder):
    def __init__(self, interrupt: Interrupting) -> None:
        super().__init__(pages=6)
        self.interrupt = interrupt
        self.pages = InterruptingPool(6, interrupt)

    def run(self, step: Step) -> np.ndarray:
        self.interrupt.tick()
        logits = super().run(step)
        self.interrupt.tick()
        return logits


@pytest.mark.parametrize("calls", range(1, 120, 3))
def test_an_interrupt_anywhere_cancels_who_waited_and_spares_the_others(calls: int) -> None:
    interrupt = Interrupting(calls)
    decoder = InterruptingDecoder(interrupt)
    engine = Engine(decoder)
    requests = [
        Request(tuple(range(i, i + 30)), Sampling(1.0, seed=i), max_tokens=40, ignore_eos=True) for i in range(4)
    ]
    handles = [engine.submit(r) for r in requests]
    with pytest.raises(KeyboardInterrupt):
        _ = [handles[i].result() for i in (1, 2)]
    assert interrupt.left <= 0
    results = [h.result() for h in handles]
    assert sum(r.finish_reason == "cancelled" for r in results) <= 1
    for request, result in zip(requests, results):
        tokens, _ = expected_tokens(request, 40)
        assert result.tokens == (tokens if result.finish_reason == "length" else tokens[: len(result.tokens)])
    assert all_free(engine, decoder)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_leaving_the_loop_cancels() -> None:
    decoder = FakeDecoder(eos_ids=frozenset())
    engine = Engine(decoder)
    handle = engine.submit(Request((1,), max_tokens=50))
    for piece in handle:
        assert isinstance(piece, Piece)
        break
    del piece
    gc.collect()
    assert handle.finished and handle.result().finish_reason == "cancelled" and len(handle.result().tokens) == 1
    assert all_free(engine, decoder)


def test_cancelling_inside_a_step_takes_effect_when_it_ends() -> None:
    decoder = FakeDecoder(eos_ids=frozenset())
    engine = Engine(decoder)
    handle = engine.submit(Request((1,), max_tokens=50))
    run = decoder.run

    def cancel_and_run(step: Step) -> np.ndarray:
        handle.cancel()
        return run(step)

    decoder.run = cancel_and_run  # type: ignore[method-assign]
    assert engine.step() and handle.finished and not engine.step()
    assert all_free(engine, decoder)


def test_threads_may_share_the_engine() -> None:
    decoder = FakeDecoder(pages=12)
    engine = Engine(decoder, step_tokens=50)
    rng = np.random.default_rng(11)
    requests = [random_request(rng, 60) for _ in range(8)]
    results: dict[int, tuple[int, ...]] = {}

    def work(i: int) -> None:
        results[i] = engine.submit(requests[i]).result().tokens

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: expected_tokens(r, r.max_tokens or 0)[0] for i, r in enumerate(requests)}
    assert all_free(engine, decoder)


def test_pages_held_by_somebody_else_are_an_error_and_not_a_hang() -> None:
    decoder = FakeDecoder(pages=2)
    decoder.pages.take(2)
    with pytest.raises(BackendError, match="no request can continue"):
        generate(Engine(decoder), [1, 2, 3])


def test_the_result_says_what_it_cost_and_how_to_repeat_it() -> None:
    engine = Engine(FakeDecoder())
    result = generate(engine, [1, 2, 3], temperature=1.0, max_tokens=5, ignore_eos=True)
    again = generate(engine, [1, 2, 3], temperature=1.0, max_tokens=5, ignore_eos=True, seed=result.seed)
    assert again.tokens == result.tokens
    times = result.timings
    assert times.first_token_ms >= times.prompt_ms > 0 and times.predicted_ms > 0
    assert times.prompt_per_second == pytest.approx(3e3 / times.prompt_ms)
    assert times.predicted_per_second == pytest.approx(4e3 / times.predicted_ms)
