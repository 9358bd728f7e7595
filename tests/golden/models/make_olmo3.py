"""Make olmo3.npz: what transformers computes for tiny random OLMo 3 checkpoints. See make_models.py.

python tests/golden/models/make_olmo3.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

OLMO3: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "olmo3",
    "architectures": ["Olmo3ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "num_hidden_layers": 5,
    "rope_theta": 500000.0,
    "sliding_window": 37,
    "pad_token_id": 0,
}
CONFIGS = {
    "olmo3": OLMO3,
    "olmo3-stretched-tied": {**OLMO3, "tie_word_embeddings": True, "rope_scaling": tiny.YARN},
    "olmo3-listed-bias": {
        **OLMO3,
        "num_hidden_layers": 3,
        "num_key_value_heads": 6,
        "attention_bias": True,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    },
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"mlp_bias": True}, "mlp_bias", "is not supported: got True"),
    ({"layer_types": ["full_attention"]}, "layer_types", "for each of 5 layers: got '1 entries'"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = tiny.llama_shapes(cfg)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found[f"{at}post_feedforward_layernorm.weight"] = found.pop(f"{at}input_layernorm.weight")
        for name in "qk":
            found[f"{at}self_attn.{name}_norm.weight"] = found[f"{at}self_attn.{name}_proj.weight"][:1]
    return found


if __name__ == "__main__":
    from make_models import write

    write("olmo3.npz", CONFIGS)
