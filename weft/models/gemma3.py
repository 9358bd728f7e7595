"""Gemma 3 with images (4B and larger): weft runs the text part, a gemma3_text.

Reference: transformers/models/gemma3. GGUF files of every Gemma 3 say `gemma3`.
"""

from weft.models.gemma3_text import GGUF, NAMES, Config, describe, forward, hidden_states

__all__ = ["GGUF", "KIND", "NAMES", "TEXT_TYPE", "Config", "describe", "forward", "hidden_states"]

KIND = "decoder"
TEXT_TYPE = "gemma3_text"
