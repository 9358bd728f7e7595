"""Make qwen3_5_text.npz: what transformers computes for tiny random Qwen3.5 checkpoints. See make_models.py.

python tests/golden/models/make_qwen3_5_text.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

QWEN3_5: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "qwen3_5_text",
    "architectures": ["Qwen3_5ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "rope_theta": 1000000.0,
    "partial_rotary_factor": 0.25,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "pad_token_id": 0,
}
RECURRENT = True  # layers whose state is a slot
PLUS_ONE = True  # norms are stored less one
CONFIGS = {
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_text-listed-tied": {
        **QWEN3_5,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "partial_rotary_factor": 0.5,
        "linear_conv_kernel_dim": 3,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
}
_SQUARE = {"linear_value_head_dim": 8}  # as wide as keys
UNWRITABLE = {
    "qwen3_5_text": ("value heads in the order of their key heads", {**_SQUARE, "tiled_value_heads": True}),
    "qwen3_5_text-listed-tied": ("a linear_value_head_dim other than", {**_SQUARE, "attention_bias": False}),
}
REFUSED = [
    ({"layer_types": ["linear_attention"]}, "layer_types", "for each of 4 layers: got '1 entries'"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads", "must be a multiple of linear_num_key_heads"),
    ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim", "must be at least 2: got 1"),
    ({"partial_rotary_factor": 0.01}, "partial_rotary_factor", "rotate an even number of 16 channels"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = tiny.llama_shapes(cfg)
    hidden, dim, heads = cfg["hidden_size"], cfg["head_dim"], cfg["linear_num_value_heads"]
    keys, values = cfg["linear_num_key_heads"] * cfg["linear_key_head_dim"], heads * cfg["linear_value_head_dim"]
    count = cfg["num_hidden_layers"]
    types = cfg.get("layer_types") or ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(count)]
    for i, kind in enumerate(types):
        at, attention = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
        if kind == "full_attention":
            for name in ("weight", "bias"):
                if f"{attention}q_proj.{name}" in found:
                    rows, *rest = found[f"{attention}q_proj.{name}"]
                    found[f"{attention}q_proj.{name}"] = (2 * rows, *rest)
            found |= {f"{attention}{name}_norm.weight": (dim,) for name in "qk"}
            continue
        found = {name: shape for name, shape in found.items() if not name.startswith(attention)}
        rows = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
        found |= {f"{at}linear_attn.{name}.weight": (count, hidden) for name, count in rows.items()}
        found[f"{at}linear_attn.out_proj.weight"] = (hidden, values)
        found[f"{at}linear_attn.conv1d.weight"] = (2 * keys + values, 1, cfg["linear_conv_kernel_dim"])
        found[f"{at}linear_attn.norm.weight"] = (cfg["linear_value_head_dim"],)
        found |= {f"{at}linear_attn.{name}": (heads,) for name in ("A_log", "dt_bias")}
    return found


if __name__ == "__main__":
    from make_models import write

    write("qwen3_5_text.npz", CONFIGS)
