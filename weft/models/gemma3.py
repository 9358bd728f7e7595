"""Gemma 3 with images (4B and larger): a gemma3_text that sees. Tokens of a picture attend to each other both ways.

Reference: transformers/models/gemma3. Its tokens of pictures are vectors of the tower in gemma3_vision.py. GGUF files
of every Gemma 3 say `gemma3`.
"""

from weft.models.gemma3_text import GGUF, NAMES, Config, describe, forward, hidden_states

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
]

KIND = "decoder"
TEXT_TYPE = "gemma3_text"
VISION_TYPE = "gemma3_vision"
PICTURES = "crops"
