"""Gemma 4 (text, without experts; E2B, E4B, 31B): wider heads in layers without a window, and an input for each layer.

Reference: transformers/models/gemma4. Norms are over queries, keys and values, around both parts of a layer, and are
stored as they are. The last layers may read the keys and values of the last layer of their type that has its own. Every
layer may take a part of a second embedding, and of a projection of the first one; each ends with a factor of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import gemma3_text, llama
from weft.models.gemma3_text import NAMES
from weft.models.llama import token_logit

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
GGUF = None
FULL_ROPE = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": gemma3_text.THETA}


@frozen
class Config(llama.Config):
    LIMITS: ClassVar[dict[str, int]] = {
        "global_head_dim": 4096,
        "num_global_key_value_heads": 1024,
        "vocab_size_per_layer_input": 4_194_304,
    }
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("rope_local_base_freq", "final_logit_softcapping")
    LAYER_ROPES: ClassVar[dict[str, tuple[str, str]]] = gemma3_text.Config.LAYER_ROPES
    activation_field: ClassVar[str] = "hidden_activation"
    vocab_size: int = 262_144
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 30
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    rope_theta: float = gemma3_text.THETA
    rope_local_base_freq: float = gemma3_text.LOCAL_THETA
    rope_local_scaling: dict[str, Any] | None = None
    sliding_window: int = 512
    layer_types: list[str] | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: str | None = None  # "vision": of the tokens of images
    global_head_dim: int = 512
    num_global_key_value_heads: int | None = None
    per_layer_config: dict[str, Any] | None = None  # newer files: layer -> its head_dim and num_key_value_heads
    attention_k_eq_v: bool = False
    num_kv_shared_layers: int = 0
    use_double_wide_mlp: bool = False
    vocab_size_per_layer_input: int = 262_144
    hidden_size_per_layer_input: int = 256
    enable_moe_block: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types)
        if self.use_bidirectional_attention not in (None, "vision"):
            given = self.use_bidirectional_attention
            raise nn.unsupported(self, "use_bidirectional_attention", given=given, advice="weft runs it causally")
        if self.enable_moe_block:
            what = "must be false: weft does not run the experts of this model"
            raise nn.unsupported(self, "enable_moe_block", what, given=True)
        most = {"num_kv_shared_layers": self.num_hidden_layers - 1, "hidden_size_per_layer_input": 65_536}
        for field, limit in most.items():
            if not 0 <= getattr(self, field) <= limit:
                raise nn.unsupported(self, field, f"must be 0 to {limit}", given=getattr(self, field))
        for layer in range(self.num_hidden_layers):
            self._check_heads(layer)

    def _check_heads(self, layer: int) -> None:
        dim, heads, source = self.width(layer), self.groups(layer), self.source(layer)
        if not (isinstance(dim, int) and 0 < dim <= 4096 and dim % 2 == 0):
            raise nn.unsupported(self, "head_dim", f"must be even, 2 to 4096, in layer {layer}", given=dim)
        if not (isinstance(heads, int) and heads > 0 and self.num_attention_heads % heads == 0):
            what = f"must divide num_attention_heads ({self.num_attention_heads}) in layer {layer}"
            raise nn.unsupported(self, "num_key_value_heads", what, given=heads)
        if (dim, heads) != (self.width(source), self.groups(source)):
            what = f"differs between layer {layer} and layer {source}, whose keys and values it reads"
            raise nn.unsupported(self, "per_layer_config", what)

    @property
    def score_scale(self) -> float:
        return 1.0

    def slides(self, layer: int) -> bool:
        """Whether this layer has a window; the last one has none, whatever a file says."""
        if layer == self.num_hidden_layers - 1:
            return False
        if self.layer_types is not None:
            return self.layer_types[layer] == "sliding_attention"
        return (layer + 1) % gemma3_text.PATTERN != 0

    def window(self, layer: int) -> int:
        return self.sliding_window if self.slides(layer) else 0

    def _of_layer(self, layer: int, name: str) -> Any:
        """What per_layer_config says of a layer; None where it says nothing."""
        own = (self.per_layer_config or {}).get(str(layer))
        return own.get(name) if isinstance(own, dict) else None

    def width(self, layer: int) -> int:
        """Channels of a head."""
        if self.per_layer_config is not None:
            return self._of_layer(layer, "head_dim") or self.channels
        return self.channels if self.slides(layer) else self.global_head_dim

    def groups(self, layer: int) -> int:
        """Heads of keys and values."""
        if self.per_layer_config is not None:
            return self._of_layer(layer, "num_key_value_heads") or self.kv_heads
        own = self.num_global_key_value_heads if self.attention_k_eq_v and not self.slides(layer) else None
        return own or self.kv_heads

    def source(self, layer: int) -> int:
        """The layer whose keys and values this one reads: its own, or the last one of its type that has its own."""
        own = self.num_hidden_layers - self.num_kv_shared_layers
        if layer < own:
            return layer
        alike = [other for other in range(own) if self.slides(other) == self.slides(layer)]
        if not alike:
            what = f"leaves no layer whose keys and values layer {layer} could read"
            raise nn.unsupported(self, "num_kv_shared_layers", what, given=self.num_kv_shared_layers)
        return alike[-1]

    def inner(self, layer: int) -> int:
        """The width of the feed-forward part."""
        return self.intermediate_size * (2 if self.use_double_wide_mlp and self.source(layer) != layer else 1)

    def rotation(self, layer: int, context: int) -> Rope | None:
        slides = self.slides(layer)
        theta = self.rope_local_base_freq if slides else self.rope_theta
        scaling: Mapping[str, Any] | None = self.rope_local_scaling if slides else self.rope_scaling or FULL_ROPE
        made = nn.rope(self.width(layer), theta, scaling, positions=self.max_position_embeddings, context=context)
        return replace(made, name="rope.local.inv_freq") if slides else made


def norm(x: Tensor, w: Scope | None, cfg: Config) -> Tensor:
    return nn.rms_norm(x, w, cfg.rms_norm_eps)


class Inputs:
    """What layers get beside the hidden states: keys and values of earlier ones, and a part of the second embedding."""

    def __init__(self, x: Tensor, w: Scope, cfg: Config, step: Step) -> None:
        self.shared: dict[int, tuple[Tensor, Tensor]] = {}
        self._x, self._w, self._cfg, self._step = x, w, cfg, step

    def of(self, layer: int) -> Tensor:
        """The layer's own input [T, hidden_size_per_layer_input]."""
        cfg, w = self._cfg, self._w
        dim = cfg.hidden_size_per_layer_input
        first, total = layer * dim, cfg.num_hidden_layers * dim
        e = nn.embedding(
            self._step.ids, w / "embed_tokens_per_layer", cfg.vocab_size_per_layer_input, dim, columns=(first, total)
        )
        y = nn.linear(self._x, w / "per_layer_model_projection", dim, part=(first, total))
        y = norm(nn.scale(y, by=cfg.hidden_size**-0.5), w / "per_layer_projection_norm", cfg)
        return nn.scale(y + nn.scale(e, by=math.sqrt(dim)), by=math.sqrt(0.5))


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, inputs: Inputs) -> Tensor:
    tokens, heads, dim, groups = x.shape[0], cfg.num_attention_heads, cfg.width(layer), cfg.groups(layer)
    rotation, source = cfg.rotation(layer, step.context), cfg.source(layer)
    assert rotation is not None

    def projected(name: str, count: int) -> Tensor:
        return nn.linear(x, w / name, count * dim, cfg.attention_bias).reshape(tokens, count, dim)

    if source == layer:
        k = projected("k_proj", groups)
        v = k if cfg.attention_k_eq_v and not cfg.slides(layer) else projected("v_proj", groups)
        k = nn.rotate(norm(k, w / "k_norm", cfg), step, rotation)
        inputs.shared[layer] = k, norm(v, None, cfg)
    q = nn.rotate(norm(projected("q_proj", heads), w / "q_norm", cfg), step, rotation)
    k, v = inputs.shared[source]
    y = nn.attend(q, k, v, step, source, window=cfg.window(layer), scale=cfg.score_scale, writes=source == layer)
    return nn.linear(y.reshape(tokens, heads * dim), w / "o_proj", cfg.hidden_size, cfg.attention_bias)


def mlp(x: Tensor, w: Scope, cfg: Config, layer: int) -> Tensor:
    gate, up = (nn.linear(x, w / name, cfg.inner(layer)) for name in ("gate_proj", "up_proj"))
    return nn.linear(nn.gated(gate, up, kind=cfg.activation), w / "down_proj", cfg.hidden_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, inputs: Inputs) -> Tensor:
    y = self_attention(norm(x, w / "input_layernorm", cfg), w / "self_attn", cfg, step, layer, inputs)
    x = x + norm(y, w / "post_attention_layernorm", cfg)
    y = mlp(norm(x, w / "pre_feedforward_layernorm", cfg), w / "mlp", cfg, layer)
    x = x + norm(y, w / "post_feedforward_layernorm", cfg)
    if cfg.hidden_size_per_layer_input:
        y = nn.linear(x, w / "per_layer_input_gate", cfg.hidden_size_per_layer_input)
        y = nn.linear(nn.gated(y, inputs.of(layer), kind=cfg.activation), w / "per_layer_projection", cfg.hidden_size)
        x = x + norm(y, w / "post_per_layer_input_norm", cfg)
    # One number for the layer: a row of one channel.
    return (x.reshape(x.shape[0], cfg.hidden_size, 1) * w.weight("layer_scalar", 1)).reshape(*x.shape)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    x = nn.scale(x, by=math.sqrt(cfg.hidden_size))
    inputs = Inputs(x, w, cfg, step)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "layers" / layer, cfg, step, layer, inputs)
    return norm(nn.take_rows(x, step.rows), w / "norm", cfg)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    logits = llama.head(hidden_states(w / "model", cfg, step), w, cfg)
    cap = cfg.final_logit_softcapping
    return nn.softcap(logits, cap=cap) if cap is not None else logits
