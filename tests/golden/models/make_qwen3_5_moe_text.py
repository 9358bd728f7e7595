"""Make qwen3_5_moe_text.npz: what transformers computes for tiny random Qwen3.5 checkpoints with experts. See
make_models.py.

python tests/golden/models/make_qwen3_5_moe_text.py
"""

import importlib
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "models")]
import tiny  # noqa: E402, F401  (it loads all these scripts, the next one among them)

dense = importlib.import_module("make_qwen3_5_text")

QWEN3_5_MOE: dict[str, Any] = {
    **{key: value for key, value in dense.QWEN3_5.items() if key != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "architectures": ["Qwen3_5MoeForCausalLM"],
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 10,
    "num_experts_per_tok": 3,
    "fused_experts": True,
}
RECURRENT = True  # layers whose state is a slot
PLUS_ONE = True  # norms are stored less one
CONFIGS = {
    "qwen3_5_moe_text": QWEN3_5_MOE,
    "qwen3_5_moe_text-one-by-one-tied": {
        **QWEN3_5_MOE,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "linear_attention"],
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "fused_experts": False,
        "num_experts": 4,
        "num_experts_per_tok": 4,
        "tie_word_embeddings": True,
    },
}
_SQUARE = {"linear_value_head_dim": 8}  # as wide as keys
UNWRITABLE = {
    "qwen3_5_moe_text": ("value heads in the order of their key heads", {**_SQUARE, "tiled_value_heads": True}),
    "qwen3_5_moe_text-one-by-one-tied": ("a linear_value_head_dim other than", _SQUARE),
}
REFUSED = [
    ({"num_experts_per_tok": 11}, "num_experts_per_tok", r"must be at most num_experts \(10\): got 11"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, count, inner = cfg["hidden_size"], cfg["num_experts"], cfg["moe_intermediate_size"]
    found = {
        name: shape for name, shape in dense.shapes({**cfg, "intermediate_size": 1}).items() if ".mlp." not in name
    }
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}.mlp."
        found |= {f"{at}gate.weight": (count, hidden), f"{at}shared_expert_gate.weight": (1, hidden)}
        found |= one_part(f"{at}shared_expert.", hidden, cfg["shared_expert_intermediate_size"])
        if cfg["fused_experts"]:
            found[f"{at}experts.gate_up_proj"] = (count, 2 * inner, hidden)
            found[f"{at}experts.down_proj"] = (count, hidden, inner)
            continue
        for expert in range(count):
            found |= one_part(f"{at}experts.{expert}.", hidden, inner)
    return found


def one_part(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    found = {f"{at}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**found, f"{at}down_proj.weight": (hidden, inner)}


if __name__ == "__main__":
    from make_models import write

    write("qwen3_5_moe_text.npz", CONFIGS)
