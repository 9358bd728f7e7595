"""Make mixtral.npz: what transformers computes for tiny random Mixtral checkpoints. See make_models.py.

python tests/golden/models/make_mixtral.py
"""

from typing import Any

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 1024,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "mixtral": MIXTRAL,
    "mixtral-window-wide-heads": {
        **MIXTRAL,
        "head_dim": 12,
        "num_key_value_heads": 6,
        "sliding_window": 37,
        "num_local_experts": 3,
        "num_experts_per_tok": 3,
    },
}
UNWRITABLE = {"mixtral-window-wide-heads": ("a sliding_window of 37", {"sliding_window": None})}
REFUSED = [
    ({"num_experts_per_tok": 9}, "num_experts_per_tok", r"must be at most num_local_experts \(8\): got 9"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_attention_heads"]
    dim = cfg.get("head_dim") or hidden // heads
    rows = {"q_proj": heads, "k_proj": cfg["num_key_value_heads"], "v_proj": cfg["num_key_value_heads"]}
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (cfg["vocab_size"], hidden),
    }
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found |= {f"{at}self_attn.{name}.weight": (count * dim, hidden) for name, count in rows.items()}
        found[f"{at}self_attn.o_proj.weight"] = (hidden, heads * dim)
        found |= {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        found[f"{at}block_sparse_moe.gate.weight"] = (cfg["num_local_experts"], hidden)
        for expert in range(cfg["num_local_experts"]):
            one = f"{at}block_sparse_moe.experts.{expert}."
            found |= {f"{one}w1.weight": (inner, hidden), f"{one}w3.weight": (inner, hidden)}
            found[f"{one}w2.weight"] = (hidden, inner)
    return found


if __name__ == "__main__":
    from make_models import write

    write("mixtral.npz", CONFIGS)
