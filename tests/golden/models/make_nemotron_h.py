"""Make nemotron_h.npz: what transformers computes for tiny random Nemotron-H checkpoints. See make_models.py.

python tests/golden/models/make_nemotron_h.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from make_granitemoehybrid import mamba_shapes

NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "architectures": ["NemotronHForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "M-M*-",
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
    "max_position_embeddings": 1024,
    "mamba_num_heads": 6,
    "mamba_head_dim": 12,
    "n_groups": 2,
    "ssm_state_size": 24,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "use_bias": False,
    "mlp_bias": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
RECURRENT = True  # layers whose state is a slot
EXPERTS = {
    "n_routed_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
}
CONFIGS = {
    "nemotron_h": NEMOTRON,
    "nemotron_h-listed-bias": {
        **{name: value for name, value in NEMOTRON.items() if "pattern" not in name and name != "num_hidden_layers"},
        "layers_block_type": ["full_attention", "mlp", "linear_attention"],
        "num_key_value_heads": 6,
        "head_dim": 8,
        "mamba_num_heads": 5,
        "mamba_head_dim": 40,
        "n_groups": 1,
        "ssm_state_size": 9,
        "conv_kernel": 3,
        "use_conv_bias": False,
        "use_bias": True,
        "mlp_bias": True,
    },
    "nemotron_h-experts": {**NEMOTRON, "hybrid_override_pattern": "ME*EM", **EXPERTS},
    "nemotron_h-experts-narrow": {
        **NEMOTRON,
        "hybrid_override_pattern": "E-M*E",
        **EXPERTS,
        "fused_experts": True,
        "moe_latent_size": 20,
        "norm_topk_prob": False,
        "mlp_bias": True,
    },
}
UNWRITABLE = {
    "nemotron_h-listed-bias": ("use_bias", {"use_bias": False, "use_conv_bias": True}),
    "nemotron_h-experts-narrow": (
        "a feed-forward part beside experts",
        {"hybrid_override_pattern": "EMM*E", "mlp_bias": False},
    ),
}
REFUSED = [
    ({"hybrid_override_pattern": "M-M*X"}, "hybrid_override_pattern", "weft knows M, "),
    (
        {"hybrid_override_pattern": "M-M*E", **EXPERTS, "num_experts_per_tok": 8},
        "num_experts_per_tok",
        "must be at most",
    ),
    ({"hybrid_override_pattern": "M-M*E", **EXPERTS, "n_group": 7}, "topk_group", "must be n_group"),
    ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern", "for each of 5 layers: got '2 entries'"),
    ({"layers_block_type": ["mamba"] * 4 + ["conv"]}, "layers_block_type", "weft knows linear_attention, mamba"),
    ({"n_groups": 4}, "mamba_num_heads", "must be a multiple of 4 groups"),
    ({"conv_kernel": 1}, "conv_kernel", "must be at least 2: got 1"),
    ({"mamba_hidden_act": "gelu"}, "mamba_hidden_act", "weft knows silu"),
    ({"attention_bias": True}, "attention_bias", "is not supported"),
    ({"tie_word_embeddings": True}, "tie_word_embeddings", "is not supported"),
    ({"time_step_limit": [0.0, 0.5]}, "time_step_limit", "is not supported"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, dim, heads, groups = (
        cfg[name] for name in ("hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads")
    )
    found: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (cfg["vocab_size"], hidden),
        "model.norm_f.weight": (hidden,),
        "lm_head.weight": (cfg["vocab_size"], hidden),
    }
    letters = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    types = cfg.get("layers_block_type") or [letters[letter] for letter in cfg["hybrid_override_pattern"]]
    for i, kind in enumerate(types):
        at = f"model.layers.{i}.mixer."
        found[f"model.layers.{i}.norm.weight"] = (hidden,)
        if kind == "full_attention":
            made = {"q_proj": (heads * dim, hidden), "o_proj": (hidden, heads * dim)}
            made |= {name: (groups * dim, hidden) for name in ("k_proj", "v_proj")}
            bias = False
        elif kind == "mlp":
            made = {"up_proj": (cfg["intermediate_size"], hidden), "down_proj": (hidden, cfg["intermediate_size"])}
            bias = cfg["mlp_bias"]
        elif kind == "moe":
            made, bias = experts(cfg, at, found), cfg["mlp_bias"]
        else:
            inner, shared = cfg["mamba_num_heads"] * cfg["mamba_head_dim"], cfg["n_groups"] * cfg["ssm_state_size"]
            layer = mamba_shapes(at, hidden, cfg["mamba_num_heads"], inner, shared, cfg["conv_kernel"])
            if not cfg["use_conv_bias"]:
                del layer[f"{at}conv1d.bias"]
            found |= layer
            made = {name: layer[f"{at}{name}.weight"] for name in ("in_proj", "out_proj")}
            bias = cfg["use_bias"]
        found |= {f"{at}{name}.weight": shape for name, shape in made.items()}
        found |= {f"{at}{name}.bias": shape[:1] for name, shape in made.items() if bias}
    return found


def experts(cfg: dict[str, Any], at: str, found: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Adds the experts to `found`, one by one or together; what may have biases is returned."""
    hidden, count, inner = cfg["hidden_size"], cfg["n_routed_experts"], cfg["moe_intermediate_size"]
    narrow, shared = cfg.get("moe_latent_size"), cfg["moe_shared_expert_intermediate_size"]
    found |= {f"{at}gate.weight": (count, hidden), f"{at}gate.e_score_correction_bias": (count,)}
    each = {"up_proj": (inner, narrow or hidden), "down_proj": (narrow or hidden, inner)}
    for name, shape in each.items():
        if cfg.get("fused_experts"):
            found[f"{at}experts.{name}"] = (count, *shape)
        else:
            found |= {f"{at}experts.{expert}.{name}.weight": shape for expert in range(count)}
    made = {"shared_experts.up_proj": (shared, hidden), "shared_experts.down_proj": (hidden, shared)}
    if narrow:
        made |= {"fc1_latent_proj": (narrow, hidden), "fc2_latent_proj": (hidden, narrow)}
    return made


if __name__ == "__main__":
    from make_models import write

    write("nemotron_h.npz", CONFIGS)
