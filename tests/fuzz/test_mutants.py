"""A model that loads runs or stops with weft's own error, whatever its weights are; NaN never becomes a token."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from mutants import endings
from seeds_models import LLAMA, gguf_model, vocabulary
from soaking import times
from tiny_folders import LLAMA as FOLDER_LLAMA
from tiny_folders import write_decoder
from tiny_gguf import gguf_from_config, gguf_name, stored_order

import weft
from weft.errors import BackendError, FormatError, ModelError, WeightError
from weft.weights import write_gguf, write_safetensors


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_weights_never_crash() -> None:
    count = times(2_400, 100)
    found = endings(count, seed=3)
    assert found["runs"] > 0.25 * count
    assert found["stops: BackendError"] > 0.04 * count, "too few mutants reach NaN to test anything"
    assert set(found) <= {"runs", "stops: BackendError", "not loaded: WeightError", "not loaded: FormatError"}


def test_weights_of_nan_are_a_clean_error(tmp_path: Path) -> None:
    folder = write_decoder(tmp_path / "decoder")
    tensors = tiny.weights(FOLDER_LLAMA)
    tensors["model.norm.weight"][3] = np.nan
    write_safetensors(folder / "model-2.safetensors", {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(BackendError, match="not finite"):
        weft.load(str(folder), threads=1).generate("the", max_tokens=1)


def misshapen(values: np.ndarray) -> dict[str, np.ndarray]:
    """`values` in shapes that are not its own."""
    row = values[:1]
    shapes = {
        "a row more": np.concatenate([values, row]),
        "a row less": values[:-1],
        "another dimension": values[None],
        "flat": values.reshape(-1) if values.ndim > 1 else values.reshape(1, -1),
    }
    if values.ndim > 1 and values.shape[0] != values.shape[1]:
        shapes["transposed"] = np.ascontiguousarray(values.T)
    if values.ndim > 1:
        shapes["a column more"] = np.concatenate([values, values[:, :1]], axis=1)
    return shapes


def test_every_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    tensors = tiny.weights(FOLDER_LLAMA)
    folder = write_decoder(tmp_path / "decoder")
    (folder / "model.safetensors.index.json").unlink()
    cases = 0
    for name, values in tensors.items():
        for what, wrong in {**misshapen(values), "missing": None}.items():
            others = {other: value for other, value in tensors.items() if other != name}
            write_safetensors(folder / "model.safetensors", others if wrong is None else {**others, name: wrong})
            with pytest.raises(WeightError) as error:
                weft.load(str(folder), threads=1)
            assert name in str(error.value), what
            cases += 1
    assert cases > 50


def test_every_gguf_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    path, tensors = tmp_path / "model.gguf", {}
    for name, values in tiny.weights(LLAMA).items():
        order = stored_order("llama", name, LLAMA)
        tensors[gguf_name("llama", name)] = (name, values if order is None else values[order])
    keys = {**gguf_from_config(LLAMA), **vocabulary("gpt2")}
    for name, (full, values) in tensors.items():
        for what, wrong in {**misshapen(values), "missing": None}.items():
            if (name, what) == ("token_embd.weight", "a row more"):
                continue  # a larger vocabulary
            others = {other: value for other, (_, value) in tensors.items() if other != name}
            write_gguf(path, others if wrong is None else {**others, name: wrong}, keys)
            with pytest.raises(ModelError) as error:
                weft.load(str(path), threads=1)
            assert name in str(error.value) or full in str(error.value) or "tokens" in str(error.value), what


def test_the_models_are_right_before_they_are_made_wrong(tmp_path: Path) -> None:
    for dtype in ("q8_0", "q4_0", "f16", "f32"):
        for vocab in ("llama", "gpt2"):
            (tmp_path / "model.gguf").write_bytes(gguf_model(dtype, vocab))
            model = weft.load(str(tmp_path / "model.gguf"), threads=1)
            assert len(model.generate("the", max_tokens=2, ignore_eos=True).tokens) == 2


TOKENS = "tokenizer.ggml.tokens"
VOCABULARIES = {
    "no tokens": {TOKENS: []},
    "a token twice": {TOKENS: ["<0x41>"] * 2 + vocabulary("llama")[TOKENS][2:]},
    "a byte below zero": {TOKENS: ["<0x-1>", *vocabulary("llama")[TOKENS][1:]]},
    "a byte of no digits": {TOKENS: ["<0xZZ>", *vocabulary("llama")[TOKENS][1:]]},
    "a byte too large": {TOKENS: ["<0x100>", *vocabulary("llama")[TOKENS][1:]]},
    "too many tokens": {TOKENS: [*vocabulary("llama")[TOKENS], "more"]},
    "few scores": {"tokenizer.ggml.scores": np.zeros(3, np.float32)},
    "no scores": {"tokenizer.ggml.scores": np.zeros(0, np.float32)},
    "a score of NaN": {"tokenizer.ggml.scores": np.full(264, np.nan, np.float32)},
    "few types": {"tokenizer.ggml.token_type": np.ones(3, np.int32)},
    "an unknown model": {"tokenizer.ggml.model": "odd"},
    **{
        f"{name} {id}": {f"tokenizer.ggml.{name}_token_id": id}
        for name in ("bos", "eos", "unknown", "padding", "cls", "mask", "seperator")
        for id in (264, 1 << 31, -1)
    },
    "unknown pre-tokenizer": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "odd"},
    "a merge of absent tokens": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["q w"]},
    "a merge of one token": {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["t"]},
}


@pytest.mark.parametrize("what", VOCABULARIES)
def test_a_gguf_vocabulary_that_makes_no_sense_is_refused(tmp_path: Path, what: str) -> None:
    tensors = {}
    for name, values in tiny.weights(LLAMA).items():
        tensors[gguf_name("llama", name)] = values
    keys = {**gguf_from_config(LLAMA), **vocabulary("llama"), **VOCABULARIES[what]}
    write_gguf(tmp_path / "model.gguf", tensors, keys)
    with pytest.raises(ModelError) as error:
        weft.load(str(tmp_path / "model.gguf"), threads=1).tokenizer.encode("the")
    assert error.value.where in ("model.gguf", "gguf", "vocabulary"), error.value
    assert isinstance(error.value, FormatError) or "odd" in str(error.value)


def test_weights_at_odd_addresses_give_the_same_tokens(tmp_path: Path) -> None:
    """A header may have any length, and so the data behind it any alignment."""
    folder = write_decoder(tmp_path / "decoder")
    expected = weft.load(str(folder), threads=1).logits([1, 2, 3])
    for shard in folder.glob("model-*.safetensors"):
        raw = shard.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        shard.write_bytes((length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :])
    assert np.array_equal(weft.load(str(folder), threads=1).logits([1, 2, 3]), expected)
