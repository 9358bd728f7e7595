"""Tiny random checkpoints with a head for multi-token prediction, of types whose layers have experts."""

from typing import Any

import numpy as np
import tiny

# Sizes that GGUF has words for, and Qwen3.5's value heads in the order of their key heads.
SIZES = {"linear_value_head_dim": 8, "mtp_num_hidden_layers": 1}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_moe_text": {**tiny.CONFIGS["qwen3_5_moe_text"], **SIZES, "linear_num_value_heads": 2},
    "qwen3_next": {**tiny.CONFIGS["qwen3_next"], **SIZES},
}
LENGTH = 90


def attending(cfg: dict[str, Any]) -> int:
    """The first layer with attention."""
    named = tiny.shapes(cfg)
    return next(i for i in range(cfg["num_hidden_layers"]) if f"model.layers.{i}.self_attn.q_proj.weight" in named)


def head(cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of the head: one layer with attention, norms, and `fc`."""
    hidden, at = cfg["hidden_size"], f"model.layers.{attending(cfg)}."
    found: dict[str, tuple[int, ...]] = {"mtp.fc.weight": (hidden, 2 * hidden)}
    found |= {f"mtp.{name}.weight": (hidden,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    found |= {f"mtp.layers.0.{k.removeprefix(at)}": shape for k, shape in tiny.shapes(cfg).items() if k.startswith(at)}
    made = {}
    for seed, (name, shape) in enumerate(sorted(found.items()), 1):
        values = tiny.uniform(seed * 7_000_003, int(np.prod(shape))).reshape(shape)
        made[name] = values * np.float32(0.1 if len(shape) == 1 else 2.0 / np.sqrt(shape[1]))
    return made


def weights(cfg: dict[str, Any]) -> dict[str, np.ndarray]:
    return {**tiny.weights(cfg), **head(cfg)}
