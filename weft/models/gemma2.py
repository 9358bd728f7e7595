"""Gemma 2: norms on both sides of attention and feed-forward, capped scores and logits, a window every other layer.

Reference: transformers/models/gemma2. Checkpoint names are the scope names below; norms are stored less one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from weft import ops
from weft.frozen import frozen
from weft.models import llama
from weft.nn import Scope, Step, embedding, rms_norm

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "decoder"


@frozen
class Config(llama.Config):
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256.0
    sliding_window: int | None = 4096
    layer_types: list[str] | None = None
    attn_logit_softcapping: float | None = 50.0
    final_logit_softcapping: float | None = 30.0
    use_bidirectional_attention: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_layer_types(self.layer_types)
        if self.use_bidirectional_attention and not self.bidirectional:
            raise self.unsupported("use_bidirectional_attention; weft runs this model from left to right")
        if self.sliding_window is None and any(map(self.slides, range(self.num_hidden_layers))):
            raise self.unsupported("sliding_window null for layers that slide")

    @property
    def activation(self) -> str:
        return self.hidden_activation

    @property
    def score_scale(self) -> float:
        return self.query_pre_attn_scalar**-0.5

    @property
    def score_cap(self) -> float:
        return self.attn_logit_softcapping or 0.0

    @property
    def pattern(self) -> int:
        """One layer of so many sees everything, the last of them; unless the file lists each layer's type."""
        return 2

    def slides(self, layer: int) -> bool:
        """Whether tokens of this layer see a window only."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "sliding_attention"
        return (layer + 1) % self.pattern != 0

    def window(self, layer: int) -> int:
        return (self.sliding_window or 0) if self.slides(layer) else 0


def norm(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return rms_norm(x, w, cfg.rms_norm_eps, plus_one=True)


def block(
    x: Tensor,
    w: Scope,
    cfg: Config,
    step: Step,
    layer: int,
    attention: Callable[..., Tensor] = llama.self_attention,
) -> Tensor:
    """One layer; a relative gives the attention that is its own."""
    y = attention(norm(x, w / "input_layernorm", cfg), w / "self_attn", cfg, step, layer)
    x = x + norm(y, w / "post_attention_layernorm", cfg)
    y = llama.mlp(norm(x, w / "pre_feedforward_layernorm", cfg), w / "mlp", cfg)
    return x + norm(y, w / "post_feedforward_layernorm", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    x = ops.scale(x, by=math.sqrt(cfg.hidden_size))
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return norm(ops.take_rows(x, step.rows), w / "norm", cfg)


def forward(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    logits = llama.head(hidden_states(w / "model", cfg, step, layers), w, cfg)
    cap = cfg.final_logit_softcapping
    return ops.softcap(logits, cap=cap) if cap is not None else logits
