"""Checkpoints of the toy hybrid, whose model file lies beside the package's while a test asks for it."""

from pathlib import Path
from typing import Any

import numpy as np
import tiny

import weft.models

TOYS = str(Path(__file__).resolve().parent / "toys")
CONFIG: dict[str, Any] = {
    "model_type": "toy_hybrid",
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 18,
    "conv_kernel": 4,
    "max_position_embeddings": 640,
}


def shapes() -> dict[str, tuple[int, ...]]:
    hidden, heads, groups, dim = (
        CONFIG[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    vocab = (CONFIG["vocab_size"], hidden)
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": vocab, "lm_head.weight": vocab}
    found["model.norm.weight"] = (hidden,)
    for layer in range(CONFIG["num_hidden_layers"]):
        attention = layer % 3 == 2
        at = f"model.layers.{layer}"
        found[f"{at}.norm.weight"] = (hidden,)
        found[f"{at}.q_proj.weight"] = ((heads if attention else groups) * dim, hidden)
        found[f"{at}.k_proj.weight"] = (groups * dim, hidden)
        found[f"{at}.v_proj.weight"] = ((groups if attention else heads) * dim, hidden)
        found[f"{at}.o_proj.weight"] = (hidden, heads * dim)
        if not attention:
            found[f"{at}.conv.weight"] = (heads * dim, 1, CONFIG["conv_kernel"])
            found[f"{at}.decay.weight"] = found[f"{at}.beta.weight"] = (heads, hidden)
    return found


def weights() -> dict[str, np.ndarray]:
    made = {}
    for seed, (name, shape) in enumerate(sorted(shapes().items()), 1):
        values = tiny.uniform(seed * 1_000_003, int(np.prod(shape))).reshape(shape)
        norm = name.endswith("norm.weight")
        made[name] = np.float32(1) + values / 10 if norm else values * np.float32(2 / np.sqrt(shape[-1]))
    return made


def write_folder(folder: Path) -> Path:
    """A folder of the toy hybrid; weft finds its model file from now on."""
    if TOYS not in weft.models.__path__:
        weft.models.__path__.append(TOYS)
    return tiny.write_folder(folder, CONFIG, weights())
