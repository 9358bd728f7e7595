"""Qwen3-Next (80B-A3B): Qwen3.5's layers, with experts and fused projections of the delta rule.

Reference: transformers/models/qwen3_next. The rows of in_proj_qkvz lie key head by key head: its queries, its keys, and
the values and gates of the value heads that read it; so do those of in_proj_ba. Experts are Qwen2's, a shared one too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen2_moe, qwen3_5_text, qwen3_moe
from weft.models.llama import NAMES, token_logit

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
GGUF = None


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
    x = nn.embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return qwen3_5_text.norm(nn.take_rows(x, step.rows), w / "norm", cfg)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)
