"""Make gemma4_text.npz: what transformers computes for tiny random Gemma 4 checkpoints. See make_models.py.

python tests/golden/models/make_gemma4_text.py
"""

from typing import Any

import numpy as np

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "architectures": ["Gemma4ForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "sliding_window": 37,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "final_logit_softcapping": 15.0,
    "vocab_size_per_layer_input": 59,
    "hidden_size_per_layer_input": 12,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
    "tie_word_embeddings": True,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
CONFIGS = {
    "gemma4_text": GEMMA4,
    "gemma4_text-wide-keys-are-values": {
        **GEMMA4,
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "num_attention_heads": 2,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 1,
        "num_kv_shared_layers": 0,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
        "final_logit_softcapping": None,
    },
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"enable_moe_block": True}, "enable_moe_block", "does not run the experts"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention", "weft runs it causally"),
    ({"num_kv_shared_layers": 6}, "num_kv_shared_layers", "must be 0 to 5: got 6"),
    ({"num_kv_shared_layers": 5}, "num_kv_shared_layers", "no layer whose keys and values layer 2"),
    ({"global_head_dim": 33}, "head_dim", "must be even, 2 to 4096, in layer 2: got 33"),
    ({"per_layer_config": {"5": {"head_dim": 8}}}, "per_layer_config", "between layer 5 and layer 2"),
    ({"layer_types": ["full_attention"]}, "layer_types", "for each of 6 layers"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, layers = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_hidden_layers"]
    own, narrow = layers - cfg["num_kv_shared_layers"], cfg["hidden_size_per_layer_input"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    if narrow:
        found["model.embed_tokens_per_layer.weight"] = (cfg["vocab_size_per_layer_input"], layers * narrow)
        found["model.per_layer_model_projection.weight"] = (layers * narrow, hidden)
        found["model.per_layer_projection_norm.weight"] = (narrow,)
    for i, kind in enumerate(cfg["layer_types"]):
        at, full = f"model.layers.{i}.", kind == "full_attention"
        dim = cfg["global_head_dim"] if full else cfg["head_dim"]
        same = cfg.get("attention_k_eq_v", False) and full
        groups = cfg["num_global_key_value_heads"] if same else cfg["num_key_value_heads"]
        inner = cfg["intermediate_size"] * (2 if cfg["use_double_wide_mlp"] and i >= own else 1)
        made = {"q_proj": (heads * dim, hidden), "o_proj": (hidden, heads * dim)}
        norms = ["q_norm"]
        if i < own:
            made |= {name: (groups * dim, hidden) for name in ("k_proj", *(() if same else ("v_proj",)))}
            norms += ["k_norm"]
        found |= {f"{at}self_attn.{name}.weight": shape for name, shape in made.items()}
        found |= {f"{at}self_attn.{name}.weight": (dim,) for name in norms}
        found |= {f"{at}mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        found[f"{at}mlp.down_proj.weight"] = (hidden, inner)
        around = (
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm",
        )
        found |= {f"{at}{name}.weight": (hidden,) for name in around}
        if narrow:
            found[f"{at}per_layer_input_gate.weight"] = (narrow, hidden)
            found[f"{at}per_layer_projection.weight"] = (hidden, narrow)
            found[f"{at}post_per_layer_input_norm.weight"] = (hidden,)
        found[f"{at}layer_scalar"] = (1,)
    return found


def adjusted(name: str, values: np.ndarray) -> np.ndarray:
    """Scores are not divided by the root of a head's width: trained norms keep them small. Factors are near one."""
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return values * np.float32(len(values) ** -0.25)
    return values + np.float32(1) if name.endswith("layer_scalar") else values


if __name__ == "__main__":
    from make_models import write

    write("gemma4_text.npz", CONFIGS)
