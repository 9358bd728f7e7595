"""Qwen3.5 with experts (text; 35B-A3B, 122B-A10B): Qwen3.5's layers, with experts and a shared one in place of the MLP.

Reference: transformers/models/qwen3_5_moe. Names are those of qwen3_5_text and, below mlp, of qwen2_moe. The
experts of a layer are one tensor in most checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft.frozen import frozen
from weft.models import llama, qwen2_moe, qwen3_5_text, qwen3_moe
from weft.models.llama import token_logit
from weft.models.qwen3_5_text import DRAFT_HEAD, NAMES
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = [
    "DRAFT_HEAD",
    "GGUF",
    "KIND",
    "NAMES",
    "Config",
    "draft",
    "forward",
    "forward_hidden",
    "hidden_states",
    "token_logit",
]

KIND = "decoder"


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {
        **qwen3_5_text.read_gguf(keys, config),
        **qwen2_moe.read_gguf(keys, config),
        "norm_topk_prob": True,
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **qwen3_5_text.write_gguf(gguf, {**config, "intermediate_size": config["moe_intermediate_size"]}),
        **qwen3_moe.expert_keys(gguf, {**config, "norm_topk_prob": True}, normalised=True),
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    }


GGUF = replace(
    qwen3_5_text.GGUF,
    architecture="qwen35moe",
    model_type="qwen3_5_moe_text",
    class_name="Qwen3_5MoeForCausalLM",
    layer={**qwen3_5_text.GGUF.layer, **qwen2_moe.STACKS},
    experts=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3_moe.Sparse, qwen3_5_text.Config):
    ALIASES: ClassVar[dict[str, str]] = {"moe_intermediate_size": "intermediate_size"}
    LIMITS: ClassVar[dict[str, int]] = {"shared_expert_intermediate_size": 1 << 20}
    num_key_value_heads: int = 2
    num_experts: int = 256
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    norm_topk_prob: bool = True  # whatever a file says

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_experts()


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return qwen3_5_text.block(x, w, cfg, step, layer, qwen2_moe.experts)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return qwen3_5_text.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)


def forward_hidden(w: Scope, cfg: Config, step: Step) -> tuple[Tensor, Tensor]:
    """`forward`, and the normed last hidden state of all tokens [T, hidden], which `draft` reads."""
    return qwen3_5_text.forward_hidden(w, cfg, step, block)


def draft(w: Scope, cfg: Config, step: Step) -> tuple[Tensor, Tensor]:
    """Multi-token prediction, as in qwen3_5_text; the head's layer has experts."""
    return qwen3_5_text.draft(w, cfg, step, qwen2_moe.experts)
