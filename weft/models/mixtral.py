"""Mixtral (8x7B, 8x22B): Mistral with eight experts, of which each token takes two.

Reference: transformers/models/mixtral. Checkpoints call the experts' matrices w1 (gate), w3 (up) and w2 (down), below
block_sparse_moe; those that hold all experts in one tensor call the part mlp. GGUF files of it say `llama`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, mistral
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    experts = keys.count("expert_count", high=nn.MAX_EXPERTS)
    used = keys.count("expert_used_count", high=experts)
    return {"num_local_experts": experts, "num_experts_per_tok": used, "sliding_window": None}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("sliding_window") is not None:
        mistral.write_gguf(gguf, config)
    return {"expert_count": config["num_local_experts"], "expert_used_count": config["num_experts_per_tok"]}


GGUF = replace(
    llama.GGUF,
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    layer={
        **llama.GGUF.layer,
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.each.w1",
        "ffn_up_exps": "block_sparse_moe.experts.each.w3",
        "ffn_down_exps": "block_sparse_moe.experts.each.w2",
    },
    experts=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(mistral.Config):
    LIMITS: ClassVar[dict[str, int]] = {"num_local_experts": nn.MAX_EXPERTS, "num_experts_per_tok": nn.MAX_EXPERTS}
    ALIASES: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    num_key_value_heads: int = 8
    rms_norm_eps: float = 1e-5
    rope_theta: float = 1_000_000.0
    sliding_window: int | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_experts_per_tok > self.num_local_experts:
            what = f"must be at most num_local_experts ({self.num_local_experts})"
            raise nn.unsupported(self, "num_experts_per_tok", what, given=self.num_experts_per_tok)


def experts(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    scores = nn.linear(x, w / "gate", cfg.num_local_experts)
    return nn.mixture(
        x,
        scores,
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.intermediate_size,
        kind=cfg.activation,
        names=("w1", "w3", "w2"),
        normalise=True,
    )


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    below = "mlp" if "mlp.gate.weight" in w else "block_sparse_moe"
    y = nn.rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps)
    x = x + llama.self_attention(y, w / "self_attn", cfg, step, layer)
    return x + experts(nn.rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps), w / below, cfg)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
