"""The same weights through a GGUF file written by weft give the same bits; quantised ones run without being widened."""

from pathlib import Path

import numpy as np
import pytest
import tiny

from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.weights import gguf_from_config, gguf_name, open_gguf, quantise, stored_order, write_gguf
from weft.weights.files import TensorView


def write_model(path: Path, cfg: dict, dtype: str = "f32") -> Path:
    """The tiny checkpoint as a GGUF file, matrices in `dtype`, Q and K rows in GGUF's order."""
    from weft.weights.gguf_config import rope_factors

    arch = cfg["model_type"]
    full = {**cfg, "head_dim": cfg.get("head_dim") or cfg["hidden_size"] // cfg["num_attention_heads"]}
    tensors = {}
    for name, values in tiny.weights(cfg).items():
        order = stored_order(arch, name, full)
        stored = values if order is None else values[order]
        tensors[gguf_name(arch, name)] = quantise(stored, dtype) if stored.ndim > 1 else TensorView.of(stored)
    factors = rope_factors(full) if arch == "llama" else None
    if factors is not None:
        tensors["rope_freqs.weight"] = TensorView.of(np.asarray(factors, np.float32))
    write_gguf(path, tensors, gguf_from_config(full))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "llama-grouped",
        "llama-full-tied",
        "llama-linear-rope",
        "llama-yarn",
        "qwen2",
        "qwen3",
        "qwen3-tied-yarn",
        "phi3",
    ],
)
def test_a_gguf_file_and_a_folder_give_the_same_bits(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS[name]
    ids = tiny.token_ids(cfg, 40)
    folder = Decoder(open_checkpoint(tiny.write_folder(tmp_path / name, cfg))).logits(ids)
    gguf = Decoder(open_checkpoint(write_model(tmp_path / f"{name}.gguf", cfg))).logits(ids)
    assert np.array_equal(folder, gguf)


def test_llama3_rope_factors_of_a_gguf_file_are_the_rule_s(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["llama-llama3-rope"]
    ids = tiny.token_ids(cfg, 130)
    folder = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "folder", cfg))).logits(ids)
    gguf = Decoder(open_checkpoint(write_model(tmp_path / "model.gguf", cfg))).logits(ids)
    assert np.abs(folder - gguf).max() <= 1e-4  # the file keeps the factors in f32


def test_longrope_factors_of_a_gguf_file_are_the_folder_s(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["phi3-part-longrope"]
    ids, scaling = tiny.token_ids(cfg, 130), cfg["rope_scaling"]
    folder = Decoder(open_checkpoint(tiny.write_folder(tmp_path / "folder", cfg)), context=256).logits(ids)
    written = open_gguf(write_model(tmp_path / "plain.gguf", {**cfg, "rope_scaling": None}))
    factors = {f"rope_factors_{kind}.weight": np.float32(scaling[f"{kind}_factor"]) for kind in ("short", "long")}
    path = tmp_path / "model.gguf"
    write_gguf(path, {**written.tensors, **factors}, written.metadata)
    assert np.array_equal(folder, Decoder(open_checkpoint(path), context=256).logits(ids))


def test_a_bert_gguf_file_and_a_folder_give_the_same_bits(tmp_path: Path) -> None:
    cfg = tiny.CONFIGS["bert"]
    ids = tiny.token_ids(cfg, 40)
    folder = Encoder(open_checkpoint(tiny.write_folder(tmp_path / "bert", cfg)), Head("mean")).hidden_states(ids)
    gguf = Encoder(open_checkpoint(write_model(tmp_path / "bert.gguf", cfg)), Head("mean")).hidden_states(ids)
    assert np.array_equal(folder, gguf)


# 64 channels: rows of whole 32-blocks
BLOCKED = {**tiny.LLAMA, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


# Fused projections: a range of rows of a quantised matrix is quantised rows
FUSED = {**BLOCKED, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"]}


@pytest.mark.parametrize("dtype", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
@pytest.mark.parametrize("compute", ["f32", "int8"])
@pytest.mark.parametrize("cfg", [BLOCKED, FUSED], ids=["llama", "phi3"])
def test_quantised_weights_give_what_their_values_give(tmp_path: Path, cfg: dict, dtype: str, compute: str) -> None:
    """f32 activations: the model of the dequantised weights; int8 activations: close to it."""
    ids = tiny.token_ids(cfg, 40)
    stored = Decoder(
        open_checkpoint(write_model(tmp_path / "stored.gguf", cfg, dtype)), compute=compute, kv_dtype="f32"
    )
    values = {}
    for name, tensor in stored.checkpoint.tensors.items():
        values[name] = np.asarray(tensor.numpy(), np.float32)
    dense = tiny.write_folder(tmp_path / "dense", cfg)
    from weft.weights import write_safetensors

    write_safetensors(dense / "model.safetensors", values)
    want = Decoder(open_checkpoint(dense)).logits(ids)
    error = np.linalg.norm(stored.logits(ids) - want) / np.linalg.norm(want)
    assert error <= (1e-5 if compute == "f32" or dtype in ("f16", "bf16") else 2e-2)
