"""Llama (1 to 3, SmolLM2, TinyLlama): grouped-query attention, rotary positions, SwiGLU, tied or untied head.

Reference: transformers/models/llama. Checkpoint names are the scope names below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from weft import ops
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.nn import (
    Rope,
    Scope,
    Step,
    attend,
    embedding,
    linear,
    most_positions,
    rms_norm,
    rope,
    rotate,
    settled_positions,
    tied_linear,
)

# what transformers calls them -> the catalogue's word
ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
}

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "decoder"
LAYER_TYPES = ("full_attention", "sliding_attention")


@frozen
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    is_causal: bool = True  # false in embedding models that were trained to read both ways

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise self.unsupported(f"hidden_act {self.activation!r:.80}; known are {', '.join(ACTIVATIONS)}")
        if self.channels < 2 or self.channels % 2:
            raise self.unsupported(
                f"head_dim {self.channels} of num_attention_heads {self.num_attention_heads}; it must be even"
            )
        if self.num_attention_heads % self.kv_heads:
            raise self.unsupported(
                f"num_attention_heads {self.num_attention_heads} is no multiple of num_key_value_heads {self.kv_heads}"
            )

    def unsupported(self, what: str) -> UnsupportedError:
        """The error that names the model type, a relative's too."""
        return UnsupportedError(f"[{type(self).__module__.rpartition('.')[2]}] {what}")

    def check_layer_types(self, types: list[str] | None) -> None:
        """Refuse a list of the layers' types that is not one known type for each layer."""
        unknown = sorted(set(types or ()) - set(LAYER_TYPES))
        if unknown:
            raise self.unsupported(f"layer_types {', '.join(unknown)[:80]}; known are {', '.join(LAYER_TYPES)}")
        if types is not None and len(types) != self.num_hidden_layers:
            raise self.unsupported(f"{len(types)} layer_types for {self.num_hidden_layers} layers")

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def channels(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return most_positions(self.scaling, self.max_position_embeddings)

    @property
    def settled_positions(self) -> int:
        """The longest context in which positions turn as they do in short texts; a longer one is asked for."""
        return settled_positions(self.scaling, self.max_position_embeddings)

    # What relatives differ in.

    @property
    def activation(self) -> str:
        return self.hidden_act

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        return self.attention_bias

    @property
    def rotated(self) -> int:
        """How many channels of a head are turned by their position."""
        return self.channels

    @property
    def scaling(self) -> Mapping[str, Any] | None:
        """How the rotation is stretched."""
        return self.rope_scaling

    @property
    def score_scale(self) -> float:
        """What products of queries and keys are multiplied by."""
        return 1.0 / math.sqrt(self.channels)

    @property
    def score_cap(self) -> float:
        """What scores are softly held below; 0 for nothing."""
        return 0.0

    @property
    def bidirectional(self) -> bool:
        """Whether tokens see those after them too, as in an encoder."""
        return not self.is_causal

    def window(self, layer: int) -> int:
        """How many tokens a token of this layer sees, itself included; 0 for all."""
        return 0

    def rotation(self, layer: int, context: int) -> Rope:
        """How queries and keys of this layer are turned, in a context of so many tokens."""
        return rope(
            self.rotated, self.rope_theta, self.scaling, positions=self.max_position_embeddings, context=context
        )


def projections(x: Tensor, w: Scope, cfg: Config) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden] -> queries [T, heads, dim], keys and values [T, kv_heads, dim]"""
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    q = linear(x, w / "q_proj", heads * dim, cfg.qkv_bias).reshape(tokens, heads, dim)
    k = linear(x, w / "k_proj", groups * dim, cfg.qkv_bias).reshape(tokens, groups, dim)
    v = linear(x, w / "v_proj", groups * dim, cfg.qkv_bias).reshape(tokens, groups, dim)
    return q, k, v


def rotary_attention(q: Tensor, k: Tensor, v: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    turn = cfg.rotation(layer, step.context)
    q, k = rotate(q, step, turn), rotate(k, step, turn)
    window, causal = cfg.window(layer), not cfg.bidirectional
    if window and not cfg.is_causal:
        window += 1  # both ways upstream counts the tokens beside a token, and from left to right that one too
    out = attend(q, k, v, step, layer, causal=causal, window=window, scale=cfg.score_scale, softcap=cfg.score_cap)
    return linear(out.reshape(q.shape[0], q.shape[1] * q.shape[2]), w / "o_proj", cfg.hidden_size, cfg.out_bias)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return rotary_attention(*projections(x, w, cfg), w, cfg, step, layer)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    gate = linear(x, w / "gate_proj", cfg.intermediate_size, cfg.mlp_bias)
    up = linear(x, w / "up_proj", cfg.intermediate_size, cfg.mlp_bias)
    return linear(ops.gated(gate, up, kind=ACTIVATIONS[cfg.activation]), w / "down_proj", cfg.hidden_size, cfg.mlp_bias)


def block(
    x: Tensor,
    w: Scope,
    cfg: Config,
    step: Step,
    layer: int,
    attention: Callable[..., Tensor] = self_attention,
    feed_forward: Callable[..., Tensor] = mlp,
) -> Tensor:
    """One layer; a relative gives the parts that are its own."""
    x = x + attention(rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps), w / "self_attn", cfg, step, layer)
    return x + feed_forward(rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps), w / "mlp", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return rms_norm(ops.take_rows(x, step.rows), w / "norm", cfg.rms_norm_eps)


def head(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    """Logits of hidden states: x [L, hidden] -> [L, vocab]"""
    if cfg.tie_word_embeddings:
        return tied_linear(x, w / "model" / "embed_tokens", cfg.vocab_size)
    return linear(x, w / "lm_head", cfg.vocab_size)


def token_logit(x: Tensor, w: Scope, cfg: Config, id: int) -> Tensor:
    """The logit of one token: x [L, hidden] -> [L, 1]"""
    rows = w / "model" / "embed_tokens" if cfg.tie_word_embeddings else w / "lm_head"
    return linear(x, rows, 1, part=(id, cfg.vocab_size))


def forward(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return head(hidden_states(w / "model", cfg, step, layers), w, cfg)
