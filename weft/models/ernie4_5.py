"""ERNIE 4.5 (0.3B, dense): Llama whose rotation pairs neighbouring channels.

Reference: transformers/models/ernie4_5. Checkpoint names are Llama's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, describe, forward, hidden_states, token_logit
from weft.weights.names import Gguf

if TYPE_CHECKING:
    from weft.nn import Rope

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
THETA = 500_000.0  # where config.json leaves it out


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("use_bias"):
        raise gguf.unwritable("use_bias")
    return {"rope.freq_base": float(config.get("rope_theta", THETA))}


GGUF = replace(
    llama.GGUF,
    architecture="ernie4_5",
    model_type="ernie4_5",
    class_name="Ernie4_5ForCausalLM",
    absent=frozenset(),
    paired=False,  # channels are paired in the same way on both sides
    factors="",
    head_dim=128,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    num_key_value_heads: int = 2
    head_dim: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = THETA
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    use_bias: bool = False

    @property
    def qkv_bias(self) -> bool:
        return self.use_bias

    @property
    def out_bias(self) -> bool:
        return self.use_bias

    @property
    def inner_bias(self) -> bool:
        return self.use_bias

    def rotation(self, layer: int, context: int) -> Rope | None:
        rotation = super().rotation(layer, context)
        return rotation and replace(rotation, interleaved=True)
