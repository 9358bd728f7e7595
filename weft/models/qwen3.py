"""Qwen3: Qwen2 with norms over each head's queries and keys before the rotation, and a head size of its own.

Reference: transformers/models/qwen3. Checkpoint names are Llama's, with q_norm and k_norm beside the projections.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen2
from weft.models.llama import NAMES, token_logit

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
GGUF = replace(
    qwen2.GGUF,
    architecture="qwen3",
    model_type="qwen3",
    class_name="Qwen3ForCausalLM",
    layer={**llama.GGUF.layer, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    head_dim=128,
)


@frozen
class Config(qwen2.Config):
    head_dim: int = 128

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        return self.attention_bias


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    q, k, v = llama.projections(x, w, cfg)
    q = nn.rms_norm(q, w / "q_norm", cfg.rms_norm_eps)  # over the channels of each head
    k = nn.rms_norm(k, w / "k_norm", cfg.rms_norm_eps)
    return llama.rotary_attention(q, k, v, w, cfg, step, layer)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return llama.block(x, w, cfg, step, layer, self_attention)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    return llama.describe(cfg, qk_norm="head")
