"""Llama (1 to 3, SmolLM2, TinyLlama): grouped-query attention, rotary positions, SwiGLU, tied or untied head.

Reference: transformers/models/llama. Checkpoint names are the scope names below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft import ops
from weft.errors import UnsupportedError
from weft.nn import Scope, Step, attend, embedding, inverse_frequencies, linear, rms_norm, rotate, tied_linear

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


@dataclass(frozen=True)
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

    def __post_init__(self) -> None:
        if self.hidden_act not in ACTIVATIONS:
            raise UnsupportedError(f"[llama] hidden_act {self.hidden_act!r}; known are {', '.join(ACTIVATIONS)}")
        if self.num_attention_heads % self.kv_heads:
            raise UnsupportedError(
                f"[llama] {self.num_attention_heads} heads do not share {self.kv_heads} key heads evenly"
            )

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def channels(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    q = linear(x, w / "q_proj", heads * dim, cfg.attention_bias).reshape(tokens, heads, dim)
    k = linear(x, w / "k_proj", groups * dim, cfg.attention_bias).reshape(tokens, groups, dim)
    v = linear(x, w / "v_proj", groups * dim, cfg.attention_bias).reshape(tokens, groups, dim)
    frequencies = inverse_frequencies(dim, cfg.rope_theta, cfg.rope_scaling)
    out = attend(rotate(q, step, frequencies), rotate(k, step, frequencies), v, step, layer)  # [tokens, heads, dim]
    return linear(out.reshape(tokens, heads * dim), w / "o_proj", cfg.hidden_size, cfg.attention_bias)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    gate = linear(x, w / "gate_proj", cfg.intermediate_size, cfg.mlp_bias)
    up = linear(x, w / "up_proj", cfg.intermediate_size, cfg.mlp_bias)
    return linear(ops.gated(gate, up, kind=ACTIVATIONS[cfg.hidden_act]), w / "down_proj", cfg.hidden_size, cfg.mlp_bias)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    x = x + self_attention(rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps), w / "self_attn", cfg, step, layer)
    return x + mlp(rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps), w / "mlp", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return rms_norm(ops.take_rows(x, step.rows), w / "norm", cfg.rms_norm_eps)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    x = hidden_states(w / "model", cfg, step)
    if cfg.tie_word_embeddings:
        return tied_linear(x, w / "model" / "embed_tokens", cfg.vocab_size)
    return linear(x, w / "lm_head", cfg.vocab_size)
