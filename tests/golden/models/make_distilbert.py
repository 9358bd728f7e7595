"""Make distilbert.npz: what transformers computes for tiny random DistilBERT checkpoints. See make_models.py.

python tests/golden/models/make_distilbert.py
"""

from typing import Any

DISTILBERT: dict[str, Any] = {
    "model_type": "distilbert",
    "architectures": ["DistilBertModel"],
    "vocab_size": 59,
    "dim": 48,
    "hidden_dim": 80,
    "n_layers": 2,
    "n_heads": 6,
    "activation": "gelu",
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
}
CONFIGS = {
    "distilbert": DISTILBERT,
    "distilbert-relu": {**DISTILBERT, "n_layers": 3, "n_heads": 3, "activation": "relu"},
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"activation": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
    ({"n_heads": 5}, "hidden_size", "must be a multiple of num_attention_heads"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    dim, inner = cfg["dim"], cfg["hidden_dim"]
    found: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (cfg["vocab_size"], dim),
        "embeddings.position_embeddings.weight": (cfg["max_position_embeddings"], dim),
    }
    norms, layers = ["embeddings.LayerNorm"], {}
    for i in range(cfg["n_layers"]):
        at = f"transformer.layer.{i}."
        layers |= {f"{at}attention.{name}_lin": (dim, dim) for name in ("q", "k", "v", "out")}
        layers |= {f"{at}ffn.lin1": (inner, dim), f"{at}ffn.lin2": (dim, inner)}
        norms += [f"{at}sa_layer_norm", f"{at}output_layer_norm"]
    for name, shape in layers.items():
        found |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return found | {f"{name}.{part}": (dim,) for name in norms for part in ("weight", "bias")}


if __name__ == "__main__":
    from make_models import write

    write("distilbert.npz", CONFIGS)
