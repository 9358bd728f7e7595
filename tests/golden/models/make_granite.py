"""Make granite.npz: what transformers computes for tiny random Granite checkpoints. See make_models.py.

python tests/golden/models/make_granite.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

GRANITE: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "granite",
    "architectures": ["GraniteForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.25,
    "attention_multiplier": 0.125,
    "logits_scaling": 4.0,
}
CONFIGS = {
    "granite": GRANITE,
    "granite-tied-bias-yarn": {
        **GRANITE,
        "num_key_value_heads": 6,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "rope_scaling": tiny.YARN,
    },
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return tiny.llama_shapes(cfg)


if __name__ == "__main__":
    from make_models import write

    write("granite.npz", CONFIGS)
