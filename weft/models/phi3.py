"""Phi-3 (Phi-3.5, Phi-4-mini): Llama with fused projections; heads may be rotated in part; a window may be set.

Reference: transformers/models/phi3. Queries, keys and values are row ranges of qkv_proj, gate and up of gate_up_proj.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft import ops
from weft.frozen import frozen
from weft.models import llama
from weft.nn import Scope, Step, linear

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "decoder"


@frozen
class Config(llama.Config):
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int = 4096
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.partial_rotary_factor <= 1 or self.rotated % 2:
            raise self.unsupported(f"partial_rotary_factor {self.partial_rotary_factor} of {self.channels} channels")

    @property
    def rotated(self) -> int:
        return int(self.channels * self.partial_rotary_factor)

    @property
    def scaling(self) -> Mapping[str, Any]:
        """With what this model keeps beside it; older files call longrope su or yarn."""
        given = self.rope_scaling or {}
        kind = given.get("rope_type", given.get("type", "default"))
        kind = "longrope" if kind in ("su", "yarn") else kind
        return {"original_max_position_embeddings": self.original_max_position_embeddings, **given, "rope_type": kind}

    def window(self, layer: int) -> int:
        return self.sliding_window or 0


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    rows, fused = (heads + 2 * groups) * dim, w / "qkv_proj"
    q = linear(x, fused, heads * dim, part=(0, rows)).reshape(tokens, heads, dim)
    k = linear(x, fused, groups * dim, part=(heads * dim, rows)).reshape(tokens, groups, dim)
    v = linear(x, fused, groups * dim, part=((heads + groups) * dim, rows)).reshape(tokens, groups, dim)
    return llama.rotary_attention(q, k, v, w, cfg, step, layer)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    inner, fused = cfg.intermediate_size, w / "gate_up_proj"
    gate = linear(x, fused, inner, part=(0, 2 * inner))
    up = linear(x, fused, inner, part=(inner, 2 * inner))
    return linear(ops.gated(gate, up, kind=llama.ACTIVATIONS[cfg.activation]), w / "down_proj", cfg.hidden_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return llama.block(x, w, cfg, step, layer, self_attention, mlp)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
