"""Qwen3-VL (text): Qwen3 whose tokens of pictures are turned by their rows and columns, and get more after some layers.

Reference: transformers/models/qwen3_vl. Pairs of channels turn with time, row and column in turns (interleaved M-RoPE).
What the tower had after some of its layers is added to tokens of pictures after the first layers here (deep stack).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen3
from weft.models.llama import token_logit
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
NAMES = Names(trunk="model.", part={"model.language_model.": "model.", "lm_head.": "lm_head."})  # inside qwen3_vl.py
GGUF = None
SECTIONS = (24, 20, 20)  # pairs that turn with time, row and column, where a file says nothing


@frozen
class Config(qwen3.Config):
    LIMITS: ClassVar[dict[str, int]] = {**getattr(qwen3.Config, "LIMITS", {}), "deepstack_layers": 64}
    vocab_size: int = 151_936
    hidden_size: int = 4096
    intermediate_size: int = 22_016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    max_position_embeddings: int = 128_000
    rope_theta: float = 500_000.0
    deepstack_layers: int = 3  # as many as the tower's deepstack_visual_indexes

    def rotation(self, layer: int, context: int) -> Rope | None:
        return nn.turned_by_axes(super().rotation(layer, context), self.scaling, SECTIONS)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return with_deep(qwen3.block(x, w, cfg, step, layer), cfg, step, layer)


def with_deep(x: Tensor, cfg: Any, step: Step, layer: int) -> Tensor:
    """The output of a layer, with what is added to tokens of pictures."""
    deep = step.deep_of(layer) if layer < cfg.deepstack_layers else None
    return x if deep is None else x + deep


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
