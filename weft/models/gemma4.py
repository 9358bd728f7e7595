"""Gemma 4 with images or sound: weft runs the text part, a gemma4_text.

Reference: transformers/models/gemma4.
"""

from weft.models.gemma4_text import GGUF, NAMES, Config, forward, hidden_states, token_logit

__all__ = ["GGUF", "KIND", "NAMES", "TEXT_TYPE", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
TEXT_TYPE = "gemma4_text"
