"""Make granitemoehybrid.npz: what transformers computes for tiny random Granite 4 checkpoints. See make_models.py.

python tests/golden/models/make_granitemoehybrid.py
"""

from typing import Any

GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "shared_intermediate_size": 72,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.25,
    "logits_scaling": 2.0,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "position_embedding_type": "nope",
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "mamba_n_heads": 6,
    "mamba_n_groups": 1,
    "mamba_d_state": 24,
    "mamba_d_head": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
RECURRENT = True  # layers whose state is a slot
CONFIGS = {
    "granitemoehybrid": GRANITE,
    "granitemoehybrid-rope-groups": {
        **GRANITE,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "position_embedding_type": "rope",
        "layer_types": ["full_attention", "linear_attention", "linear_attention"],
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 9,
        "mamba_d_head": "auto",
        "mamba_d_conv": 3,
        "mamba_conv_bias": False,
        "mamba_proj_bias": True,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "granitemoehybrid-experts": {**GRANITE, "num_local_experts": 6, "num_experts_per_tok": 3, "intermediate_size": 40},
}
_WRITABLE = {"mamba_conv_bias": True, "mamba_proj_bias": False, "attention_bias": False}
UNWRITABLE = {"granitemoehybrid-rope-groups": ("mamba_proj_bias", _WRITABLE)}
REFUSED = [
    ({"layer_types": ["mamba"]}, "layer_types", "for each of 4 layers: got '1 entries'"),
    ({"layer_types": ["mamba", "conv", "mamba", "mamba"]}, "layer_types", "weft knows mamba, linear_attention"),
    ({"num_local_experts": -1}, "num_local_experts", "must be 0 to 65536: got -1"),
    ({"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok", r"1 to num_local_experts \(4\): got 5"),
    ({"position_embedding_type": "alibi"}, "position_embedding_type", "weft knows rope and nope"),
    ({"mamba_d_head": 8}, "mamba_d_head", "the channels of each of mamba_n_heads"),
    ({"mamba_n_groups": 4}, "mamba_n_heads", "must be a multiple of 4 groups"),
    ({"mamba_d_conv": 1}, "mamba_d_conv", "must be at least 2: got 1"),
    ({"time_step_limit": [0.0, 0.5]}, "time_step_limit", "is not supported"),
]


def mamba_shapes(at: str, hidden: int, heads: int, inner: int, shared: int, width: int) -> dict[str, tuple[int, ...]]:
    """Tensors of a Mamba2 layer without biases of projections."""
    mixed = inner + 2 * shared
    return {
        f"{at}in_proj.weight": (inner + mixed + heads, hidden),
        f"{at}conv1d.weight": (mixed, 1, width),
        f"{at}conv1d.bias": (mixed,),
        f"{at}norm.weight": (inner,),
        f"{at}out_proj.weight": (hidden, inner),
        **{f"{at}{name}": (heads,) for name in ("A_log", "D", "dt_bias")},
    }


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, groups = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    dim, width = hidden // heads, cfg["shared_intermediate_size"]
    shared = cfg["mamba_n_groups"] * cfg["mamba_d_state"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = (cfg["vocab_size"], hidden)
    for i, kind in enumerate(cfg["layer_types"]):
        at = f"model.layers.{i}."
        found |= {f"{at}{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        found |= {f"{at}shared_mlp.input_linear.weight": (2 * width, hidden)}
        found |= {f"{at}shared_mlp.output_linear.weight": (hidden, width)}
        if cfg["num_local_experts"]:
            experts, inner = cfg["num_local_experts"], cfg["intermediate_size"]
            found[f"{at}block_sparse_moe.router.weight"] = (experts, hidden)
            found[f"{at}block_sparse_moe.experts.gate_up_proj"] = (experts, 2 * inner, hidden)
            found[f"{at}block_sparse_moe.experts.down_proj"] = (experts, hidden, inner)
        if kind.removeprefix("full_") == "attention":
            made = {"q_proj": (heads * dim, hidden), "o_proj": (hidden, heads * dim)}
            made |= {name: (groups * dim, hidden) for name in ("k_proj", "v_proj")}
            found |= {f"{at}self_attn.{name}.weight": shape for name, shape in made.items()}
            if cfg.get("attention_bias"):
                found |= {f"{at}self_attn.{name}.bias": shape[:1] for name, shape in made.items()}
            continue
        inner = cfg["mamba_expand"] * hidden
        layer = mamba_shapes(f"{at}mamba.", hidden, cfg["mamba_n_heads"], inner, shared, cfg["mamba_d_conv"])
        if cfg["mamba_proj_bias"]:
            layer |= {name.replace("weight", "bias"): s[:1] for name, s in layer.items() if "proj.weight" in name}
        found |= {name: s for name, s in layer.items() if cfg["mamba_conv_bias"] or "conv1d.bias" not in name}
    return found


if __name__ == "__main__":
    from make_models import write

    write("granitemoehybrid.npz", CONFIGS)
