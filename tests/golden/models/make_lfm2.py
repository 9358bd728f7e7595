"""Make lfm2.npz: what transformers computes for tiny random LFM2 checkpoints. See make_models.py.

python tests/golden/models/make_lfm2.py
"""

from typing import Any

LFM2: dict[str, Any] = {
    "model_type": "lfm2",
    "architectures": ["Lfm2ForCausalLM"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "norm_eps": 1e-5,
    "max_position_embeddings": 1024,
    "rope_theta": 1000000.0,
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
    "layer_types": ["conv", "full_attention", "conv", "conv"],
    "conv_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
RECURRENT = True  # layers whose state is a slot
CONFIGS = {
    "lfm2": LFM2,
    "lfm2-adjusted-bias": {
        **LFM2,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "layer_types": None,
        "full_attn_idxs": [2],
        "conv_bias": True,
        "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": True,
        "block_ffn_dim_multiplier": 1.2,
        "block_multiple_of": 16,
        "tie_word_embeddings": False,
    },
}
UNWRITABLE = {"lfm2-adjusted-bias": ("conv_bias", {"conv_bias": False})}
REFUSED = [
    ({"layer_types": ["conv"]}, "layer_types", "for each of 4 layers: got '1 entries'"),
    ({"layer_types": ["conv", "mamba", "conv", "conv"]}, "layer_types", "weft knows conv, full_attention"),
    ({"conv_L_cache": 1}, "conv_L_cache", "must be at least 2: got 1"),
]


def inner(cfg: dict[str, Any]) -> int:
    """The width of the feed-forward part."""
    width = int(cfg["intermediate_size"])
    if not cfg["block_auto_adjust_ff_dim"]:
        return width
    multiple = cfg["block_multiple_of"]
    return int(-(-int(cfg["block_ffn_dim_multiplier"] * int(2 * width / 3)) // multiple) * multiple)


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads, groups = cfg["hidden_size"], cfg["num_attention_heads"], cfg["num_key_value_heads"]
    dim = hidden // heads
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (cfg["vocab_size"], hidden),
        "model.embedding_norm.weight": (hidden,),
    }
    if not cfg["tie_word_embeddings"]:
        found["lm_head.weight"] = (cfg["vocab_size"], hidden)
    types = cfg["layer_types"] or [
        "full_attention" if i in cfg["full_attn_idxs"] else "conv" for i in range(cfg["num_hidden_layers"])
    ]
    for i, kind in enumerate(types):
        at = f"model.layers.{i}."
        found |= {f"{at}{name}_norm.weight": (hidden,) for name in ("operator", "ffn")}
        found |= {f"{at}feed_forward.{name}.weight": (inner(cfg), hidden) for name in ("w1", "w3")}
        found[f"{at}feed_forward.w2.weight"] = (hidden, inner(cfg))
        if kind == "full_attention":
            rows = {"q_proj": heads, "k_proj": groups, "v_proj": groups}
            found |= {f"{at}self_attn.{name}.weight": (count * dim, hidden) for name, count in rows.items()}
            found[f"{at}self_attn.out_proj.weight"] = (hidden, heads * dim)
            found |= {f"{at}self_attn.{name}_layernorm.weight": (dim,) for name in "qk"}
            continue
        made = {"in_proj": (3 * hidden, hidden), "out_proj": (hidden, hidden), "conv": (hidden, 1, cfg["conv_L_cache"])}
        for name, shape in made.items():
            found[f"{at}conv.{name}.weight"] = shape
            if cfg["conv_bias"]:
                found[f"{at}conv.{name}.bias"] = shape[:1]
    return found


if __name__ == "__main__":
    from make_models import write

    write("lfm2.npz", CONFIGS)
