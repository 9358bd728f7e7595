"""The picture tower of Qwen3.5: Qwen3-VL's without a deep stack.

Reference: transformers/models/qwen3_5.
"""

from __future__ import annotations

from dataclasses import field

from weft.frozen import frozen
from weft.models import qwen3_vl_vision
from weft.models.qwen3_vl_vision import (
    CLASS_TOKENS,
    CORNERS,
    GGUF,
    MERGED,
    NAMES,
    PROJECTOR,
    RESIZED,
    TURNED,
    derived,
    hidden_states,
    projected,
)

__all__ = [
    "CLASS_TOKENS",
    "CORNERS",
    "GGUF",
    "KIND",
    "MERGED",
    "NAMES",
    "PROJECTOR",
    "RESIZED",
    "TURNED",
    "Config",
    "derived",
    "hidden_states",
    "projected",
]

KIND = "encoder"


@frozen
class Config(qwen3_vl_vision.Config):
    deepstack_visual_indexes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "deepstack_visual_indexes", [])  # upstream has no such layers, whatever a file says
        super().__post_init__()
