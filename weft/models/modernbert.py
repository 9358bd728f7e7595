"""ModernBERT (gte-modernbert): rotary positions, norms before the sums, gated GELU; two of three layers have a window.

Reference: transformers/models/modernbert. Checkpoint names are the scope names below; Wqkv and Wi are stored fused, and
neither norms nor products have a bias unless the config says so.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models.bert import ACTIVATIONS
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step
    from weft.nn import description as said

KIND = "encoder"
NAMES = Names(prefixes=("model.",))
GGUF = None


@frozen
class Config:
    LIMITS: ClassVar[dict[str, int]] = {"local_attention": 16_777_216, "global_attn_every_n_layers": 1024}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("rope_local_base_freq", "global_rope_theta", "local_rope_theta")
    LAYER_ROPES: ClassVar[dict[str, tuple[str, str]]] = {
        "full_attention": ("rope_theta", "rope_scaling"),
        "sliding_attention": ("rope_local_base_freq", "rope_local_scaling"),
    }
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
            nn.check_one_of(self, name, ACTIVATIONS)
        if self.hidden_size % (2 * self.num_attention_heads):
            what = f"must be an even multiple of num_attention_heads ({self.num_attention_heads})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)
        nn.check_one_of(self, "classifier_pooling", ("cls", "mean"))
        nn.check_layer_types(self, self.layer_types)

    @property
    def channels(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings

    def slides(self, layer: int) -> bool:
        """Whether this layer has a window."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "sliding_attention"
        return layer % self.global_attn_every_n_layers != 0

    def window(self, layer: int) -> int:
        """A token attends to those less than so many away; 0 for all. The config's width is that of both sides."""
        return self.local_attention // 2 + 1 if self.slides(layer) else 0

    def rotation(self, layer: int) -> Rope:
        """Layers with a window have their own theta."""
        if self.slides(layer):
            theta, scaling = self.rope_local_base_freq or self.local_rope_theta, self.rope_local_scaling
        else:
            theta, scaling = self.rope_theta or self.global_rope_theta, self.rope_scaling
        rotation = nn.rope(self.channels, theta, scaling, positions=self.max_position_embeddings)
        return replace(rotation, name="rope.local.inv_freq") if self.slides(layer) else rotation


def norm(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return nn.layer_norm(x, w, cfg.norm_eps, bias=cfg.norm_bias)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, hidden = x.shape[0], cfg.num_attention_heads, cfg.hidden_size
    q, k, v = (
        nn.linear(x, w / "Wqkv", hidden, cfg.attention_bias, part=(i * hidden, 3 * hidden)).reshape(
            tokens, heads, cfg.channels
        )
        for i in range(3)
    )
    rotation = cfg.rotation(layer)
    q, k = nn.rotate(q, step, rotation), nn.rotate(k, step, rotation)
    out = nn.attend(q, k, v, step, layer, causal=False, window=cfg.window(layer)).reshape(tokens, hidden)
    return nn.linear(out, w / "Wo", hidden, cfg.attention_bias)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    inner, fused = cfg.intermediate_size, w / "Wi"
    gate = nn.linear(x, fused, inner, cfg.mlp_bias, part=(0, 2 * inner))
    up = nn.linear(x, fused, inner, cfg.mlp_bias, part=(inner, 2 * inner))
    return nn.linear(
        nn.gated(gate, up, kind=ACTIVATIONS[cfg.hidden_activation]), w / "Wo", cfg.hidden_size, cfg.mlp_bias
    )


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    """One layer; the first has no norm before its attention: the norm of the embeddings comes right before it."""
    normed = norm(x, w / "attn_norm", cfg) if layer else x
    x = x + self_attention(normed, w / "attn", cfg, step, layer)
    return x + mlp(norm(x, w / "mlp_norm", cfg), w / "mlp", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of every token [T, hidden]."""
    x = nn.embedding(step.ids, w / "embeddings" / "tok_embeddings", cfg.vocab_size, cfg.hidden_size)
    x = norm(x, w / "embeddings" / "norm", cfg)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return norm(x, w / "final_norm", cfg)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of pooled states: x [B, hidden] -> [B, labels]"""
    inner = nn.linear(x, w / "head" / "dense", cfg.hidden_size, cfg.classifier_bias)
    inner = norm(nn.activate(inner, kind=ACTIVATIONS[cfg.classifier_activation]), w / "head" / "norm", cfg)
    return nn.linear(inner, w / "classifier", labels, bias=True)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    layers, at = range(cfg.num_hidden_layers), "layers.{i}."
    inner, bias = cfg.intermediate_size, cfg.attention_bias
    scores = said.Classifier(ACTIVATIONS[cfg.classifier_activation], bias=cfg.classifier_bias, norm=True)
    return said.described(
        {
            "embedding": "embeddings.tok_embeddings",
            "embedding_norm": "embeddings.norm",
            "attention_norm": f"{at}attn_norm",
            "qkv": f"{at}attn.Wqkv",
            "o": f"{at}attn.Wo",
            "mlp_norm": f"{at}mlp_norm",
            "gate_up": f"{at}mlp.Wi",
            "down": f"{at}mlp.Wo",
            "final_norm": "final_norm",
            "classifier_inner": "head.dense",
            "classifier_norm": "head.norm",
            "classifier": "classifier",
        },
        kind="encoder",
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        layers=cfg.num_hidden_layers,
        positions=cfg.positions,
        embedding=said.Embedding(norm=True),
        norm=said.Norm("layer", cfg.norm_eps, bias=cfg.norm_bias),
        block=said.Block("pre", first_norm=False),
        attention=said.both_ways(cfg.num_attention_heads, cfg.hidden_size, bias=bias, qkv="stacked"),
        mlp=said.Mlp(inner, ACTIVATIONS[cfg.hidden_activation], gated=True, bias=cfg.mlp_bias, gate="gate_up"),
        classifier=scores if "classifier.weight" in names else None,
        **said.layers_of([cfg.window(layer) for layer in layers], [cfg.rotation(layer) for layer in layers]),
    )
