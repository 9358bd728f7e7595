"""Make mpnet.npz: what transformers computes for tiny random MPNet checkpoints. See make_models.py.

python tests/golden/models/make_mpnet.py
"""

from typing import Any

# Padding ids that tiny.token_ids does not draw: transformers counts no position for padding.
MPNET: dict[str, Any] = {
    "model_type": "mpnet",
    "architectures": ["MPNetModel"],
    "vocab_size": 59,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "max_position_embeddings": 1010,
    "relative_attention_num_buckets": 32,
    "pad_token_id": 1,
}
CONFIGS = {
    "mpnet": MPNET,
    "mpnet-relu": {**MPNET, "num_hidden_layers": 3, "num_attention_heads": 3, "hidden_act": "relu", "pad_token_id": 3},
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
    ({"num_attention_heads": 5}, "hidden_size", "must be a multiple of num_attention_heads"),
    ({"relative_attention_num_buckets": 64}, "relative_attention_num_buckets", "must be 32: got 64"),
    ({"pad_token_id": 2000}, "pad_token_id", "leave room for a token in 1010 positions: got 2000"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    dim, inner = cfg["hidden_size"], cfg["intermediate_size"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], dim),
        "embeddings.position_embeddings.weight": (cfg["max_position_embeddings"], dim),
        "encoder.relative_attention_bias.weight": (cfg["relative_attention_num_buckets"], cfg["num_attention_heads"]),
    }
    norms, layers = ["embeddings.LayerNorm"], {}
    for i in range(cfg["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        layers |= {f"{at}attention.attn.{name}": (dim, dim) for name in ("q", "k", "v", "o")}
        layers |= {f"{at}intermediate.dense": (inner, dim), f"{at}output.dense": (dim, inner)}
        norms += [f"{at}attention.LayerNorm", f"{at}output.LayerNorm"]
    for name, shape in layers.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found | {f"{name}.{part}": (dim,) for name in norms for part in ("weight", "bias")}


if __name__ == "__main__":
    from make_models import write

    write("mpnet.npz", CONFIGS)
