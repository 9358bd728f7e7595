"""SigLIP 2 of flexible resolution (NaFlex): texts and pictures in one space; the text tower is SigLIP's.

Reference: transformers/models/siglip2. Pictures: siglip2_vision_model.py.
"""

from weft.models.siglip import GGUF, LENGTH, NAMES, PROJECTION, Config, hidden_states

__all__ = ["GGUF", "KIND", "LENGTH", "NAMES", "PROJECTION", "TEXT_TYPE", "VISION_TYPE", "Config", "hidden_states"]

KIND = "encoder"
TEXT_TYPE = "siglip2"
VISION_TYPE = "siglip2_vision_model"
