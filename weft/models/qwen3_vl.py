"""Qwen3-VL (dense, 2B to 32B): a Qwen3 that sees pictures in their own proportions; videos are not read.

Reference: transformers/models/qwen3_vl. The text part is qwen3_vl_text.py, its tokens of pictures are vectors of the
tower in qwen3_vl_vision.py.
"""

from weft.models.qwen3_vl_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

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
TEXT_TYPE = "qwen3_vl_text"
VISION_TYPE = "qwen3_vl_vision"
PICTURES = "grid"
