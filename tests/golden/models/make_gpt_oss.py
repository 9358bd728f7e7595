"""Make gpt_oss.npz: what transformers computes for tiny random gpt-oss checkpoints. See make_models.py.

python tests/golden/models/make_gpt_oss.py
"""

from typing import Any

GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "architectures": ["GptOssForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
    "max_position_embeddings": 1024,
    "attention_bias": True,
    "sliding_window": 37,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
PLAIN = {"rope_type": "default", "rope_theta": 1000.0}
CONFIGS = {
    "gpt_oss": GPT_OSS,
    "gpt_oss-plain-clamped": {
        **{key: value for key, value in GPT_OSS.items() if key not in ("rope_scaling", "rope_theta")},
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rope_parameters": PLAIN,
        "num_local_experts": 4,
        "num_experts_per_tok": 4,
        "swiglu_limit": 0.4,
    },
    "gpt_oss-listed": {
        **{key: value for key, value in GPT_OSS.items() if key not in ("rope_scaling", "rope_theta")},
        "rope_parameters": PLAIN,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 8,
    },
}
UNWRITABLE = {
    "gpt_oss": ("rope_scaling", {"rope_scaling": {"rope_type": "default"}}),
    "gpt_oss-plain-clamped": ("swiglu_limit", {"swiglu_limit": 7.0}),
    "gpt_oss-listed": ("layer_types", {"layer_types": None}),
}
REFUSED = [
    ({"hidden_act": "gelu"}, "hidden_act", "is not supported: got 'gelu'"),
    ({"num_experts_per_tok": 7}, "num_experts_per_tok", "must be at most num_local_experts"),
    ({"layer_types": ["full_attention"]}, "layer_types", "must have one entry for each of 3 layers"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, dim = cfg["hidden_size"], cfg["intermediate_size"], cfg["head_dim"]
    heads, groups, experts = (cfg["num_attention_heads"], cfg["num_key_value_heads"], cfg["num_local_experts"])
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (cfg["vocab_size"], hidden),
    }
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        rows = {"q_proj": heads * dim, "k_proj": groups * dim, "v_proj": groups * dim}
        found |= {f"{at}self_attn.{name}.weight": (count, hidden) for name, count in rows.items()}
        found |= {f"{at}self_attn.{name}.bias": (count,) for name, count in rows.items()}
        found |= {f"{at}self_attn.o_proj.weight": (hidden, heads * dim), f"{at}self_attn.o_proj.bias": (hidden,)}
        found[f"{at}self_attn.sinks"] = (heads,)
        found |= {f"{at}mlp.router.weight": (experts, hidden), f"{at}mlp.router.bias": (experts,)}
        found[f"{at}mlp.experts.gate_up_proj"] = (experts, hidden, 2 * inner)
        found[f"{at}mlp.experts.gate_up_proj_bias"] = (experts, 2 * inner)
        found[f"{at}mlp.experts.down_proj"] = (experts, inner, hidden)
        found[f"{at}mlp.experts.down_proj_bias"] = (experts, hidden)
        found[f"{at}input_layernorm.weight"] = found[f"{at}post_attention_layernorm.weight"] = (hidden,)
    return found


if __name__ == "__main__":
    from make_models import write

    write("gpt_oss.npz", CONFIGS)
