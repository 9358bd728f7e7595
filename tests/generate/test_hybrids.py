"""Real hybrids (attention beside recurrent layers) share, save, restart and draft as models with attention alone do.

Every result is compared with a cold run of the same request: tokens, and the bits of their log probabilities.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import weft
from weft.generate import Engine, Request, Session
from weft.generate.result import Generation
from weft.runtime import Decoder, open_checkpoint

HYBRIDS = ("lfm2", "qwen3_5_text")
CONTEXT = 2_304


def config(name: str) -> dict[str, Any]:
    return {**tiny.CONFIGS[name], "max_position_embeddings": CONTEXT}


@pytest.fixture(scope="module", params=HYBRIDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp(request.param), config(request.param))


@pytest.fixture(scope="module")
def cold(folder: Path) -> Engine:
    """An engine that shares, keeps and drafts nothing."""
    return Engine(Decoder(open_checkpoint(folder)), prefix_cache=False, speculate=False)


def prompt(length: int, seed: int = 1) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, 59, length).tolist())


def asked(tokens: tuple[int, ...], count: int = 8, **options: Any) -> Request:
    return Request(tokens, max_tokens=count, ignore_eos=True, logprobs=2, **options)


def same(result: Generation, cold: Engine, request: Request) -> bool:
    alone = cold.submit(request).result()
    return (result.tokens, result.logprobs) == (alone.tokens, alone.logprobs)


def test_a_prefix_of_two_thousand_tokens_is_computed_once_for_sixteen_requests(folder: Path, cold: Engine) -> None:
    engine = Engine(Decoder(open_checkpoint(folder)))
    requests = [asked((*prompt(2_000), *prompt(9, seed=i)), 3) for i in range(16)]
    results = [handle.result() for handle in [engine.submit(request) for request in requests]]
    assert [r.usage.cached_tokens for r in results] == [0] + [1984] * 15
    for index in (0, 1, 15):
        assert same(results[index], cold, requests[index])
    stats = engine.stats()
    assert 0 < stats.checkpoints < 16 and stats.free_slots == stats.slots


def test_turns_go_on_where_the_last_one_ended_also_after_preemption(folder: Path, cold: Engine) -> None:
    decoder = Decoder(open_checkpoint(folder), context=640, kv_tokens=640)
    engine = Engine(decoder, step_tokens=96)
    texts = [prompt(90, seed=seed) for seed in range(3)]
    for _ in range(2):
        requests = [asked(text, 140) for text in texts]
        results = [handle.result() for handle in [engine.submit(request) for request in requests]]
        assert all(same(result, cold, request) for result, request in zip(results, requests))
        texts = [(*text, *result.tokens, 1, 2, 3) for text, result in zip(texts, results)]
    assert engine.preemptions
    alone = engine.submit(asked(texts[-1], 40)).result()
    assert alone.usage.cached_tokens >= 224 and same(alone, cold, asked(texts[-1], 40))


def test_a_restart_is_warm_and_equal(folder: Path, cold: Engine, tmp_path: Path) -> None:
    request, cached = asked(prompt(500), 100), []
    for _ in range(2):
        engine = Engine(Decoder(open_checkpoint(folder)), prefix_dir=tmp_path)
        result = engine.submit(request).result()
        following = asked((*request.prompt, *result.tokens, 3), 5)
        second = engine.submit(following).result()
        engine.close()
        cached.append((result.usage.cached_tokens, second.usage.cached_tokens))
        assert same(result, cold, request) and same(second, cold, following)
    assert cached == [(0, 576), (480, 576)]


def test_sessions_are_saved_forked_and_rewound(folder: Path, cold: Engine, tmp_path: Path) -> None:
    options: dict[str, Any] = {"ignore_eos": True, "logprobs": 2}
    session = weft.load(str(folder)).session(**options)
    session.generate(prompt(300), max_tokens=100)
    session.save(tmp_path / "text.session")
    loaded = Session.load(weft.load(str(folder)), tmp_path / "text.session", **options)
    for other in (loaded, session.fork()):
        tokens = (*other.tokens, 5)
        result = other.generate([5], max_tokens=20)
        assert result.usage.cached_tokens == 384 and same(result, cold, asked(tokens, 20))
    session.rewind(100)
    assert session.tokens == list(prompt(300))
    result = session.generate([7], max_tokens=9)
    assert result.usage.cached_tokens == 288 and same(result, cold, asked((*prompt(300), 7), 9))
    with pytest.raises(weft.errors.InputError, match="must be 0 to 310"):
        session.rewind(311)


@pytest.mark.parametrize("drafter", ["itself", "llama", "text"])
def test_hybrids_draft_and_are_drafted_for(folder: Path, cold: Engine, drafter: str, tmp_path: Path) -> None:
    engine: Engine
    if drafter == "itself":  # right until it is wrong by design: another context of other weights
        weights = {name: value * np.float32(1.02) for name, value in tiny.weights(_config(folder)).items()}
        small = tiny.write_folder(tmp_path / "draft", _config(folder), weights)
        engine = Engine(Decoder(open_checkpoint(folder)), draft=Decoder(open_checkpoint(small)))
    elif drafter == "llama":
        small = tiny.write_folder(tmp_path / "draft", {**tiny.LLAMA, "vocab_size": _config(folder)["vocab_size"]})
        engine = Engine(Decoder(open_checkpoint(folder)), draft=Decoder(open_checkpoint(small)))
    else:
        engine = Engine(Decoder(open_checkpoint(folder)))
    engine._costs.marginal_share = lambda tokens, drafting=0.0: 0.02  # type: ignore[method-assign]
    repeats = prompt(12) * 8
    requests = [asked((*repeats, seed), 60) for seed in range(3)]
    results = [handle.result() for handle in [engine.submit(request) for request in requests]]
    assert all(same(result, cold, request) for result, request in zip(results, requests))
    stats = engine.stats()
    assert stats.drafted_tokens > 5 and stats.free_slots == stats.slots
    assert drafter != "itself" or stats.accepted_tokens > 30


def _config(folder: Path) -> dict[str, Any]:
    return dict(open_checkpoint(folder).config)
