"""A model's own head for multi-token prediction drafts well, and no text is other than without it.

The model is a tiny Qwen3.5 that tests/golden/models/train_mtp.py trained on a small language.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import tiny_head
from soaking import times
from tiny_gguf import gguf_from_config, gguf_tensors

import weft
from weft.errors import InputError, UnsupportedError
from weft.generate import Engine, Request, Sampling
from weft.generate.choice.drafts import PromptLookup
from weft.runtime import Decoder, open_checkpoint
from weft.runtime.steps import build_step
from weft.weights import TensorView, write_gguf

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "models"
sys.path.insert(0, str(GOLDEN))
from mtp_language import CONFIG, text  # noqa: E402


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "mtp.npz") as stored:
        return {name: stored[name].astype(np.float32) for name in stored.files}


@pytest.fixture(scope="module")
def folder(golden: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Path:
    weights = {name: value for name, value in golden.items() if not name.startswith("golden.")}
    return tiny.write_folder(tmp_path_factory.mktemp("mtp"), CONFIG, weights)


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return Decoder(open_checkpoint(folder), context=8192)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Engine:
    return Engine(Decoder(open_checkpoint(folder), context=8192, draft_head=False), prefix_cache=False, speculate=False)


@pytest.fixture
def only_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else drafts."""
    monkeypatch.setattr(PromptLookup, "propose", lambda self, count: [])


def eager(engine: Engine, share: float = 0.3) -> Engine:
    """An engine that takes drafting to be cheap, whatever this machine is busy with."""
    engine._costs.marginal_share = lambda tokens, drafting=0.0: share  # type: ignore[method-assign]
    return engine


def asked(seed: int, count: int, length: int = 40, **options: Any) -> Request:
    prompt = tuple(text(np.random.default_rng(seed), length))
    return Request(prompt, max_tokens=count, ignore_eos=True, logprobs=1, **options)


def same(engine: Engine, plain: Engine, requests: list[Request]) -> None:
    """All texts and the bits of their log probabilities are those of plain decoding."""
    results = [handle.result() for handle in [engine.submit(request) for request in requests]]
    for result, request in zip(results, requests):
        alone = plain.submit(request).result()
        assert (result.tokens, result.logprobs) == (alone.tokens, alone.logprobs)


def test_head_and_trunk_agree_with_the_model_that_was_trained(decoder: Decoder, golden: dict[str, np.ndarray]) -> None:
    ids = golden["golden.ids"].astype(np.int32)
    count = len(ids) - 2
    holding = decoder.holding()
    assert holding.grow(len(ids))
    holding.ready()
    step = build_step(
        [ids[:-1]], starts=[0], asked=[len(ids) - 1], pages=[holding.row], slots=[holding.slots or (-1, 0)]
    )
    logits, hidden = decoder.run_hidden(step)
    np.testing.assert_allclose(logits, golden["golden.logits"], atol=2e-4)
    found = []
    for first in range(0, count, 30):  # in chunks, and the same as at once
        part = slice(first, min(first + 30, count))
        chunk = ids[part.start + 1 : part.stop + 1]
        step = build_step([chunk], starts=[first], asked=[len(chunk)], pages=[holding.row], vectors=hidden[part])
        found.append(decoder.draft(step)[0])
    np.testing.assert_allclose(np.concatenate(found), golden["golden.mtp_logits"], atol=2e-4)
    holding.release()


@pytest.mark.soak
@pytest.mark.usefixtures("only_head")
def test_most_drafts_are_right_and_no_token_is_other_than_without(decoder: Decoder, plain: Engine) -> None:
    engine = eager(Engine(decoder, prefix_cache=False))
    total = times(10_000, 600)
    same(engine, plain, [asked(seed, 300) for seed in range(total // 300 + 1)])
    stats = engine.stats()
    assert stats.generated_tokens >= total
    assert stats.drafted_tokens > 0.4 * stats.generated_tokens and stats.accepted_tokens > 0.5 * stats.drafted_tokens
    assert stats.free_pages == stats.pages and stats.free_slots == stats.slots


@pytest.mark.usefixtures("only_head")
def test_wrong_drafts_are_rolled_back(
    folder: Path, golden: dict[str, np.ndarray], plain: Engine, tmp_path: Path
) -> None:
    """A head that is wrong half of the time: pages, slots and texts are those of plain decoding."""
    rng = np.random.default_rng(0)
    weights = {name: value for name, value in golden.items() if not name.startswith("golden.")}
    weights["mtp.fc.weight"] = weights["mtp.fc.weight"] + rng.normal(0, 0.1, weights["mtp.fc.weight"].shape).astype(
        "f4"
    )
    worse = Decoder(open_checkpoint(tiny.write_folder(tmp_path, CONFIG, weights)), context=8192)
    engine = eager(Engine(worse, step_tokens=64), 0.02)
    same(engine, plain, [asked(seed, 80, sampling=Sampling(0.8 * (seed % 2), seed=seed)) for seed in range(6)])
    stats = engine.stats()
    assert stats.drafted_tokens - stats.accepted_tokens > 60 and stats.accepted_tokens > 60
    assert stats.free_pages == stats.pages and stats.free_slots == stats.slots


@pytest.mark.usefixtures("only_head")
def test_shared_prefixes_preemption_and_restarts_keep_drafting(folder: Path, plain: Engine, tmp_path: Path) -> None:
    accepted = []
    for _ in range(2):
        small = Decoder(open_checkpoint(folder), context=512, kv_tokens=512)
        engine = eager(Engine(small, step_tokens=64, prefix_dir=tmp_path))
        begun = tuple(text(np.random.default_rng(3), 200))
        requests = [
            Request((*begun, *text(np.random.default_rng(seed), 20)), max_tokens=90, ignore_eos=True, logprobs=1)
            for seed in range(4)
        ]
        same(engine, plain, requests)
        engine.close()
        stats = engine.stats()
        accepted.append(stats.accepted_tokens / stats.drafted_tokens)
        assert stats.cached_tokens and stats.drafted_tokens > 60
    assert min(accepted) > 0.5 and engine.preemptions


def test_a_head_that_is_no_use_is_left_alone(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which a step of the model takes 10 ms and 1 ms a token, and one of the head 1 ms: useless drafts
    cost less than two hundredths, good ones pay."""
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(PromptLookup, "propose", lambda self, count: [])
    run, run_hidden, draft = decoder.run, decoder.run_hidden, decoder.draft

    def timed(kind: Any, base: float, wrong: bool = False) -> Any:
        def call(step: Any) -> Any:
            now[0] += base + 1e-3 * len(step.ids)
            found = kind(step)
            return (np.roll(found[0], 7, axis=1), found[1]) if wrong else found

        return call

    took, texts = {}, set()
    for case in ("plain", "useless", "good"):
        monkeypatch.setattr(decoder, "run", timed(run, 10e-3))
        monkeypatch.setattr(decoder, "run_hidden", timed(run_hidden, 10e-3))
        monkeypatch.setattr(decoder, "draft", timed(draft, 0.0, wrong=case == "useless"))
        engine = Engine(decoder, prefix_cache=False, draft="none" if case == "plain" else "mtp")
        before = now[0]
        texts.add(engine.submit(asked(1, 600)).result().tokens)
        took[case] = now[0] - before
    assert len(texts) == 1
    assert took["useless"] < took["plain"] / 0.98 and took["good"] < 0.7 * took["plain"]


def test_the_head_is_used_where_it_is_and_as_asked(folder: Path, tmp_path: Path) -> None:
    prompt = text(np.random.default_rng(5), 50)
    drafted = {}
    for draft in (None, "mtp", "none", str(folder)):
        model = weft.load(str(folder), draft=draft)
        eager(model.engine)
        result = model.generate(prompt, max_tokens=60, ignore_eos=True)
        drafted[draft] = (result.usage.accepted_tokens, result.tokens)
    assert len({tokens for _, tokens in drafted.values()}) == 1
    assert drafted[None][0] > 30 and drafted["mtp"][0] > 30 and drafted[str(folder)][0] > 30
    headless = tiny.write_folder(tmp_path, {**tiny.CONFIGS["qwen3_5_text"]})
    assert not weft.load(str(headless)).decoder.has_draft_head
    with pytest.raises(UnsupportedError, match="no head for multi-token prediction"):
        weft.load(str(headless), draft="mtp")
    with pytest.raises(InputError, match="must be a model"):
        Engine(Decoder(open_checkpoint(headless)), draft="eagle")


def test_the_head_of_a_model_with_images_is_found_and_the_reference_agrees(
    golden: dict[str, np.ndarray], decoder: Decoder, tmp_path: Path
) -> None:
    nested = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"], "text_config": CONFIG}
    named = {name.replace("model.", "model.language_model.", 1): value for name, value in golden.items()}
    weights = {name: value for name, value in named.items() if not name.startswith("golden.")}
    folder = tiny.write_folder(tmp_path, {**nested, "tie_word_embeddings": True}, weights)
    reference = Decoder(open_checkpoint(folder), context=256, backend="reference")
    assert reference.has_draft_head
    ids = golden["golden.ids"].astype(np.int32)[:40]
    np.testing.assert_allclose(drafted(reference, ids), drafted(decoder, ids), atol=2e-4)


def drafted(model: Decoder, ids: np.ndarray) -> np.ndarray:
    """The head's logits for all tokens but the last."""
    holding = model.holding()
    assert holding.grow(len(ids))
    holding.ready()
    given: dict[str, Any] = {"starts": [0], "pages": [holding.row]}
    _, hidden = model.run_hidden(build_step([ids], asked=[1], slots=[holding.slots or (-1, 0)], **given))
    step = build_step([ids[1:]], asked=[len(ids) - 1], vectors=hidden[:-1], **given)
    logits = model.draft(step)[0]
    holding.release()
    return logits


@pytest.mark.parametrize("name", tiny_head.CONFIGS)
def test_the_layer_of_a_head_may_have_experts(tmp_path: Path, name: str) -> None:
    """In a folder and in a GGUF file, where the head is one more layer."""
    cfg = tiny_head.CONFIGS[name]
    with np.load(GOLDEN / "mtp-experts.npz") as stored:
        want = stored[name]
    ids, weights = tiny.token_ids(cfg, tiny_head.LENGTH)[:-1], tiny_head.weights(cfg)
    decoder = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "folder", cfg, weights)))
    found = drafted(decoder, ids)
    np.testing.assert_allclose(found, want, atol=2e-4)
    file = Decoder(open_checkpoint(written(tmp_path / "m.gguf", cfg, weights)), kv_dtype="f32")
    np.testing.assert_array_equal(drafted(file, ids), found)


def written(path: Path, config: dict[str, Any], weights: dict[str, np.ndarray], **more: np.ndarray) -> Path:
    views = {name: TensorView.of(value) for name, value in weights.items()}
    write_gguf(path, {**gguf_tensors(config, views), **more}, gguf_from_config(config))
    return path


def test_the_head_of_a_gguf_file_drafts(folder: Path, decoder: Decoder, tmp_path: Path) -> None:
    """It is the layer after the last, with tensors that begin with nextn."""
    weights = {name: tensor.numpy() for name, tensor in open_checkpoint(folder).tensors.items()}
    path = written(tmp_path / "m.gguf", CONFIG, weights)
    opened = open_checkpoint(path)
    assert opened.config["num_hidden_layers"] == 4 and "mtp.fc.weight" in opened.tensors
    file, ids = Decoder(opened, context=8192, kv_dtype="f32"), np.array(text(np.random.default_rng(7), 60), np.int32)
    assert file.has_draft_head
    np.testing.assert_array_equal(drafted(file, ids), drafted(decoder, ids))
    model = weft.load(str(path))
    eager(model.engine)
    result = model.generate(text(np.random.default_rng(5), 50), max_tokens=60, ignore_eos=True)
    assert result.usage.accepted_tokens > 30


def test_a_head_of_another_form_is_not_read(folder: Path, tmp_path: Path) -> None:
    """One with an embedding of its own: the model runs without its head."""
    weights = {name: tensor.numpy() for name, tensor in open_checkpoint(folder).tensors.items()}
    table = {"blk.4.nextn.embed_tokens.weight": weights["model.embed_tokens.weight"]}
    path = written(tmp_path / "m.gguf", CONFIG, weights, **table)
    assert not Decoder(open_checkpoint(path)).has_draft_head
