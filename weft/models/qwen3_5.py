"""Qwen3.5 with images (0.8B to 27B): a qwen3_5_text that sees pictures in their own proportions; videos are not read.

Reference: transformers/models/qwen3_5. Its tokens of pictures are vectors of the tower in qwen3_5_vision.py.
"""

from weft.models.qwen3_5_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

__all__ = [
    "GGUF",
    "KIND",
    "NAMES",
    "PICTURES",
    "TEXT_TYPE",
    "VISION_TYPE",
    "Config",
    "forward",
    "hidden_states",
    "token_logit",
]

KIND = "decoder"
TEXT_TYPE = "qwen3_5_text"
VISION_TYPE = "qwen3_5_vision"
PICTURES = "grid"
