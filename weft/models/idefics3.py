"""Idefics3 and SmolVLM: a Llama that sees; pictures are cut into tiles.

Reference: transformers/models/idefics3. The text part is llama.py; its tokens of pictures are vectors of the tower in
idefics3_vision.py.
"""

from weft.models.llama import NAMES, Config, describe, forward, hidden_states, token_logit

__all__ = [
    "GGUF",
    "KIND",
    "NAMES",
    "PICTURES",
    "TEXT_TYPE",
    "VISION_TYPE",
    "Config",
    "describe",
    "forward",
    "hidden_states",
    "token_logit",
]

KIND = "decoder"
TEXT_TYPE = "llama"
VISION_TYPE = "idefics3_vision"
PICTURES = "tiles"
GGUF = None
