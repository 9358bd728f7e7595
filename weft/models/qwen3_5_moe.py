"""Qwen3.5 with experts and images (35B-A3B to 397B-A17B): a qwen3_5_moe_text that sees; videos are not read.

Reference: transformers/models/qwen3_5_moe. Its tokens of pictures are vectors of Qwen3.5's tower, qwen3_5_vision.py.
"""

from weft.models.qwen3_5_moe_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

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
TEXT_TYPE = "qwen3_5_moe_text"
VISION_TYPE = "qwen3_5_vision"
PICTURES = "grid"
