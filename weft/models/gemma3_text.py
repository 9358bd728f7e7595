"""Gemma 3 (the text part): Gemma 2 with norms over queries and keys in place of caps; five of six layers turn locally.

Reference: transformers/models/gemma3. Checkpoint names are Gemma 2's, with q_norm and k_norm beside the projections.
EmbeddingGemma is one that reads both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen
from weft.models import gemma2, llama
from weft.nn import Rope, Scope, Step, rope

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "decoder"


@frozen
class Config(gemma2.Config):
    # The text part of a larger model's file leaves out what is upstream's default.
    vocab_size: int = 262_208
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    max_position_embeddings: int = 131_072
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = 10_000.0
    rope_local_scaling: dict[str, Any] | None = None
    sliding_window_pattern: int | None = 6
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attn_logit_softcapping is not None:
            raise self.unsupported("attn_logit_softcapping, which upstream reads and does not apply")

    @property
    def pattern(self) -> int:
        return self.sliding_window_pattern or 6

    @property
    def bidirectional(self) -> bool:
        return bool(self.use_bidirectional_attention) or super().bidirectional

    def window(self, layer: int) -> int:
        """Of a model that reads both ways the config has the width of both sides together."""
        width = super().window(layer)
        return width // 2 + 1 if width and self.use_bidirectional_attention else width

    def rotation(self, layer: int, context: int) -> Rope:
        """Layers that slide turn at a rate of their own, unstretched unless the file says so."""
        if not self.slides(layer):
            return super().rotation(layer, context)
        scaling: Mapping[str, Any] | None = self.rope_local_scaling
        turn = rope(
            self.rotated,
            self.rope_local_base_freq,
            scaling,
            positions=self.max_position_embeddings,
            context=context,
        )
        return replace(turn, name="rope.local.inv_freq")


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    q, k, v = llama.projections(x, w, cfg)
    q, k = gemma2.norm(q, w / "q_norm", cfg), gemma2.norm(k, w / "k_norm", cfg)  # over the channels of each head
    return llama.rotary_attention(q, k, v, w, cfg, step, layer)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return gemma2.block(x, w, cfg, step, layer, self_attention)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return gemma2.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return gemma2.forward(w, cfg, step, block)
