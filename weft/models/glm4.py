"""GLM-4 (0414, 9B and 32B): norms before and after each part, half of each head rotated in neighbouring pairs.

Reference: transformers/models/glm4. Gate and up projections are row ranges of gate_up_proj.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models import llama, phi3
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step
    from weft.nn import description as said

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
PART = 0.5  # of each head rotates, where a file leaves it out


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    dim = config["head_dim"]
    return {"partial_rotary_factor": keys.count("rope.dimension_count", dim, high=dim) / dim}


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"rope.dimension_count": int(config["head_dim"] * config.get("partial_rotary_factor", PART))}


GGUF = replace(
    llama.GGUF,
    architecture="glm4",
    model_type="glm4",
    class_name="Glm4ForCausalLM",
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "post_attention_norm": "post_self_attn_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
        "post_ffw_norm": "post_mlp_layernorm",
    },
    absent=frozenset(),
    paired=False,  # channels are paired in the same way on both sides
    part_rotates=True,
    factors="",
    head_dim=128,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    num_key_value_heads: int = 2
    head_dim: int = 128
    rms_norm_eps: float = 1.5625e-07
    max_position_embeddings: int = 131_072
    attention_bias: bool = True
    partial_rotary_factor: float = PART

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_part_rotates(self)

    @property
    def out_bias(self) -> bool:
        return False

    @property
    def rotated(self) -> int:
        return int(self.channels * self.partial_rotary_factor)

    def rotation(self, layer: int, context: int) -> Rope | None:
        rotation = super().rotation(layer, context)
        return rotation and replace(rotation, interleaved=True)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    def norm(y: Tensor, name: str) -> Tensor:
        return nn.rms_norm(y, w / name, cfg.rms_norm_eps)

    y = llama.self_attention(norm(x, "input_layernorm"), w / "self_attn", cfg, step, layer)
    x = x + norm(y, "post_self_attn_layernorm")
    y = phi3.mlp(norm(x, "post_attention_layernorm"), w / "mlp", cfg)
    return x + norm(y, "post_mlp_layernorm")


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    at = "model.layers.{i}."
    after = {"attention_out_norm": f"{at}post_self_attn_layernorm", "mlp_out_norm": f"{at}post_mlp_layernorm"}
    return llama.describe(cfg, block=said.Block("sandwich"), fused=("gate_up",), weights=after)
