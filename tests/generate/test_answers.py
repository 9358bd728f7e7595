"""What a request may ask for beside its text: several answers, log probabilities, least lengths, less reasoning."""

import asyncio
import math
from pathlib import Path

import numpy as np
import pytest
import tiny
from fake_decoder import EOS, VOCAB, FakeDecoder, FakeTokenizer, expected_tokens, logits_after

import weft
from weft.errors import (
    BackendError,
    BusyError,
    FormatError,
    GrammarError,
    InputError,
    NotFoundError,
    UnsupportedError,
)
from weft.generate import AsyncEngine, Engine, Request, Sampling, Session, make_request
from weft.runtime import PAGE_TOKENS


def logprob(tokens: list[int], token: int) -> float:
    x = logits_after(tokens).astype(np.float64)
    return float(x[token] - np.log(np.exp(x - x.max()).sum()) - x.max())


def test_n_answers_are_those_of_n_requests_with_the_next_seeds() -> None:
    engine = Engine(FakeDecoder())
    asked = Request((1, 2, 3) * 20, Sampling(1.0, seed=7), max_tokens=20, n=5, ignore_eos=True)
    handle = engine.submit(asked)
    pieces = list(handle)
    results = handle.results()
    for index, result in enumerate(results):
        alone = Request(asked.prompt, Sampling(1.0, seed=7 + index), ignore_eos=True)
        assert (result.tokens, result.index, result.seed) == (expected_tokens(alone, 20)[0], index, 7 + index)
        assert result.tokens == tuple(t for p in pieces if p.index == index for t in p.tokens)
    assert [r.usage.cached_tokens for r in results] == [0, 32, 32, 32, 32]
    seeds = {r.seed for r in engine.submit(Request((1,), Sampling(1.0), n=3, max_tokens=1)).results()}
    assert len(seeds) == 3


@pytest.mark.parametrize("speculate", [True, False])
def test_logprobs_are_of_the_models_own_distribution(speculate: bool) -> None:
    prompt = [1, 2, 3, 1, 2]
    sampling = Sampling(1.4, top_k=9, repetition_penalty=1.3, seed=3, logit_bias={4: 2.0})
    request = Request(tuple(prompt), sampling, max_tokens=12, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    result = Engine(FakeDecoder(), speculate=speculate).submit(request).result()
    assert result.logprobs is not None and result.prompt_logprobs is not None
    text = list(prompt)
    for token, found in zip(result.tokens, result.logprobs):
        best = np.argsort(-logits_after(text), kind="stable")[:3].tolist()
        assert found.token == token and [i for i, _ in found.top] == best
        assert found.logprob == pytest.approx(logprob(text, token), abs=1e-9)
        assert found.top[0][1] == pytest.approx(logprob(text, best[0]), abs=1e-9)
        text.append(token)
    assert len(result.logprobs) == 12 and len(result.prompt_logprobs) == 4
    for place, found in enumerate(result.prompt_logprobs, 1):
        assert found.token == prompt[place] and len(found.top) == 2
        assert found.logprob == pytest.approx(logprob(prompt[:place], prompt[place]), abs=1e-9)


def test_logprobs_do_not_depend_on_chunks_company_or_preemption() -> None:
    def run(engine: Engine, alone: bool) -> list:
        handles = [
            engine.submit(
                Request(tuple(range(i, i + 50)), max_tokens=60, logprobs=2, prompt_logprobs=0, ignore_eos=True)
            )
            for i in range(4)
            if not alone or i == 2
        ]
        return [(r.logprobs, r.prompt_logprobs) for r in (h.result() for h in handles)]

    together = run(Engine(FakeDecoder(pages=9), step_tokens=23), alone=False)
    assert together[2] == run(Engine(FakeDecoder()), alone=True)[0]


def test_no_tokens_may_be_asked_for() -> None:
    decoder = FakeDecoder()
    result = Engine(decoder).submit(Request((1, 2, 3), max_tokens=0, prompt_logprobs=0)).result()
    assert result.tokens == () and result.finish_reason == "length" and len(result.prompt_logprobs or ()) == 2
    assert sum(len(step.ids) for step in decoder.steps) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_end_before_the_least_length(temperature: float) -> None:
    ended = 0
    for seed in range(60):
        request = Request((seed % VOCAB,), Sampling(temperature, seed=seed), max_tokens=12, min_tokens=6)
        result = Engine(FakeDecoder()).submit(request).result()
        assert len(result.tokens) >= 6 and EOS not in result.tokens
        ended += result.finish_reason == "stop"
    assert ended


def test_reasoning_ends_when_its_budget_is_used_up() -> None:
    opened, closed = 50, 51
    for budget in (0, 1, 5):
        engine = Engine(FakeDecoder(), FakeTokenizer())
        request = make_request(
            (1, opened), temperature=1.0, seed=1, max_tokens=30, reasoning_budget=budget, ignore_eos=True, logprobs=0
        )
        result = engine.submit(request).result()
        tokens = result.tokens
        assert [found.token for found in result.logprobs or ()] == list(tokens)
        assert closed in tokens[: budget + 1]
        plain = engine.submit(Request((1, opened), Sampling(1.0, seed=1), max_tokens=30, ignore_eos=True)).result()
        assert plain.tokens[:budget] == tokens[:budget]
    with pytest.raises(UnsupportedError, match="needs <think>"):
        Engine(FakeDecoder()).submit(Request((1,), reasoning_budget=3))


def test_the_engine_counts_what_it_does_and_can_be_iterated() -> None:
    engine = Engine(FakeDecoder())
    handles = {engine.submit(Request((i,), max_tokens=5, ignore_eos=True)).key: i for i in range(3)}
    texts: dict[int, list[int]] = {key: [] for key in handles}
    for key, piece in engine:
        texts[key] += piece.tokens
    for key, first in handles.items():
        assert tuple(texts[key]) == expected_tokens(Request((first,), ignore_eos=True), 5)[0]
    stats = engine.stats()
    engine.submit(Request((1,), max_tokens=1, ignore_eos=True))  # begins and ends in one step
    assert [len(piece.tokens) for _, piece in engine] == [1]
    assert (stats.running, stats.waiting, stats.generated_tokens, stats.prompt_tokens) == (0, 0, 15, 3)
    assert stats.pages == stats.free_pages == 64 and stats.steps == 5


def test_a_grammar_that_fails_ends_its_request_and_no_other() -> None:
    engine = Engine(FakeDecoder())
    good, bad = (engine.submit(Request((i,), max_tokens=5, ignore_eos=True)) for i in range(2))
    engine.step()

    class Broken:
        stopped = False

        def forced(self) -> tuple[int, ...]:
            raise GrammarError("grammar", "out of fuel")

    bad._sequences[0].matcher = Broken()  # type: ignore[assignment]
    assert good.result().tokens == expected_tokens(Request((0,), ignore_eos=True), 5)[0]
    with pytest.raises(GrammarError, match="out of fuel"):
        bad.result()
    assert engine.stats().free_pages == engine.stats().pages


def test_a_request_with_higher_priority_starts_first_and_tenants_take_turns() -> None:
    decoder = FakeDecoder()
    engine = Engine(decoder, max_running=1)
    asked = [
        engine.submit(Request((i,), max_tokens=1, priority=p, tenant=t, ignore_eos=True))
        for i, (p, t) in enumerate([(0, "a"), (0, "a"), (0, "b"), (3, "a")])
    ]
    while engine.step():
        pass
    assert [step.ids.tolist() for step in decoder.steps] == [[3], [2], [0], [1]] and all(h.finished for h in asked)


# Models and sessions

CFG = tiny.CONFIGS["llama-full-tied"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("answers"), CFG)


@pytest.fixture
def model(folder: Path) -> weft.Model:
    return weft.load(str(folder))


def ids(count: int) -> list[int]:
    return [int(i) for i in tiny.token_ids(CFG, count)]


def test_a_list_of_prompts_gives_a_list_of_any_length(model: weft.Model) -> None:
    prompts = [ids(3 + i % 40) for i in range(300)]
    results = model.generate(prompts, max_tokens=2, ignore_eos=True)
    assert [r.tokens for r in results[:3]] == [
        model.generate(p, max_tokens=2, ignore_eos=True).tokens for p in prompts[:3]
    ]
    assert len(results) == 300
    pairs = model.generate(prompts[:2], n=2, max_tokens=1, temperature=1.0, seed=1)
    assert [len(several) for several in pairs] == [2, 2]  # type: ignore[arg-type]
    with pytest.raises(InputError):
        model.generate([ids(4), [-1]], max_tokens=2)
    assert model.engine.stats().running == 0


def test_making_an_engine_changes_nothing_and_use_engine_routes_calls_through_it(model: weft.Model) -> None:
    before, plain = model.engine, model.generate(ids(9), max_tokens=4, ignore_eos=True)
    engine = Engine(model, max_running=2, step_tokens=8)
    assert model.engine is before
    assert engine.submit(weft.Request(tuple(ids(9)), max_tokens=4, ignore_eos=True)).result().tokens == plain.tokens
    model.use_engine(engine)
    again = model.generate(ids(9), max_tokens=4, ignore_eos=True)
    assert again.tokens == plain.tokens and model.engine is engine and engine.stats().generated_tokens == 8
    with pytest.raises(InputError, match="another model"):
        model.use_engine(Engine(FakeDecoder()))


def test_an_engine_that_was_refused_leaves_the_model_as_it_was(model: weft.Model) -> None:
    plain = model.generate(ids(9), max_tokens=4, ignore_eos=True)
    with pytest.raises(weft.WeftError):
        weft.Engine(model, prefix_dir="/proc/nope/x")
    assert model.generate(ids(9), max_tokens=4, ignore_eos=True).tokens == plain.tokens


def test_two_engines_of_one_decoder_keep_their_own_pages(model: weft.Model) -> None:
    """A page that one engine keeps and the other takes is forgotten by the one that kept it."""
    first, second = Engine(model), Engine(model)
    prompts = [tuple(ids(200 + i)[i:]) for i in range(8)]
    alone = [model.generate(list(p), max_tokens=3, ignore_eos=True).tokens for p in prompts]
    for _ in range(3):
        for engine in (first, second):
            found = [engine.submit(weft.Request(p, max_tokens=3, ignore_eos=True)).result().tokens for p in prompts]
            assert found == alone


def test_extending_a_session_is_giving_the_whole_prompt(model: weft.Model) -> None:
    text = ids(130)
    session = model.session(max_tokens=10, ignore_eos=True, logprobs=0)
    session.extend(text[:50])
    session.extend(text[50:129])
    branch = session.fork()
    grown = session.generate(text[129:])
    whole = weft.load(str(model.decoder.checkpoint.path)).generate(text, max_tokens=10, ignore_eos=True, logprobs=0)
    assert (grown.tokens, grown.logprobs) == (whole.tokens, whole.logprobs)
    assert grown.usage.cached_tokens == 128 and session.tokens_used == 140
    assert branch.generate(text[129:]).tokens == whole.tokens
    assert sum(len(p.tokens) for p in branch.stream(max_tokens=3)) == 3 and branch.tokens_used == 143
    session.reset()
    with pytest.raises(InputError, match="no text yet"):
        session.generate()


def test_a_session_on_disk_goes_on_where_it_was(model: weft.Model, folder: Path, tmp_path: Path) -> None:
    session = model.session(max_tokens=40, ignore_eos=True)
    session.generate(ids(100))
    expected = session.fork().generate(logprobs=0)
    session.save(tmp_path / "s.weft")
    other = weft.load(str(folder))
    loaded = Session.load(other, tmp_path / "s.weft", max_tokens=40, ignore_eos=True)
    found = loaded.generate(logprobs=0)
    assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)
    assert found.usage.cached_tokens == 128
    f32 = Session.load(weft.load(str(folder), kv_dtype="f16"), tmp_path / "s.weft", max_tokens=1)
    assert f32.generate().usage.cached_tokens == 0  # pages of another kind are not taken


def test_a_file_that_is_no_session_is_named(model: weft.Model, tmp_path: Path) -> None:
    path = tmp_path / "s.weft"
    with pytest.raises(NotFoundError):
        Session.load(model, path)
    model.session(max_tokens=1).save(path)
    good = path.read_bytes()
    for data in (b"", b"x" * 100, good[:-1], good[:20] + b"!" + good[21:]):
        path.write_bytes(data)
        with pytest.raises(FormatError, match=r"s\.weft"):
            Session.load(model, path)
    with pytest.raises(InputError):
        model.session().save(tmp_path / "no" / "folder")


# asyncio


def test_coroutines_share_the_engine() -> None:
    requests = [Request((i,), Sampling(1.0, seed=i), max_tokens=20, n=1 + i % 2, ignore_eos=True) for i in range(12)]

    async def collect(engine: AsyncEngine, request: Request) -> tuple[int, ...]:
        return tuple([t async for piece in engine.stream(request) if piece.index == 0 for t in piece.tokens])

    async def everything() -> tuple[list, list]:
        async with AsyncEngine(Engine(FakeDecoder())) as engine:
            streamed = await asyncio.gather(*(collect(engine, r) for r in requests))
            whole = await asyncio.gather(*(engine.generate_all(r) for r in requests))
        with pytest.raises(BackendError, match="closed"):
            await engine.generate(requests[0])
        return streamed, whole

    streamed, whole = asyncio.run(everything())
    for request, tokens, results in zip(requests, streamed, whole):
        assert tokens == results[0].tokens == expected_tokens(request, 20)[0] and len(results) == request.n


def test_a_cancelled_coroutine_cancels_its_request() -> None:
    decoder = FakeDecoder(eos_ids=frozenset(), max_context=60_000, pages=2_000)
    inner = Engine(decoder, max_waiting=3)

    async def everything() -> None:
        async with AsyncEngine(inner) as engine:
            task = asyncio.create_task(engine.generate(Request((1,))))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for _ in engine.stream(Request((2,))):
                break
            for _ in range(2_000):
                if inner.stats().running == 0 and inner.stats().free_pages == 2_000:
                    break
                await asyncio.sleep(0.01)
            assert inner.stats().running == 0 and inner.stats().free_pages == 2_000
            with pytest.raises(InputError):
                await engine.generate(Request((VOCAB,)))
            hopeless = [engine.generate(Request((i % VOCAB,), max_tokens=50_000)) for i in range(80)]
            results = await asyncio.wait_for(_first_refusal(hopeless), 20)
            assert isinstance(results, BusyError)

    asyncio.run(everything())


async def _first_refusal(coroutines: list) -> BaseException | None:
    tasks = [asyncio.create_task(c) for c in coroutines]
    done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    return next((task.exception() for task in done), None)


def test_flat_options_reach_the_request() -> None:
    request = make_request([1], temperature=0.5, typical_p=0.9, n=2, logprobs=1, tenant="t", logit_bias={"3": -1})
    assert (request.n, request.logprobs, request.tenant) == (2, 1, "t")
    assert request.sampling.logit_bias == {3: -1.0} and math.isclose(request.sampling.typical_p, 0.9)


def test_prompt_logprobs_may_begin_later_and_pages_before_are_shared() -> None:
    prompt = tuple(token % VOCAB for token in range(5, 5 + 3 * PAGE_TOKENS))
    whole = Engine(FakeDecoder()).submit(Request(prompt, max_tokens=0, prompt_logprobs=1)).result().prompt_logprobs
    assert whole is not None and len(whole) == len(prompt) - 1
    engine = Engine(FakeDecoder())
    for first in (1, 2, PAGE_TOKENS, 2 * PAGE_TOKENS + 1, len(prompt) - 1, len(prompt), len(prompt) + 9):
        late = Request(prompt, max_tokens=2, prompt_logprobs=1, prompt_logprobs_from=first, ignore_eos=True)
        result = engine.submit(late).result()
        assert result.prompt_logprobs == whole[first - 1 :]
        assert result.usage.cached_tokens == (min(first, len(prompt)) - 1) // PAGE_TOKENS * PAGE_TOKENS
        assert result.tokens == expected_tokens(Request(prompt, ignore_eos=True), 2)[0]


def test_only_the_rows_of_prompt_logprobs_that_are_told_are_computed() -> None:
    decoder = FakeDecoder()
    Engine(decoder).submit(
        Request(tuple(range(1, 40)), max_tokens=0, prompt_logprobs=0, prompt_logprobs_from=30)
    ).result()
    assert sum(len(step.rows) for step in decoder.steps) == 10  # after the tokens 29 to 38
