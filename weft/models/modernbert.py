"""ModernBERT (gte-modernbert): rotary positions, norms before the sums, gated GELU; two of three layers see a window.

Reference: transformers/models/modernbert. Checkpoint names are the scope names below; Wqkv and Wi are stored fused, and
neither norms nor products have a bias unless the config says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft import ops
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.models.bert import ACTIVATIONS
from weft.nn import Rope, Scope, Step, attend, embedding, layer_norm, linear, rope, rotate

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "encoder"
LAYER_TYPES = ("full_attention", "sliding_attention")


@frozen
class Config:
    # Files leave out what is upstream's default.
    vocab_size: int = 50_368
    hidden_size: int = 768
    intermediate_size: int = 1152
    num_hidden_layers: int = 22
    num_attention_heads: int = 12
    hidden_activation: str = "gelu"
    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    layer_types: list[str] | None = None
    global_attn_every_n_layers: int = 3  # in older files, in place of the list
    local_attention: int = 128
    rope_theta: float = 0.0
    rope_scaling: dict[str, Any] | None = None
    rope_local_base_freq: float = 0.0
    rope_local_scaling: dict[str, Any] | None = None
    global_rope_theta: float = 160_000.0  # older files' names of the two rates
    local_rope_theta: float = 10_000.0
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"

    def __post_init__(self) -> None:
        for name in ("hidden_activation", "classifier_activation"):
            if getattr(self, name) not in ACTIVATIONS:
                raise UnsupportedError(
                    f"[modernbert] {name} {getattr(self, name)!r:.80}; known are {', '.join(ACTIVATIONS)}"
                )
        if self.hidden_size % (2 * self.num_attention_heads):
            raise UnsupportedError(
                f"[modernbert] hidden_size {self.hidden_size} does not split into an even number of channels for each "
                f"of num_attention_heads {self.num_attention_heads}"
            )
        if self.classifier_pooling not in ("cls", "mean"):
            raise UnsupportedError(f"[modernbert] classifier_pooling {self.classifier_pooling!r:.80}; cls or mean")
        types = self.layer_types
        if types is not None and (len(types) != self.num_hidden_layers or not set(types) <= set(LAYER_TYPES)):
            raise UnsupportedError(
                f"[modernbert] layer_types must be one of {', '.join(LAYER_TYPES)} for each of "
                f"{self.num_hidden_layers} layers: {', '.join(types)[:80]}"
            )

    @property
    def channels(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings

    def slides(self, layer: int) -> bool:
        """Whether tokens of this layer see a window only."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "sliding_attention"
        return layer % self.global_attn_every_n_layers != 0

    def window(self, layer: int) -> int:
        """A token sees those less than so many away; 0 for all. The config has the width of both sides together."""
        return self.local_attention // 2 + 1 if self.slides(layer) else 0

    def rotation(self, layer: int) -> Rope:
        """Layers that slide turn at a rate of their own."""
        if self.slides(layer):
            theta, scaling = self.rope_local_base_freq or self.local_rope_theta, self.rope_local_scaling
        else:
            theta, scaling = self.rope_theta or self.global_rope_theta, self.rope_scaling
        turn = rope(self.channels, theta, scaling, positions=self.max_position_embeddings)
        return replace(turn, name="rope.local.inv_freq") if self.slides(layer) else turn


def norm(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return layer_norm(x, w, cfg.norm_eps, bias=cfg.norm_bias)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, hidden = x.shape[0], cfg.num_attention_heads, cfg.hidden_size
    q, k, v = (
        linear(x, w / "Wqkv", hidden, cfg.attention_bias, part=(i * hidden, 3 * hidden)).reshape(
            tokens, heads, cfg.channels
        )
        for i in range(3)
    )
    turn = cfg.rotation(layer)
    q, k = rotate(q, step, turn), rotate(k, step, turn)
    out = attend(q, k, v, step, layer, causal=False, window=cfg.window(layer)).reshape(tokens, hidden)
    return linear(out, w / "Wo", hidden, cfg.attention_bias)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    inner, fused = cfg.intermediate_size, w / "Wi"
    gate = linear(x, fused, inner, cfg.mlp_bias, part=(0, 2 * inner))
    up = linear(x, fused, inner, cfg.mlp_bias, part=(inner, 2 * inner))
    return linear(ops.gated(gate, up, kind=ACTIVATIONS[cfg.hidden_activation]), w / "Wo", cfg.hidden_size, cfg.mlp_bias)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    """One layer; the first has no norm before its attention: the embeddings' own is just behind it."""
    normed = norm(x, w / "attn_norm", cfg) if layer else x
    x = x + self_attention(normed, w / "attn", cfg, step, layer)
    return x + mlp(norm(x, w / "mlp_norm", cfg), w / "mlp", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of every token [T, hidden]."""
    x = embedding(step.ids, w / "embeddings" / "tok_embeddings", cfg.vocab_size, cfg.hidden_size)
    x = norm(x, w / "embeddings" / "norm", cfg)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return norm(x, w / "final_norm", cfg)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of pooled states: x [B, hidden] -> [B, labels]"""
    inner = linear(x, w / "head" / "dense", cfg.hidden_size, cfg.classifier_bias)
    inner = norm(ops.activate(inner, kind=ACTIVATIONS[cfg.classifier_activation]), w / "head" / "norm", cfg)
    return linear(inner, w / "classifier", labels, bias=True)
