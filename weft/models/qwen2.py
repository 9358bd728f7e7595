"""Qwen2 (1.5, 2, 2.5): Llama with biases on queries, keys and values only; upper layers may have a sliding window.

Reference: transformers/models/qwen2. Checkpoint names are Llama's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, describe, forward, hidden_states, token_logit
from weft.weights.names import Gguf

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("use_sliding_window"):
        raise gguf.unwritable("use_sliding_window")
    return {}


GGUF = replace(
    llama.GGUF,
    architecture="qwen2",
    model_type="qwen2",
    class_name="Qwen2ForCausalLM",
    absent=frozenset(),
    paired=False,
    factors="",
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    max_position_embeddings: int = 32_768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types)

    @property
    def qkv_bias(self) -> bool:
        return True

    @property
    def out_bias(self) -> bool:
        return False

    def window(self, layer: int) -> int:
        """Layers from max_window_layers on have the window, unless the file lists each layer's type."""
        if not self.use_sliding_window or self.sliding_window is None:
            return 0
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == "sliding_attention" else 0
        return self.sliding_window if layer >= self.max_window_layers else 0
