"""Qwen3-30B-A3B in a few layers: 128 experts, eight for a token, of random blocks; as narrow or as wide as wanted.

By itself it writes the shape of the model, two layers of it: python tests/models/a3b.py FILE.gguf
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.dtype import dtype
from weft.weights import write_gguf
from weft.weights.files import TensorView

NARROW: dict[str, Any] = {
    **tiny.CONFIGS["qwen3_moe"],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "hidden_size": 128,
    "moe_intermediate_size": 64,
}
REAL: dict[str, Any] = {
    **NARROW,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
}


def random_blocks(kind: str, shape: tuple[int, ...], seed: int) -> TensorView:
    """A tensor of random codes, with scales that make its values as large as those of a trained matrix."""
    block = {"q8_0": (34, (0,), 1.7e-2), "q4_k": (144, (0, 2), 1.2e-3)}[kind]
    size, halves, scale = block
    rng = np.random.default_rng(seed)
    stored = dtype(kind)
    data = rng.integers(0, 256, stored.nbytes(int(np.prod(shape))), np.uint8).reshape(-1, size)
    for at in halves:
        values = (scale / np.sqrt(shape[-1] / 256) * rng.uniform(0.5, 1, len(data))).astype(np.float16)
        data[:, at : at + 2] = values[:, None].view(np.uint8)
    return TensorView(stored, shape, data.reshape(-1))


def write(path: Path, cfg: dict[str, Any], kind: str, metadata: Mapping[str, Any] | None = None) -> Path:
    """A GGUF file of this config: its experts are `kind`, other matrices q8_0."""
    views = {}
    for seed, (name, shape) in enumerate(sorted(tiny.shapes(cfg).items()), 1):
        if len(shape) == 1:
            views[name] = TensorView.of(np.float32(1) + np.float32(0.1) * tiny.uniform(seed, shape[0]))
        else:
            views[name] = random_blocks(kind if ".experts." in name else "q8_0", shape, seed)
    write_gguf(path, gguf_tensors(cfg, views), {**gguf_from_config(cfg), **(metadata or {})})
    return path


if __name__ == "__main__":
    write(Path(sys.argv[1]), REAL, "q4_k")
