"""Qwen2 (1.5, 2, 2.5): Llama with biases on queries, keys and values only; upper layers may look back a window.

Reference: transformers/models/qwen2. Checkpoint names are Llama's.
"""

from __future__ import annotations

from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import forward, hidden_states, token_logit

__all__ = ["KIND", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


@frozen
class Config(llama.Config):
    max_position_embeddings: int = 32_768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_layer_types(self.layer_types)

    @property
    def qkv_bias(self) -> bool:
        return True

    @property
    def out_bias(self) -> bool:
        return False

    def window(self, layer: int) -> int:
        """Layers from max_window_layers on look back, unless the file lists each layer's type."""
        if not self.use_sliding_window or self.sliding_window is None:
            return 0
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == "sliding_attention" else 0
        return self.sliding_window if layer >= self.max_window_layers else 0
