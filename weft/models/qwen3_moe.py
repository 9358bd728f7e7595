"""Qwen3 with experts (30B-A3B, 235B-A22B): a softmax over all experts chooses a few of them for each token.

Reference: transformers/models/qwen3_moe. Checkpoints name experts one by one, or hold them in one tensor; nn.mixture
reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen3
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
STACKS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.each.gate_proj",
    "ffn_up_exps": "mlp.experts.each.up_proj",
    "ffn_down_exps": "mlp.experts.each.down_proj",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    experts = keys.count("expert_count", high=nn.MAX_EXPERTS)
    return {
        "num_experts": experts,
        "num_experts_per_tok": keys.count("expert_used_count", high=experts),
        "moe_intermediate_size": keys.count("expert_feed_forward_length", config["intermediate_size"], high=1 << 20),
        "norm_topk_prob": True,
    }


def expert_keys(gguf: Gguf, config: Mapping[str, Any], *, normalised: bool) -> dict[str, Any]:
    """The keys of experts; readers of the format divide weights by their sum or do not, whatever a file says."""
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise gguf.unwritable("a layer without experts")
    if bool(config.get("norm_topk_prob", False)) != normalised:
        raise gguf.unwritable(f"norm_topk_prob {str(not normalised).lower()}")
    return {
        "expert_count": config.get("num_experts") or config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("use_sliding_window"):
        raise gguf.unwritable("use_sliding_window")
    return expert_keys(gguf, config, normalised=True)


GGUF = replace(
    qwen3.GGUF,
    architecture="qwen3moe",
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    layer={**qwen3.GGUF.layer, **STACKS},
    experts=True,
    head_dim=0,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Sparse:
    """What a config says about experts."""

    ALIASES: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}
    LIMITS: ClassVar[dict[str, int]] = {
        "num_experts": nn.MAX_EXPERTS,
        "num_experts_per_tok": nn.MAX_EXPERTS,
        "moe_intermediate_size": 1 << 20,
        "decoder_sparse_step": 1024,
    }
    num_experts: int = 128
    num_experts_per_tok: int = 8
    moe_intermediate_size: int = 768
    norm_topk_prob: bool = False
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None

    def check_experts(self) -> None:
        if self.num_experts_per_tok > self.num_experts:
            what = f"must be at most num_experts ({self.num_experts})"
            raise nn.unsupported(self, "num_experts_per_tok", what, given=self.num_experts_per_tok)

    def sparse(self, layer: int) -> bool:
        """Whether this layer has experts; the others have one feed-forward part."""
        return layer not in (self.mlp_only_layers or ()) and (layer + 1) % self.decoder_sparse_step == 0


@frozen
class Config(Sparse, qwen3.Config):
    head_dim: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_experts()

    def window(self, layer: int) -> int:
        return self.sliding_window or 0 if self.use_sliding_window else 0


def experts(x: Tensor, w: Scope, cfg: Any, **shared: Any) -> Tensor:
    scores = nn.linear(x, w / "gate", cfg.num_experts)
    return nn.mixture(
        x,
        scores,
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.moe_intermediate_size,
        kind=cfg.activation,
        normalise=cfg.norm_topk_prob,
        **shared,
    )


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    feed_forward = experts if cfg.sparse(layer) else llama.mlp
    return llama.block(x, w, cfg, step, layer, qwen3.self_attention, feed_forward)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
