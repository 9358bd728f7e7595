"""Make lfm2_moe.npz: what transformers computes for tiny random LFM2 checkpoints with experts. See make_models.py.

python tests/golden/models/make_lfm2_moe.py
"""

from typing import Any

LFM2_MOE: dict[str, Any] = {
    "model_type": "lfm2_moe",
    "architectures": ["Lfm2MoeForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "rope_theta": 1000000.0,
    "conv_L_cache": 3,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_bias": False,
    "num_dense_layers": 1,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "use_expert_bias": True,
    "routed_scaling_factor": 1.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
RECURRENT = True  # layers whose state is a slot
CONFIGS = {
    "lfm2_moe": LFM2_MOE,
    "lfm2_moe-plain-scaled": {
        **LFM2_MOE,
        "num_hidden_layers": 3,
        "layer_types": ["conv", "conv", "full_attention"],
        "num_dense_layers": 0,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "norm_topk_prob": False,
        "use_expert_bias": False,
        "routed_scaling_factor": 1.5,
    },
}
UNWRITABLE = {
    "lfm2_moe-plain-scaled": (
        "routed_scaling_factor",
        {"routed_scaling_factor": 1.0, "use_expert_bias": True, "norm_topk_prob": True},
    )
}
REFUSED = [
    ({"num_experts_per_tok": 9}, "num_experts_per_tok", r"must be at most num_experts \(8\): got 9"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, groups = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    dim = hidden // heads
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.embedding_norm.weight": (hidden,),
    }
    for i, kind in enumerate(cfg["layer_types"]):
        at = f"model.layers.{i}."
        found |= {f"{at}{name}_norm.weight": (hidden,) for name in ("operator", "ffn")}
        found |= feed_forward(cfg, f"{at}feed_forward.", i)
        if kind == "full_attention":
            rows = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
            found |= {f"{at}self_attn.{name}.weight": (count * dim, hidden) for name, count in rows.items()}
            found[f"{at}self_attn.out_proj.weight"] = (hidden, heads * dim)
            found |= {f"{at}self_attn.{name}_layernorm.weight": (dim,) for name in "qk"}
            continue
        made = {"in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden), "conv": (hidden, 1, cfg["conv_L_cache"])}
        found |= {f"{at}conv.{name}.weight": shape for name, shape in made.items()}
    return found


def feed_forward(cfg: dict[str, Any], at: str, layer: int) -> dict[str, tuple[int, ...]]:
    hidden = cfg["hidden_size"]
    if layer < cfg["num_dense_layers"]:
        return one_part(at, hidden, cfg["intermediate_size"])
    found: dict[str, tuple[int, ...]] = {f"{at}gate.weight": (cfg["num_experts"], hidden)}
    if cfg["use_expert_bias"]:
        found[f"{at}expert_bias"] = (cfg["num_experts"],)
    for expert in range(cfg["num_experts"]):
        found |= one_part(f"{at}experts.{expert}.", hidden, cfg["moe_intermediate_size"])
    return found


def one_part(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {f"{at}w1.weight": (inner, hidden), f"{at}w3.weight": (inner, hidden), f"{at}w2.weight": (hidden, inner)}


if __name__ == "__main__":
    from make_models import write

    write("lfm2_moe.npz", CONFIGS)
