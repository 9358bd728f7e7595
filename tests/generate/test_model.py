"""The public model on a tiny checkpoint: every call goes through the one engine, and bad input is named."""

import json
from pathlib import Path

import numpy as np
import pytest
import tiny

import weft
from weft.errors import InputError, NotFoundError, TooLongError, UnsupportedError

CFG = tiny.CONFIGS["llama-full-tied"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tmp_path_factory.mktemp("model"), CFG)


@pytest.fixture(scope="module")
def model(folder: Path) -> weft.Model:
    return weft.load(str(folder))


def test_greedy_tokens_are_the_best_logits(model: weft.Model) -> None:
    ids = [int(i) for i in tiny.token_ids(CFG, 9)]
    tokens = list(model.generate(ids, max_tokens=12, ignore_eos=True).tokens)
    for step in range(12):
        assert tokens[step] == int(model.logits(ids + tokens[:step])[-1].argmax())


def test_pieces_join_to_the_generation(model: weft.Model) -> None:
    ids = [int(i) for i in tiny.token_ids(CFG, 5)]
    options = {"max_tokens": 20, "temperature": 0.9, "top_k": 20, "seed": 3, "ignore_eos": True}
    whole = model.generate(ids, **options)
    pieces = list(model.stream(ids, **options))
    assert tuple(token for piece in pieces for token in piece.tokens) == whole.tokens
    assert pieces[-1].finish_reason == whole.finish_reason == "length"
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.seed) == (5, 20, 3)


def test_a_checkpoint_without_tokenizer_files_takes_ids_only(model: weft.Model) -> None:
    with pytest.raises(NotFoundError, match="no tokenizer files"):
        model.generate("some text")
    with pytest.raises(NotFoundError, match="no tokenizer files"):
        model.chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("ids", [[], [-1], [101], [0.5], ["a"]])
def test_ids_that_are_none_are_named(model: weft.Model, ids: list) -> None:
    with pytest.raises(weft.WeftError):
        model.generate(ids, max_tokens=1)
    with pytest.raises(weft.WeftError):
        model.logits(ids)
    assert model.decoder.pages.free_count == model.decoder.pages.count


def test_a_prompt_past_the_context_says_the_numbers(folder: Path) -> None:
    short = weft.load(str(folder), context=32)
    with pytest.raises(TooLongError, match="40 tokens, the context leaves room for 31"):
        short.generate([1] * 40, max_tokens=1)
    assert short.generate([1] * 40, max_tokens=4, truncate="left").usage.truncated_tokens > 0
    with pytest.raises(TooLongError, match="40 tokens exceed the context of 32"):
        short.logits([1] * 40)


@pytest.mark.parametrize("options", [{"context": 0}, {"context": 1 << 20}, {"compute": "fp8"}, {"kv_dtype": "q4_0"}])
def test_options_that_cannot_be_are_named(folder: Path, options: dict) -> None:
    with pytest.raises((InputError, UnsupportedError), match=str(next(iter(options.values())))):
        weft.load(str(folder), **options)


def test_an_encoder_is_not_generated_from(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"weft\.Embedder"):
        weft.load(str(tiny.write_folder(tmp_path / "bert", tiny.CONFIGS["bert"])))


def change(folder: Path, **values: object) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


@pytest.mark.parametrize(
    "values, said",
    [
        ({"model_type": "gpt_bigcode"}, "gpt_bigcode"),
        ({"hidden_act": "swish9"}, "swish9"),
        ({"rope_scaling": {"rope_type": "moon", "factor": 2.0}}, "moon"),
        ({"num_hidden_layers": 5000}, "num_hidden_layers"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"hidden_size": 64}, "the model wants"),
        ({"num_hidden_layers": 3}, r"layers\.2\.\S+ is missing"),
        ({"rms_norm_eps": float("inf")}, "config.json|rms_norm_eps"),
    ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path: Path, values: dict, said: str) -> None:
    with pytest.raises(weft.WeftError, match=said):
        weft.load(str(change(tiny.write_folder(tmp_path / "model", CFG), **values)))


def test_logits_are_float32_for_every_token(model: weft.Model) -> None:
    logits = model.logits(tiny.token_ids(CFG, 7))
    assert (logits.shape, logits.dtype) == ((7, CFG["vocab_size"]), np.float32)
