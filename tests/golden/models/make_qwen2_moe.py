"""Make qwen2_moe.npz: what transformers computes for tiny random Qwen2 checkpoints with experts. See make_models.py.

python tests/golden/models/make_qwen2_moe.py
"""

from typing import Any

QWEN2_MOE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 1024,
    "num_experts": 10,
    "num_experts_per_tok": 4,
    "norm_topk_prob": False,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "qwen2_moe": QWEN2_MOE,
    "qwen2_moe-some-dense-window": {
        **QWEN2_MOE,
        "num_hidden_layers": 4,
        "num_key_value_heads": 6,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
        "num_experts_per_tok": 2,
        "use_sliding_window": True,
        "sliding_window": 37,
        "max_window_layers": 3,
        "tie_word_embeddings": True,
    },
}
UNWRITABLE = {
    "qwen2_moe-some-dense-window": (
        "use_sliding_window",
        {
            "use_sliding_window": False,
            "mlp_only_layers": [],
            "decoder_sparse_step": 1,
            "norm_topk_prob": False,
            "num_hidden_layers": 2,
        },
    )
}
REFUSED = [
    ({"num_experts_per_tok": 11}, "num_experts_per_tok", r"must be at most num_experts \(10\): got 11"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = cfg["hidden_size"], cfg["num_attention_heads"]
    dim = hidden // heads
    rows = {"q_proj": heads, "k_proj": cfg["num_key_value_heads"], "v_proj": cfg["num_key_value_heads"]}
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = (cfg["vocab_size"], hidden)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found |= {f"{at}self_attn.{name}.weight": (count * dim, hidden) for name, count in rows.items()}
        found |= {f"{at}self_attn.{name}.bias": (count * dim,) for name, count in rows.items()}
        found[f"{at}self_attn.o_proj.weight"] = (hidden, heads * dim)
        found |= {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        if i in cfg["mlp_only_layers"] or (i + 1) % cfg["decoder_sparse_step"]:
            found |= one_part(f"{at}mlp.", hidden, cfg["intermediate_size"])
            continue
        found[f"{at}mlp.gate.weight"] = (cfg["num_experts"], hidden)
        found[f"{at}mlp.shared_expert_gate.weight"] = (1, hidden)
        found |= one_part(f"{at}mlp.shared_expert.", hidden, cfg["shared_expert_intermediate_size"])
        for expert in range(cfg["num_experts"]):
            found |= one_part(f"{at}mlp.experts.{expert}.", hidden, cfg["moe_intermediate_size"])
    return found


def one_part(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    found = {f"{at}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**found, f"{at}down_proj.weight": (hidden, inner)}


if __name__ == "__main__":
    from make_models import write

    write("qwen2_moe.npz", CONFIGS)
