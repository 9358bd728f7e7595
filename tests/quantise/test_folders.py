"""Folders as GGUF files: weft computes the same bits from both, llama.cpp the same ids and logits."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.errors import UnsupportedError
from weft.models import model_module
from weft.quantise import Quantising
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.text import Tokenizer
from weft.text.words.gguf_words import gguf_vocabulary
from weft.weights import open_gguf, open_safetensors

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "models"))
import tiny  # noqa: E402

_spec = importlib.util.spec_from_file_location("make_folders", TESTS / "golden" / "quantise" / "make_folders.py")
assert _spec and _spec.loader
maker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(maker)
GGML = dict(np.load(TESTS / "golden" / "quantise" / "folders.npz"))
WRITTEN = {name: cfg for name, cfg in tiny.CONFIGS.items() if model_module(cfg["model_type"]).GGUF is not None}
# What GGUF has no words for, and the same model without it.
CHANGED = {
    "llama-dynamic-rope": {"rope_scaling": None, "max_position_embeddings": 640},
    "qwen2-window-tied": {"use_sliding_window": False},
    "mistral": {"sliding_window": None},
    "gemma2-listed-bias": {**tiny.CONFIGS["gemma2"], "layer_types": None, "attention_bias": False},
    "bert-tanh": {"hidden_act": "gelu"},
    "gemma3_text-both-ways": {"use_bidirectional_attention": None, "architectures": ["Gemma3ForCausalLM"]},
    **{name: changes for script in tiny.SCRIPTS.values() for name, (_, changes) in script.UNWRITABLE.items()},
}


def outputs(path: Path) -> np.ndarray:
    """Logits of a decoder, hidden states of an encoder."""
    checkpoint = open_checkpoint(path)
    ids = np.arange(60) * 7 % checkpoint.config["vocab_size"]
    if model_module(checkpoint.model_type).KIND == "encoder":
        return Encoder(checkpoint, Head("mean")).hidden_states(ids)
    return Decoder(checkpoint, compute="f32", kv_dtype="f32").logits(ids)


@pytest.mark.parametrize("name", WRITTEN)
def test_weft_computes_the_same_bits_from_a_folder_and_its_gguf(name: str, tmp_path: Path) -> None:
    cfg = {**WRITTEN[name], **CHANGED.get(name, {})}
    first = tiny.first_nomic(cfg) if cfg["model_type"] == "nomic_bert" else (cfg,)  # the names of published files
    folder = tiny.write_folder(tmp_path / "model", *first)
    list(Quantising(folder, tmp_path / "out.gguf", type="f32"))
    assert np.array_equal(outputs(tmp_path / "out.gguf"), outputs(folder))


@pytest.mark.parametrize("name", maker.CASES)
def test_llama_cpp_reads_the_same_ids_and_logits(name: str, tmp_path: Path) -> None:
    maker.write_folder(tmp_path / "model", name)
    list(Quantising(tmp_path / "model", tmp_path / "out.gguf", type="f32"))
    folder, written = (open_checkpoint(tmp_path / part) for part in ("model", "out.gguf"))
    ids = maker.ids_of(lambda text: written.tokenizer().encode(text, parse_special=True))
    assert ids == maker.ids_of(lambda text: folder.tokenizer().encode(text, parse_special=True))
    assert ids == GGML[f"{name}/ids"].tolist()
    found = Decoder(written, compute="f32", kv_dtype="f32").logits(np.asarray(ids[: maker.LENGTH]))
    wanted = GGML[f"{name}/logits"]
    assert np.abs(wanted).max() > 0.3 and np.abs(found - wanted).max() <= 5e-4 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize(
    "name", ["falcon", "gpt2", "llama2", "llama3", "mistral", "nemo", "smollm", "unigram", "word_piece"]
)
def test_vocabularies_split_texts_as_the_folder_does(name: str, tmp_path: Path) -> None:
    golden = json.loads((TESTS / "golden" / "text" / f"{name}.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(maker.plain_tokenizer(name)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(maker.NAMED.get(name, {})))
    own = Tokenizer.from_file(tmp_path)
    metadata = gguf_vocabulary(tmp_path, own.vocab_size + 5)
    made = Tokenizer.from_gguf(metadata)
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == own.vocab_size + 5
    for case in golden["cases"]:
        text = case["text"] if isinstance(case, dict) else case[0]
        if (name in ("mistral", "unigram") and text.startswith(" ")) or max(map(len, text.split()), default=0) > 40:
            continue  # see gguf_words._same; the golden's WordPiece cuts no longer words
        assert made.encode(text) == own.encode(text), text
    with pytest.raises(UnsupportedError, match="more than the embedding has rows"):
        gguf_vocabulary(tmp_path, own.vocab_size - 1)


def test_settings_template_and_types_travel_along(tmp_path: Path) -> None:
    maker.write_folder(tmp_path / "model", "llama3")
    config = json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())
    config["chat_template"] = "{{ messages }}"
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    list(Quantising(tmp_path / "model", tmp_path / "out.gguf", type="q8_0"))
    made = open_checkpoint(tmp_path / "out.gguf")
    assert made.chat_template == "{{ messages }}" and made.metadata.get_str("general.name") == "model"
    tokenizer, own = made.tokenizer(), open_checkpoint(tmp_path / "model").tokenizer()
    assert (tokenizer.bos_id, tokenizer.eos_id) == (own.bos_id, own.eos_id) != (None, None)
    types = {view.dtype.name for view in open_gguf(tmp_path / "out.gguf").tensors.values() if len(view.shape) < 2}
    assert types == {"f32"}
    said = json.loads((tmp_path / "out.gguf.json").read_text())
    assert len(said["source"]) == 64 and said["type"] == "q8_0"
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    list(Quantising(tmp_path / "model", tmp_path / "other.gguf", type="q8_0"))
    assert json.loads((tmp_path / "other.gguf.json").read_text())["source"] != said["source"]


def test_halves_become_f32_where_readers_want_it(tmp_path: Path) -> None:
    from weft.weights import TensorView, quantise, write_safetensors

    maker.write_folder(tmp_path / "model", "qwen2")
    views = open_safetensors(tmp_path / "model" / "model.safetensors").tensors
    halves = {name: quantise(view.numpy(), "bf16") for name, view in views.items()}
    write_safetensors(tmp_path / "bf16.safetensors", halves)
    (tmp_path / "bf16.safetensors").rename(tmp_path / "model" / "model.safetensors")
    list(Quantising(tmp_path / "model", tmp_path / "out.gguf", type="bf16"))
    for name, view in open_gguf(tmp_path / "out.gguf").tensors.items():
        assert isinstance(view, TensorView) and view.dtype.name == ("bf16" if len(view.shape) > 1 else "f32"), name
    assert np.array_equal(outputs(tmp_path / "out.gguf"), outputs(tmp_path / "model"))


def test_folders_that_gguf_has_no_words_for_are_refused(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "tanh", tiny.CONFIGS["bert-tanh"])
    with pytest.raises(UnsupportedError, match="the activation gelu_new"):
        Quantising(folder, tmp_path / "out.gguf", type="f16")
    from tiny_st import write_st_folder

    with pytest.raises(UnsupportedError, match="dense layers"):
        Quantising(write_st_folder(tmp_path / "dense"), tmp_path / "out.gguf", type="f16")
    maker.write_folder(tmp_path / "model", "smollm")
    content = json.loads((tmp_path / "model" / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "e"}, "content": "x"}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedError, match="no words for"):
        Quantising(tmp_path / "model", tmp_path / "out.gguf", type="f16")
