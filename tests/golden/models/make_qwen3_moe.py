"""Make qwen3_moe.npz: what transformers computes for tiny random Qwen3 checkpoints with experts. See make_models.py.

python tests/golden/models/make_qwen3_moe.py
"""

from typing import Any

QWEN3_MOE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 1024,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "attention_bias": False,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS = {
    "qwen3_moe": QWEN3_MOE,
    "qwen3_moe-fused-tied": {
        **QWEN3_MOE,
        "fused_experts": True,
        "tie_word_embeddings": True,
        "num_experts": 5,
        "num_experts_per_tok": 1,
    },
    "qwen3_moe-some-dense": {
        **{key: value for key, value in QWEN3_MOE.items() if key != "head_dim"},
        "num_hidden_layers": 5,
        "num_key_value_heads": 6,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": False,
        "num_experts_per_tok": 12,
        "attention_bias": True,
    },
}
UNWRITABLE = {
    "qwen3_moe-some-dense": (
        "a layer without experts",
        {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True, "num_hidden_layers": 2},
    )
}
REFUSED = [
    ({"num_experts_per_tok": 13}, "num_experts_per_tok", r"must be at most num_experts \(12\): got 13"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, groups = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    dim = cfg.get("head_dim") or hidden // heads
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = (cfg["vocab_size"], hidden)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        rows = {"q_proj": heads * dim, "k_proj": groups * dim, "v_proj": groups * dim}
        made = {name: (count, hidden) for name, count in rows.items()} | {"o_proj": (hidden, heads * dim)}
        for name, shape in made.items():
            found[f"{at}self_attn.{name}.weight"] = shape
            if cfg["attention_bias"]:
                found[f"{at}self_attn.{name}.bias"] = shape[:1]
        found |= {f"{at}self_attn.{name}_norm.weight": (dim,) for name in "qk"}
        found |= {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        found |= feed_forward(cfg, f"{at}mlp.", i)
    return found


def feed_forward(cfg: dict[str, Any], at: str, layer: int) -> dict[str, tuple[int, ...]]:
    """The names below `at`: of the experts, one by one or fused, or of one feed-forward part."""
    hidden = cfg["hidden_size"]
    if layer in cfg["mlp_only_layers"] or (layer + 1) % cfg["decoder_sparse_step"]:
        return one_part(at, hidden, cfg["intermediate_size"])
    count, inner = cfg["num_experts"], cfg["moe_intermediate_size"]
    found: dict[str, tuple[int, ...]] = {f"{at}gate.weight": (count, hidden)}
    if cfg.get("fused_experts"):
        found[f"{at}experts.gate_up_proj"] = (count, 2 * inner, hidden)
        found[f"{at}experts.down_proj"] = (count, hidden, inner)
        return found
    for expert in range(count):
        found |= one_part(f"{at}experts.{expert}.", hidden, inner)
    return found


def one_part(at: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    found = {f"{at}{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    return {**found, f"{at}down_proj.weight": (hidden, inner)}


if __name__ == "__main__":
    from make_models import write

    write("qwen3_moe.npz", CONFIGS)
