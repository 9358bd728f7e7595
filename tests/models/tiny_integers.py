"""Tiny folders as AWQ, GPTQ and compressed-tensors store them: plain packers written from the formats' definitions.

tests/golden/integers/make_integers.py holds them to the libraries and has transformers' logits of what they stand for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny

from weft.dtype import DTYPES, f32_to_bf16
from weft.weights import TensorView

CONFIG: dict[str, Any] = {
    **tiny.CONFIGS["llama-grouped"],
    "vocab_size": 61,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
}
CONFIG.pop("head_dim", None)
IDS = tiny.token_ids(CONFIG, 12)


def variant(method: str, bits: int, group: int | None, symmetric: bool, **more: Any) -> dict[str, Any]:
    return {"method": method, "bits": bits, "group": group, "symmetric": symmetric, **more}


VARIANTS: dict[str, dict[str, Any]] = {
    "ct-4-sym-32": variant("ct", 4, 32, True),
    "ct-4-asym-64-bf16": variant("ct", 4, 64, False, scale="bf16"),
    "ct-4-channel": variant("ct", 4, None, True, scale="bf16"),
    "ct-8-packed-channel": variant("ct", 8, None, True, scale="bf16"),
    "ct-8-plain-channel": variant("ct", 8, None, True, plain=True),
    "awq-64": variant("awq", 4, 64, False),
    "awq-32": variant("awq", 4, 32, False),
    "gptq-4-sym-32": variant("gptq", 4, 32, True),
    "gptq-4-asym-64": variant("gptq", 4, 64, False),
    "gptq-4-asym-v2": variant("gptq", 4, 32, False, version=2),
    "gptq-4-channel": variant("gptq", 4, None, True),
    "gptq-8-sym-64": variant("gptq", 8, 64, True),
}


def quantised(weight: np.ndarray, about: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [rows, cols] from 0 up, zero points and scales [rows, groups]; scales are float32 that fit their type."""
    rows, cols = weight.shape
    parts = weight.reshape(rows, -1, about["group"] or cols).astype(np.float64)
    top, middle = 2 ** about["bits"] - 1, 2 ** (about["bits"] - 1)
    if about["symmetric"]:
        scale, zero = np.abs(parts).max(axis=2) / (middle - 0.5), np.full(parts.shape[:2], middle)
    else:
        low, high = np.minimum(parts.min(axis=2), 0), np.maximum(parts.max(axis=2), 0)
        scale = (high - low) / top
        zero = np.clip(np.rint(-low / scale), 1, top)  # GPTQ's version 1 has no word for a zero of 0
    scale = scale.astype(np.float32)
    scale = (
        scale.astype(np.float16).astype(np.float32)
        if about.get("scale") != "bf16"
        else (f32_to_bf16(scale).astype(np.uint32) << 16).view(np.float32)
    )
    codes = np.clip(np.rint(parts / scale[..., None]) + zero[..., None], 0, top)
    return codes.reshape(rows, cols).astype(np.uint32), zero.astype(np.uint32), scale


def meaning(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """scale * (code - zero), float32; exact for scales of half precision."""
    group = codes.shape[1] // zero.shape[1]
    wide = [np.repeat(part.astype(np.float64), group, axis=1) for part in (zero, scale)]
    return (wide[1] * (codes.astype(np.float64) - wide[0])).astype(np.float32)


def words(codes: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> np.ndarray:
    """Codes [n, m] in int32 words along the second axis; place i of a word has code order[i] of its codes."""
    count = 32 // bits
    order = order or tuple(range(count))
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count))).astype(np.uint32)
    parts = padded.reshape(len(codes), -1, count)
    made = np.zeros(parts.shape[:2], np.uint32)
    for place, code in enumerate(order):
        made |= parts[:, :, code] << np.uint32(bits * place)
    return made.view(np.int32)


def stored_scale(scale: np.ndarray, about: dict[str, Any]) -> TensorView:
    if about.get("scale") == "bf16":
        return TensorView(DTYPES["bf16"], scale.shape, f32_to_bf16(scale))
    return TensorView.of(scale.astype(np.float16))


def parts(base: str, weight: np.ndarray, about: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """The tensors of one matrix, and what they stand for."""
    codes, zero, scale = quantised(weight, about)
    bits, (rows, cols) = about["bits"], weight.shape
    made: dict[str, Any]
    if about["method"] == "gptq":
        less = 0 if about.get("version") == 2 else 1
        made = {
            ".qweight": np.ascontiguousarray(words(codes, bits).T),
            ".qzeros": words(zero.T - less, bits),
            ".scales": stored_scale(np.ascontiguousarray(scale.T), about),
            ".g_idx": (np.arange(cols) // (about["group"] or cols)).astype(np.int32),
        }
    elif about["method"] == "awq":
        made = {
            ".qweight": words(codes.T, bits, (0, 2, 4, 6, 1, 3, 5, 7)),
            ".qzeros": words(zero.T, bits, (0, 2, 4, 6, 1, 3, 5, 7)),
            ".scales": stored_scale(np.ascontiguousarray(scale.T), about),
        }
    elif about.get("plain"):
        made = {".weight": (codes.astype(np.int32) - 128).astype(np.int8), ".weight_scale": stored_scale(scale, about)}
    else:
        made = {
            ".weight_packed": words(codes, bits),
            ".weight_scale": stored_scale(scale, about),
            ".weight_shape": np.array([rows, cols], np.int64),
        }
        if not about["symmetric"]:
            made[".weight_zero_point"] = np.ascontiguousarray(words(zero.T, bits).T)
    return {base + end: value for end, value in made.items()}, meaning(codes, zero, scale)


def described(about: dict[str, Any]) -> dict[str, Any]:
    """config.json's quantization_config."""
    group = about["group"] or -1
    if about["method"] == "gptq":
        form = "gptq_v2" if about.get("version") == 2 else "gptq"
        sym = about["symmetric"]
        return {"quant_method": "gptq", "bits": about["bits"], "group_size": group, "sym": sym, "desc_act": False,
                "checkpoint_format": form}  # fmt: skip
    if about["method"] == "awq":
        return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    weights = {
        "num_bits": about["bits"],
        "type": "int",
        "symmetric": about["symmetric"],
        "strategy": "group" if about["group"] else "channel",
        "group_size": about["group"],
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized" if about.get("plain") else "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


def model(about: dict[str, Any], config: dict[str, Any] = CONFIG) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The tensors of the folder, and all weights as what they stand for."""
    stored, dense = {}, {}
    for name, value in tiny.weights(config).items():
        if name.endswith("_proj.weight"):
            made, dense[name] = parts(name.removesuffix(".weight"), value, about)
            stored.update(made)
        else:
            stored[name] = dense[name] = value
    return stored, dense


def write(folder: Path, about: dict[str, Any], config: dict[str, Any] = CONFIG) -> dict[str, np.ndarray]:
    """Write a folder; returns all weights as what they stand for."""
    stored, dense = model(about, config)
    tiny.write_folder(folder, {**config, "quantization_config": described(about)}, stored)
    return dense
