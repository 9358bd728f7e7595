"""Granite (3.x): Llama with multipliers of embeddings, residuals, attention scores and logits.

Reference: transformers/models/granite. Checkpoint names are Llama's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
MULTIPLIERS = {  # config.json's -> GGUF's
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {name: keys.real(key, 1.0) for name, key in MULTIPLIERS.items()}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float(config.get(name, 1.0)) for name, key in MULTIPLIERS.items()}


GGUF = replace(
    llama.GGUF,
    architecture="granite",
    model_type="granite",
    class_name="GraniteForCausalLM",
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = tuple(MULTIPLIERS)
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    logits_scaling: float = 1.0

    @property
    def score_scale(self) -> float:
        return self.attention_multiplier


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y = nn.rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps)
    x = x + nn.scale(llama.self_attention(y, w / "self_attn", cfg, step, layer), by=cfg.residual_multiplier)
    y = nn.rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps)
    return x + nn.scale(llama.mlp(y, w / "mlp", cfg), by=cfg.residual_multiplier)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    x = nn.scale(x, by=cfg.embedding_multiplier)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(nn.take_rows(x, step.rows), w / "norm", cfg.rms_norm_eps)


def forward(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    logits = llama.head(hidden_states(w / "model", cfg, step, layers), w, cfg)
    return nn.scale(logits, by=1.0 / cfg.logits_scaling)


def token_logit(x: Tensor, w: Scope, cfg: Config, id: int) -> Tensor:
    """The logit of one token: x [L, hidden] -> [L, 1]"""
    return nn.scale(llama.token_logit(x, w, cfg, id), by=1.0 / cfg.logits_scaling)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    return llama.describe(
        cfg,
        embedding=said.Embedding(scale=cfg.embedding_multiplier),
        block=said.Block("pre", residual_scale=cfg.residual_multiplier),
        output=said.Output(tied=cfg.tie_word_embeddings, scale=1.0 / cfg.logits_scaling),
    )
