"""Make eurobert.npz: what transformers computes for tiny random EuroBERT checkpoints. See make_models.py.

python tests/golden/models/make_eurobert.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

EUROBERT: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "eurobert",
    "architectures": ["EuroBertModel"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "rope_theta": 250000.0,
    "pad_token_id": 0,
}
CONFIGS = {
    "eurobert": EUROBERT,
    "eurobert-wide-bias": {
        **EUROBERT,
        "head_dim": 20,
        "num_key_value_heads": 6,
        "attention_bias": True,
        "mlp_bias": True,
    },
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"is_causal": True}, "is_causal", "must be false: this model has bidirectional attention"),
    ({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = tiny.llama_shapes({**cfg, "tie_word_embeddings": True})
    return {name.removeprefix("model."): shape for name, shape in found.items()}


if __name__ == "__main__":
    from make_models import write

    write("eurobert.npz", CONFIGS)
