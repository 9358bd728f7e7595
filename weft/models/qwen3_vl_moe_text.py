"""Qwen3-VL with experts (text): Qwen3 with experts, turned and deepened as qwen3_vl_text is.

Reference: transformers/models/qwen3_vl_moe. Published files hold the experts of a layer in one tensor, [experts,
inputs, outputs], gates before ups; those that transformers 5 saves, [experts, outputs, inputs]. Weights of chosen
experts always sum to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen3_moe, qwen3_vl_text
from weft.models.llama import token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
NAMES = replace(qwen3_vl_text.NAMES, stacks=True, halves=True)


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {**qwen3_moe.read_gguf(keys, config), **qwen3_vl_text.read_gguf(keys, config)}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    experts = qwen3_moe.write_gguf(gguf, {**config, "norm_topk_prob": True})
    return {**experts, **qwen3_vl_text.write_gguf(gguf, config)}


GGUF = replace(
    qwen3_moe.GGUF,
    architecture="qwen3vlmoe",
    model_type="qwen3_vl_moe_text",
    class_name="Qwen3VLMoeForConditionalGeneration",
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3_moe.Config):
    LIMITS: ClassVar[dict[str, int]] = {**qwen3_moe.Sparse.LIMITS, "deepstack_layers": 64}
    vocab_size: int = 151_936
    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    max_position_embeddings: int = 128_000
    rope_theta: float = 500_000.0
    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    deepstack_layers: int = 3  # as many as the tower's deepstack_visual_indexes

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm_topk_prob", True)  # whatever a file says
        super().__post_init__()

    def rotation(self, layer: int, context: int) -> Rope | None:
        return nn.turned_by_axes(super().rotation(layer, context), self.scaling, qwen3_vl_text.SECTIONS)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return qwen3_vl_text.with_deep(qwen3_moe.block(x, w, cfg, step, layer), cfg, step, layer)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
