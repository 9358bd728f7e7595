"""Qwen3-VL with experts (30B-A3B, 235B-A22B): a Qwen3 with experts that sees; videos are not read.

Reference: transformers/models/qwen3_vl_moe. Its tokens of pictures are vectors of the tower in qwen3_vl_vision.py.
"""

from weft.models.qwen3_vl_moe_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

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
TEXT_TYPE = "qwen3_vl_moe_text"
VISION_TYPE = "qwen3_vl_vision"
PICTURES = "grid"
