"""Make ernie4_5.npz: what transformers computes for tiny random ERNIE 4.5 checkpoints. See make_models.py.

python tests/golden/models/make_ernie4_5.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

ERNIE: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "ernie4_5",
    "architectures": ["Ernie4_5ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "head_dim": 8,
    "rope_theta": 500000.0,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "ernie4_5": ERNIE,
    "ernie4_5-wide-bias": {
        **ERNIE,
        "head_dim": 20,
        "num_key_value_heads": 6,
        "use_bias": True,
        "tie_word_embeddings": False,
    },
}
UNWRITABLE = {"ernie4_5-wide-bias": ("use_bias", {"use_bias": False})}
REFUSED = [({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'")]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    bias = bool(cfg.get("use_bias"))
    return tiny.llama_shapes({**cfg, "attention_bias": bias, "mlp_bias": bias})


if __name__ == "__main__":
    from make_models import write

    write("ernie4_5.npz", CONFIGS)
