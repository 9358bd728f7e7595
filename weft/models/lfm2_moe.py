"""LFM2 with experts (8B-A1B, 24B-A2B): scores are sigmoids, and a bias of its own chooses between experts.

Reference: transformers/models/lfm2_moe. Names are LFM2's. The first layers have one feed-forward part, the others
experts with w1 (gate), w3 (up) and w2 (down).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import lfm2, llama, qwen3_moe
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
SUM_EPS = 1e-6  # added to the sum that a token's weights are divided by
SIGMOID = 2  # GGUF's number for scores that are sigmoids


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    if keys.size("expert_gating_func", SIGMOID) != SIGMOID:
        keys.refuse("expert_gating_func", "must be 2, a sigmoid")
    layers = config["num_hidden_layers"]
    return {
        **lfm2.read_gguf(keys, config),
        **qwen3_moe.read_gguf(keys, config),
        "num_dense_layers": keys.size("leading_dense_block_count", 0, high=layers),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("routed_scaling_factor", 1.0) != 1.0:
        raise gguf.unwritable("routed_scaling_factor")
    if not config.get("use_expert_bias", True):
        raise gguf.unwritable("use_expert_bias false")
    return {
        **lfm2.write_gguf(gguf, {**config, "block_auto_adjust_ff_dim": False}),
        **qwen3_moe.expert_keys(gguf, {"norm_topk_prob": True, **config}, normalised=True),
        "expert_gating_func": SIGMOID,
        "leading_dense_block_count": config["num_dense_layers"],
    }


GGUF = replace(
    lfm2.GGUF,
    architecture="lfm2moe",
    model_type="lfm2_moe",
    class_name="Lfm2MoeForCausalLM",
    layer={
        **lfm2.GGUF.layer,
        "ffn_gate_inp": "feed_forward.gate",
        "ffn_gate_exps": "feed_forward.experts.each.w1",
        "ffn_up_exps": "feed_forward.experts.each.w3",
        "ffn_down_exps": "feed_forward.experts.each.w2",
    },
    whole={"exp_probs_b.bias": "feed_forward.expert_bias"},
    experts=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3_moe.Sparse, lfm2.Config):
    LIMITS: ClassVar[dict[str, int]] = {}
    block_auto_adjust_ff_dim: bool = False
    num_experts: int = 32
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1792
    norm_topk_prob: bool = True
    num_dense_layers: int = 2
    use_expert_bias: bool = True
    routed_scaling_factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_experts()

    def sparse(self, layer: int) -> bool:
        return layer >= self.num_dense_layers


def experts(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return nn.mixture(
        x,
        nn.linear(x, w / "gate", cfg.num_experts),
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.moe_intermediate_size,
        kind="silu",
        names=("w1", "w3", "w2"),
        bias=w.weight("expert_bias", cfg.num_experts) if cfg.use_expert_bias else None,
        sigmoid=True,
        normalise=cfg.norm_topk_prob,
        scale=cfg.routed_scaling_factor,
        eps=SUM_EPS,
    )


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return lfm2.block(x, w, cfg, step, layer, experts if cfg.sparse(layer) else lfm2.feed_forward)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return lfm2.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)
