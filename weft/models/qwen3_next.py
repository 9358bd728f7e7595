"""Qwen3-Next (80B-A3B): Qwen3.5's layers, with experts and fused projections of the delta rule.

Reference: transformers/models/qwen3_next. The rows of in_proj_qkvz lie key head by key head: its queries, its keys, and
the values and gates of the value heads that read it; so do those of in_proj_ba. Newer GGUF files have Qwen3.5's
in_proj_qkv and in_proj_z instead. Experts are Qwen2's, a shared one too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen2_moe, qwen3_5_text, qwen3_moe
from weft.models.llama import NAMES, token_logit
from weft.models.qwen3_5_text import DRAFT_HEAD
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
        "tiled_value_heads": False,
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    found = qwen3_5_text.write_gguf(gguf, {**config, "tiled_value_heads": True})
    return {
        **{key: value for key, value in found.items() if key != "rope.dimension_sections"},
        **qwen3_moe.expert_keys(gguf, {"norm_topk_prob": True, **config}, normalised=True),
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    }


GGUF = replace(
    qwen3_5_text.GGUF,
    architecture="qwen3next",
    model_type="qwen3_next",
    class_name="Qwen3NextForCausalLM",
    layer={
        **{name: own for name, own in qwen3_5_text.GGUF.layer.items() if name not in ("ssm_alpha", "ssm_beta")},
        "ssm_in": "linear_attn.in_proj_qkvz",
        "ssm_ba": "linear_attn.in_proj_ba",
        **qwen2_moe.STACKS,
    },
    experts=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3_moe.Sparse, qwen3_5_text.Config):
    LIMITS: ClassVar[dict[str, int]] = {"shared_expert_intermediate_size": 1 << 20}
    num_key_value_heads: int = 2
    num_experts: int = 512
    num_experts_per_tok: int = 10
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    norm_topk_prob: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_experts()


def projected(x: Tensor, w: Scope, cfg: Config, name: str) -> Tensor:
    """As in qwen3_5_text: rows of every key head's part of a fused matrix."""
    groups, keys = cfg.linear_num_key_heads, cfg.linear_key_head_dim
    each = cfg.linear_num_value_heads // groups
    if name not in "ab" and "in_proj_qkv.weight" in w:
        return qwen3_5_text.projected(x, w, cfg, name)
    if name in "ab":
        first = each if name == "a" else 0
        return nn.linear(x, w / "in_proj_ba", groups * each, part=(first, groups * 2 * each, 2 * each))
    values = each * cfg.linear_value_head_dim
    first, count = {"q": (0, keys), "k": (keys, keys), "v": (2 * keys, values), "z": (2 * keys + values, values)}[name]
    period = 2 * keys + 2 * values
    return nn.linear(x, w / "in_proj_qkvz", groups * count, part=(first, groups * period, period))


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y = qwen3_5_text.norm(x, w / "input_layernorm", cfg)
    if cfg.attends(layer):
        x = x + qwen3_5_text.self_attention(y, w / "self_attn", cfg, step, layer)
    else:
        x = x + qwen3_5_text.delta_layer(y, w / "linear_attn", cfg, step, layer, projected)
    feed_forward = qwen2_moe.experts if cfg.sparse(layer) else llama.mlp
    return x + feed_forward(qwen3_5_text.norm(x, w / "post_attention_layernorm", cfg), w / "mlp", cfg)


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
