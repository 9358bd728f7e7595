"""Make smollm3.npz: what transformers computes for tiny random SmolLM3 checkpoints. See make_models.py.

python tests/golden/models/make_smollm3.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

SMOLLM3: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "smollm3",
    "architectures": ["SmolLM3ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 5,
    "rope_theta": 5000000.0,
    "no_rope_layer_interval": 4,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
}
CONFIGS = {
    "smollm3": SMOLLM3,
    "smollm3-listed-window-bias": {
        **SMOLLM3,
        "num_hidden_layers": 4,
        "no_rope_layers": [0, 1, 1, 0],
        "use_sliding_window": True,
        "sliding_window": 37,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": False,
        "rope_scaling": tiny.YARN,
    },
    "smollm3-interval-types": {
        **SMOLLM3,
        "num_hidden_layers": 3,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
    },
}
_WRITABLE = {"attention_bias": False, "mlp_bias": False, "use_sliding_window": False, "layer_types": None}
UNWRITABLE = {
    "smollm3-listed-window-bias": ("attention_bias", {**_WRITABLE, "no_rope_layers": [1, 1, 1, 0]}),
    "smollm3-interval-types": ("use_sliding_window", {**_WRITABLE, "no_rope_layer_interval": 4}),
}
REFUSED = [
    ({"no_rope_layers": [1, 1, 0]}, "no_rope_layers", "a 0 or 1 for each of 5 layers"),
    ({"no_rope_layers": [1, 1, 1, 1, 2]}, "no_rope_layers", "a 0 or 1 for each of 5 layers"),
    ({"no_rope_layers": []}, "no_rope_layers", "a 0 or 1 for each of 5 layers"),
    ({"layer_types": ["sliding_attention"] * 5}, "layer_types", "lists sliding_attention without use_sliding_window"),
    ({"layer_types": ["full_attention"]}, "layer_types", "for each of 5 layers: got '1 entries'"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return tiny.llama_shapes(cfg)


if __name__ == "__main__":
    from make_models import write

    write("smollm3.npz", CONFIGS)
