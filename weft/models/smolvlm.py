"""SmolVLM2: Idefics3 under another name; videos are not read.

Reference: transformers/models/smolvlm.
"""

from weft.models.idefics3 import (
    GGUF,
    NAMES,
    PICTURES,
    TEXT_TYPE,
    VISION_TYPE,
    Config,
    describe,
    forward,
    hidden_states,
    token_logit,
)

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
    "token_logit",
]

KIND = "decoder"
