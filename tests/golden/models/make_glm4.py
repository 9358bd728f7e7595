"""Make glm4.npz: what transformers computes for tiny random GLM-4 checkpoints. See make_models.py.

python tests/golden/models/make_glm4.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "models"))
import tiny

GLM4: dict[str, Any] = {
    **tiny.LLAMA,
    "model_type": "glm4",
    "architectures": ["Glm4ForCausalLM"],
    "vocab_size": 59,
    "max_position_embeddings": 1024,
    "head_dim": 8,
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 0,
}
CONFIGS = {
    "glm4": GLM4,
    "glm4-whole-tied": {
        **GLM4,
        "head_dim": 20,
        "num_key_value_heads": 6,
        "attention_bias": False,
        "partial_rotary_factor": 1.0,
        "tie_word_embeddings": True,
    },
}
UNWRITABLE: dict[str, Any] = {}
REFUSED = [
    ({"partial_rotary_factor": 0.1}, "partial_rotary_factor", "rotate an even number of 8 channels"),
    ({"hidden_act": "swish7"}, "hidden_act", "is not supported: got 'swish7'"),
]


def shapes(cfg: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = tiny.llama_shapes(cfg)
    for i in range(cfg["num_hidden_layers"]):
        at = f"model.layers.{i}."
        found.pop(f"{at}self_attn.o_proj.bias", None)
        rows, columns = found.pop(f"{at}mlp.gate_proj.weight")
        del found[f"{at}mlp.up_proj.weight"]
        found[f"{at}mlp.gate_up_proj.weight"] = (2 * rows, columns)
        for name in ("post_self_attn", "post_mlp"):
            found[f"{at}{name}_layernorm.weight"] = (cfg["hidden_size"],)
    return found


if __name__ == "__main__":
    from make_models import write

    write("glm4.npz", CONFIGS)
