"""Make olmo2.npz: what transformers computes for tiny random OLMo 2 checkpoints. See make_models.py.

python tests/golden/models/make_olmo2.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

OLMO2: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "olmo2",
    "architectures": ["Olmo2ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "rope_theta": 500000.0,
    "pad_token_id": 0,
}
CONFIGS = {
    "olmo2": OLMO2,
    "olmo2-full-tied-bias": {
        **OLMO2,
        "num_key_value_heads": 6,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "rope_scaling": tiny.YARN,
    },
}
UNWRITABLE = {"olmo2-full-tied-bias": ("attention_bias", {"attention_bias": False})}
REFUSED = [
    ({"mlp_bias": True}, "mlp_bias", "is not supported: got True"),
    ({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
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

    write("olmo2.npz", CONFIGS)
