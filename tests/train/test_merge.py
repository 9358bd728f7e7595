"""Merged models compute what the base with its adapter does, in every format, and keep everything else as it was."""

import json

import numpy as np
import pytest
import tiny
from tiny_chat import CONFIG, byte_tokens, write_chat_model

from weft import train
from weft.errors import InputError
from weft.runtime import Decoder, open_checkpoint
from weft.train.merge import merge
from weft.weights import open_gguf, open_safetensors, quantise, write_gguf

WIDE = {
    **CONFIG,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 8,
    "vocab_size": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
IDS = np.arange(40, dtype=np.int32) * 7 % 250


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder with a token per byte; all rows are whole blocks of 32."""
    folder = tiny.write_folder(tmp_path_factory.mktemp("base") / "model", WIDE)
    vocabulary = {token: id for id, token in enumerate(byte_tokens())}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    made = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


@pytest.fixture(scope="module")
def quantised(tmp_path_factory):
    """A GGUF file whose matrices are q4_1, with the rows of queries and keys in its own order."""
    path = tmp_path_factory.mktemp("quantised") / "tiny.gguf"
    write_chat_model(path)
    opened = open_gguf(path)
    kept = {name: view.numpy() for name, view in opened.tensors.items()}
    metadata = {key: value for key, value in opened.metadata.stored().items()}
    rng = np.random.default_rng(0)
    sizes = {"embedding_length": 64, "feed_forward_length": 96, "attention.head_count": 8}
    metadata.update({f"llama.{key}": value for key, value in sizes.items()})
    made = {}
    for name, value in kept.items():
        shape = tuple({48: 64, 80: 96}.get(size, size) for size in value.shape)
        values = rng.standard_normal(shape).astype(np.float32) / np.sqrt(shape[-1]).astype(np.float32)
        whole = len(shape) > 1 and "token_embd" not in name
        made[name] = quantise(values, "q4_1") if whole else (values if len(shape) > 1 else np.ones(shape, np.float32))
    write_gguf(path, made, metadata)
    return path


def adapter_of(model, output):
    rows = [{"text": f"the {word} of {word}s"} for word in ("king", "cat", "hand")]
    training = train.lora(model, rows, output=output, rate=0.02, steps=6, rank=4)
    list(training)
    return output


def logits(path, adapter=None, **options):
    decoder = Decoder(open_checkpoint(path), context=64, compute="f32", kv_dtype="f32", **options)
    loaded = None if adapter is None else decoder.adapters.load("a", adapter)
    return decoder.logits(IDS, adapter=loaded)


@pytest.mark.parametrize("kind, most", [("f32", 1e-5), ("f16", 2e-3), ("q8_0", 3e-2)])
def test_a_merged_file_is_the_base_with_its_adapter(quantised, tmp_path, kind, most):
    adapter = adapter_of(quantised, tmp_path / "a")
    found = merge(quantised, adapter, tmp_path / "m.gguf", type=kind, max_loss=0.05)
    assert found.base.loss > found.adapted.loss + 0.5 and abs(found.lost) <= 0.05
    wanted = logits(quantised, adapter)
    off = np.linalg.norm(logits(tmp_path / "m.gguf") - wanted) / np.linalg.norm(wanted)
    assert off <= most < np.linalg.norm(logits(quantised) - wanted) / np.linalg.norm(wanted)
    before, after = open_gguf(quantised), open_gguf(tmp_path / "m.gguf")
    assert {name: view.dtype.name for name, view in after.tensors.items()} == {
        name: kind if len(view.shape) > 1 else "f32" for name, view in before.tensors.items()
    } | ({"output.weight": "q4_1"})  # not adapted, and quantised already
    stored = after.metadata.stored()
    assert stored.pop("general.file_type") is not None
    assert {**before.metadata.stored(), "general.file_type": 0}.keys() - {"general.file_type"} == stored.keys()


def test_modules_that_were_trained_in_full_are_merged(quantised, tmp_path):
    """The table of tokens too, where it is not the head."""
    rows = [{"text": f"the {number} kings"} for number in range(8)]
    whole = {"modules_to_save": ["embed_tokens", "v_proj"], "rate": 0.01, "steps": 3}
    list(train.lora(quantised, rows, output=tmp_path / "a", **whole))
    found = merge(quantised, tmp_path / "a", tmp_path / "m.gguf", type="f32", max_loss=0.001)
    wanted = logits(quantised, tmp_path / "a")
    assert abs(found.lost) <= 0.001
    assert np.linalg.norm(logits(tmp_path / "m.gguf") - wanted) / np.linalg.norm(wanted) <= 1e-5


def test_a_type_that_loses_the_adapter_is_refused(quantised, tmp_path):
    adapter = adapter_of(quantised, tmp_path / "a")
    with pytest.raises(InputError, match=r"loss is 0\.\d+ above the adapter's, more than 1e-06 \(base .*wider --type"):
        merge(quantised, adapter, tmp_path / "m.gguf", max_loss=1e-6)
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".*"))


def test_a_merged_folder_keeps_its_other_files(folder, tmp_path):
    adapter = adapter_of(folder, tmp_path / "a")
    found = merge(folder, adapter, tmp_path / "m", max_loss=0.001, data=[{"text": "the king of kings"}])
    assert abs(found.lost) <= 0.001
    wanted = logits(folder, adapter)
    assert np.linalg.norm(logits(tmp_path / "m") - wanted) / np.linalg.norm(wanted) <= 1e-5
    assert {path.name for path in (tmp_path / "m").iterdir()} == {path.name for path in folder.iterdir()}
    before, after = (open_safetensors(path / "model.safetensors").tensors for path in (folder, tmp_path / "m"))
    same = {name for name in before if np.array_equal(before[name].numpy(), after[name].numpy())}
    assert before.keys() == after.keys() and same == {name for name in before if "_proj" not in name}
    for type, output, what in (
        ("q8_0", "n", "type cannot be stored as safetensors: got 'q8_0'; use one of f32, f16, bf16, or a GGUF file"),
        ("f16", "n.gguf", "output must be a folder, as the base is: got 'n.gguf'"),
    ):
        with pytest.raises(Exception, match=what):
            merge(folder, adapter, tmp_path / output, type=type)
    assert {view.dtype.name for view in _types(folder, adapter, tmp_path / "b")} == {"bf16", "f32"}


def _types(folder, adapter, output):
    merge(folder, adapter, output, type="bf16", max_loss=0.1)
    return open_safetensors(output / "model.safetensors").tensors.values()
