"""OLMo 3 (7B, 32B): OLMo 2 with a window in three of four layers, whose rotation is not stretched.

Reference: transformers/models/olmo3. Checkpoint names are OLMo 2's. GGUF files say olmo2, with a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import olmo2
from weft.models.olmo2 import NAMES, describe, forward, hidden_states, token_logit

if TYPE_CHECKING:
    from weft.nn import Rope

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
GGUF = None  # olmo2.py reads such files
PATTERN = 4  # every fourth layer has no window


@frozen
class Config(olmo2.Config):
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("rope_local_theta",)
    LAYER_ROPES: ClassVar[dict[str, tuple[str, str]]] = {
        "full_attention": ("rope_theta", "rope_scaling"),
        "sliding_attention": ("rope_local_theta", "rope_local_scaling"),
    }
    rope_theta: float = 500_000.0
    rope_local_theta: float | None = None  # rope_theta
    rope_local_scaling: dict[str, Any] | None = None
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types)

    def slides(self, layer: int) -> bool:
        listed = self.layer_types
        return (layer + 1) % PATTERN != 0 if listed is None else listed[layer] == "sliding_attention"

    def window(self, layer: int) -> int:
        return (self.sliding_window or 0) if self.slides(layer) else 0

    def rotation(self, layer: int, context: int) -> Rope | None:
        """Layers with a window have a rotation of their own, mostly that of short contexts."""
        if not self.slides(layer):
            return super().rotation(layer, context)
        theta = self.rope_theta if self.rope_local_theta is None else self.rope_local_theta
        positions = self.max_position_embeddings
        local = nn.rope(self.rotated, theta, self.rope_local_scaling, positions=positions, context=context)
        return replace(local, name="rope.local.inv_freq")
