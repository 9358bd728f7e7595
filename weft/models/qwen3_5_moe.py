"""Qwen3.5 with experts and images (35B-A3B to 397B-A17B): weft runs the text part, a qwen3_5_moe_text.

Reference: transformers/models/qwen3_5_moe.
"""

from weft.models.qwen3_5_moe_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

__all__ = ["GGUF", "KIND", "NAMES", "TEXT_TYPE", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
TEXT_TYPE = "qwen3_5_moe_text"
