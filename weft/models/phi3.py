"""Phi-3 (Phi-3.5, Phi-4-mini): Llama with fused projections, optional partial rotation and sliding window.

Reference: transformers/models/phi3. Queries, keys and values are row ranges of qkv_proj, gate and up of gate_up_proj.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES
from weft.weights.names import Gguf, GgufKeys

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states"]

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "decoder"
ORIGINAL = 4096  # original_max_position_embeddings, where a file leaves it out
ROPE_WORDS = {"su": "longrope", "yarn": "longrope"}  # older files' words


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    dim, context = config["head_dim"], config["max_position_embeddings"]
    return {
        "sliding_window": keys.size("attention.sliding_window", 0) or None,
        "partial_rotary_factor": keys.count("rope.dimension_count", dim, high=dim) / dim,
        "original_max_position_embeddings": keys.count("rope.scaling.original_context_length", context),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    original = int(config.get("original_max_position_embeddings") or ORIGINAL)
    keys: dict[str, Any] = {
        "rope.scaling.original_context_length": original,
        "rope.dimension_count": int(config["head_dim"] * config.get("partial_rotary_factor", 1.0)),
    }
    if config.get("sliding_window") is not None:
        keys["attention.sliding_window"] = int(config["sliding_window"])
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if ROPE_WORDS.get(kind, kind) == "longrope":
        factor = scaling.get("factor") or config["max_position_embeddings"] / original
        magnitude = math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        given = scaling.get("attention_factor")
        keys |= {"rope.scaling.type": "longrope"}
        keys |= {"rope.scaling.attn_factor": magnitude if given is None else float(given)}
    return keys


GGUF = replace(
    llama.GGUF,
    architecture="phi3",
    model_type="phi3",
    class_name="Phi3ForCausalLM",
    layer={
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    },
    absent=frozenset({"rope_factors_short", "rope_factors_long"}),  # in the config
    paired=False,
    part_rotates=True,
    factors="longrope",
    rope_words=ROPE_WORDS,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = ORIGINAL
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_part_rotates(self)

    @property
    def rotated(self) -> int:
        return int(self.channels * self.partial_rotary_factor)

    @property
    def scaling(self) -> Mapping[str, Any]:
        """rope_scaling with the original context, which this model's files keep outside it."""
        given = self.rope_scaling or {}
        kind = given.get("rope_type", given.get("type", "default"))
        kind = ROPE_WORDS.get(kind, kind) if isinstance(kind, str) else kind
        return {"original_max_position_embeddings": self.original_max_position_embeddings, **given, "rope_type": kind}

    def window(self, layer: int) -> int:
        return self.sliding_window or 0


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    rows, fused = (heads + 2 * groups) * dim, w / "qkv_proj"
    q = nn.linear(x, fused, heads * dim, part=(0, rows)).reshape(tokens, heads, dim)
    k = nn.linear(x, fused, groups * dim, part=(heads * dim, rows)).reshape(tokens, groups, dim)
    v = nn.linear(x, fused, groups * dim, part=((heads + groups) * dim, rows)).reshape(tokens, groups, dim)
    return llama.rotary_attention(q, k, v, w, cfg, step, layer)


def mlp(x: Tensor, w: Scope, cfg: llama.Config) -> Tensor:
    inner, fused = cfg.intermediate_size, w / "gate_up_proj"
    gate = nn.linear(x, fused, inner, part=(0, 2 * inner))
    up = nn.linear(x, fused, inner, part=(inner, 2 * inner))
    return nn.linear(nn.gated(gate, up, kind=cfg.activation), w / "down_proj", cfg.hidden_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return llama.block(x, w, cfg, step, layer, self_attention, mlp)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    return llama.describe(cfg, fused=("qkv", "gate_up"))
