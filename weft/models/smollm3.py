"""SmolLM3 (3B): Llama with rotary positions in three of four layers only; the others may have a sliding window.

Reference: transformers/models/smollm3. Checkpoint names are Llama's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, describe, forward, hidden_states, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.nn import Rope

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
INTERVAL = 4  # every fourth layer has no rotation: the default of config.json, and all that readers of GGUF know
THETA = 2_000_000.0  # where config.json leaves it out


def rotated_layers(interval: int, layers: int) -> list[int]:
    """1 for each layer with rotary positions, 0 for every `interval`-th."""
    return [int((layer + 1) % interval != 0) for layer in range(layers)]


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {"no_rope_layer_interval": INTERVAL}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        if config.get(name):
            raise gguf.unwritable(name)
    layers = config["num_hidden_layers"]
    listed = config.get("no_rope_layers") or rotated_layers(config.get("no_rope_layer_interval", INTERVAL), layers)
    if listed[:layers] != rotated_layers(INTERVAL, layers):
        raise gguf.unwritable("no_rope_layers other than every fourth")
    return {"rope.freq_base": float(config.get("rope_theta", THETA))}


GGUF = replace(
    llama.GGUF,
    architecture="smollm3",
    model_type="smollm3",
    class_name="SmolLM3ForCausalLM",
    absent=frozenset(),
    factors="",
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    LIMITS: ClassVar[dict[str, int]] = {"no_rope_layer_interval": 1024}
    num_key_value_heads: int = 4
    rope_theta: float = THETA
    max_position_embeddings: int = 32_768
    tie_word_embeddings: bool = True
    no_rope_layers: list[int] | None = None  # 1 for a layer with rotary positions, 0 for one without
    no_rope_layer_interval: int = INTERVAL  # where there is no list: every so many layers one is without
    use_sliding_window: bool = False
    sliding_window: int | None = None
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        listed = self.no_rope_layers
        if listed is not None and (len(listed) < self.num_hidden_layers or not set(listed) <= {0, 1}):
            what = f"must have a 0 or 1 for each of {self.num_hidden_layers} layers"
            raise nn.unsupported(self, "no_rope_layers", what, given=listed)
        nn.check_layer_types(self, self.layer_types)
        if "sliding_attention" in (self.layer_types or ()) and not self.has_window:
            what = "lists sliding_attention without use_sliding_window and sliding_window"
            raise nn.unsupported(self, "layer_types", what)

    @property
    def has_window(self) -> bool:
        return self.use_sliding_window and self.sliding_window is not None

    def rotates(self, layer: int) -> bool:
        """Whether this layer has rotary positions."""
        listed = self.no_rope_layers or rotated_layers(self.no_rope_layer_interval, self.num_hidden_layers)
        return bool(listed[layer])

    def window(self, layer: int) -> int:
        """Layers without rotary positions have the window, unless the file lists each layer's type."""
        listed = self.layer_types
        slides = not self.rotates(layer) if listed is None else listed[layer] == "sliding_attention"
        return (self.sliding_window or 0) if self.has_window and slides else 0

    def rotation(self, layer: int, context: int) -> Rope | None:
        return super().rotation(layer, context) if self.rotates(layer) else None
