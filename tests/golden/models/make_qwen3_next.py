"""Make qwen3_next.npz: what transformers computes for tiny random Qwen3-Next checkpoints. See make_models.py.

python tests/golden/models/make_qwen3_next.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_qwen2_moe import one_part

QWEN3_NEXT: dict[str, Any] = {
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 1024,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "num_experts": 10,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 56,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
RECURRENT = True  # layers whose state is a slot
PLUS_ONE = True  # norms are stored less one
CONFIGS = {
    "qwen3_next": QWEN3_NEXT,
    "qwen3_next-some-dense-tied": {
        **QWEN3_NEXT,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mlp_only_layers": [1],
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
}
UNWRITABLE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("linear_value_head_dim", {"linear_value_head_dim": 8}),
    "qwen3_next-some-dense-tied": (
        "linear_value_head_dim",
        {"linear_value_head_dim": 8, "mlp_only_layers": [], "norm_topk_prob": True},
    ),
}
REFUSED = [
    ({"num_experts_per_tok": 11}, "num_experts_per_tok", r"must be at most num_experts \(10\): got 11"),
    ({"linear_num_value_heads": 3}, "linear_num_value_heads", "must be a multiple of linear_num_key_heads"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    import make_qwen3_5_text  # it imports the module that finds these scripts

    hidden, found = cfg["hidden_size"], make_qwen3_5_text.shapes(cfg)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        mixer = f"{at}linear_attn.in_proj_"
        if f"{mixer}qkv.weight" in found:
            for fused, parts in (("qkvz", ("qkv", "z")), ("ba", ("b", "a"))):
                found[f"{mixer}{fused}.weight"] = (sum(found.pop(f"{mixer}{part}.weight")[0] for part in parts), hidden)
        if i in cfg["mlp_only_layers"]:
            continue
        found = {name: shape for name, shape in found.items() if not name.startswith(f"{at}mlp.")}
        found |= {
            f"{at}mlp.gate.weight": (cfg["num_experts"], hidden),
            f"{at}mlp.shared_expert_gate.weight": (1, hidden),
        }
        found |= one_part(f"{at}mlp.shared_expert.", hidden, cfg["shared_expert_intermediate_size"])
        for expert in range(cfg["num_experts"]):
            found |= one_part(f"{at}mlp.experts.{expert}.", hidden, cfg["moe_intermediate_size"])
    return found


if __name__ == "__main__":
    from make_models import write

    write("qwen3_next.npz", CONFIGS)
