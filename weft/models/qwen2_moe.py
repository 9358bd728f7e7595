"""Qwen2 with experts (1.5 A2.7B, 57B-A14B): beside the chosen experts every token takes a shared one, times a gate.

Reference: transformers/models/qwen2_moe. Names are those of qwen3_moe, with shared_expert and shared_expert_gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen2, qwen3_moe
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
STACKS = {
    **qwen3_moe.STACKS,
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {
        **qwen3_moe.read_gguf(keys, config),
        "shared_expert_intermediate_size": keys.rows("blk.0.ffn_up_shexp.weight"),
        "norm_topk_prob": False,
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **qwen2.write_gguf(gguf, config),
        **qwen3_moe.expert_keys(gguf, config, normalised=False),
        "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
    }


GGUF = replace(
    qwen2.GGUF,
    architecture="qwen2moe",
    model_type="qwen2_moe",
    class_name="Qwen2MoeForCausalLM",
    layer={**qwen2.GGUF.layer, **STACKS},
    experts=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(qwen3_moe.Sparse, qwen2.Config):
    LIMITS: ClassVar[dict[str, int]] = {"shared_expert_intermediate_size": 1 << 20}
    num_experts: int = 60
    num_experts_per_tok: int = 4
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    qkv_bias: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_experts()

    def window(self, layer: int) -> int:
        """Every second layer below max_window_layers has the window, unless the file lists each layer's type."""
        if not self.use_sliding_window or not self.sliding_window:
            return 0
        if self.layer_types is not None:
            return self.sliding_window if self.layer_types[layer] == "sliding_attention" else 0
        return self.sliding_window if layer % 2 == 0 and layer < self.max_window_layers else 0


def experts(x: Tensor, w: Scope, cfg: Any) -> Tensor:
    own = w / "shared_expert"
    gate, up = (nn.linear(x, own / name, cfg.shared_expert_intermediate_size) for name in ("gate_proj", "up_proj"))
    shared = nn.linear(nn.gated(gate, up, kind=cfg.activation), own / "down_proj", cfg.hidden_size)
    share = nn.activate(nn.linear(x, w / "shared_expert_gate", 1), kind="sigmoid")
    return qwen3_moe.experts(x, w, cfg, shared=shared, share=share)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return llama.block(x, w, cfg, step, layer, llama.self_attention, experts if cfg.sparse(layer) else llama.mlp)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
