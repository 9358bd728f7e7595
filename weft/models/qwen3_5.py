"""Qwen3.5 with images (0.8B to 27B): weft runs the text part, a qwen3_5_text.

Reference: transformers/models/qwen3_5.
"""

from weft.models.qwen3_5_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

__all__ = ["GGUF", "KIND", "NAMES", "TEXT_TYPE", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
TEXT_TYPE = "qwen3_5_text"
