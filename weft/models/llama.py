"""Llama (1 to 3, SmolLM2, TinyLlama): grouped-query attention, rotary positions, SwiGLU, tied or untied head.

Reference: transformers/models/llama. Checkpoint names are the scope names below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.weights.names import Gguf, Names

# what transformers calls them -> the catalogue's word
ACTIVATIONS = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu2",
    "quick_gelu": "quick_gelu",
}

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step
    from weft.nn import description as said

KIND = "decoder"
NAMES = Names(trunk="model.", part={"model.text_model.": "model.", "lm_head.": "lm_head."})  # the part: in idefics3
GGUF = Gguf(
    architecture="llama",
    model_type="llama",
    class_name="LlamaForCausalLM",
    root={"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"},
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    },
    layer_prefix="model.layers",
    absent=frozenset({"rope_freqs"}),  # the llama3 divisors: in the config
    paired=True,
    factors="llama3",
)


@frozen
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    head_dim: int = 0
    hidden_act: str = "silu"
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0
    rope_scaling: dict[str, Any] | None = None
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    is_causal: bool = True  # false in embedding models that were trained to read both ways

    def __post_init__(self) -> None:
        nn.check_one_of(self, self.activation_field, ACTIVATIONS)
        if self.channels < 2 or self.channels % 2:
            if self.head_dim:
                raise nn.unsupported(self, "head_dim", "must be even and above zero", given=self.head_dim)
            what = f"must give each of num_attention_heads ({self.num_attention_heads}) an even number of channels"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)
        if self.num_attention_heads % self.kv_heads:
            what = f"must be a multiple of num_key_value_heads ({self.kv_heads})"
            raise nn.unsupported(self, "num_attention_heads", what, given=self.num_attention_heads)

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def channels(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return nn.most_positions(self.scaling, self.max_position_embeddings)

    @property
    def settled_positions(self) -> int:
        """The longest context in which positions rotate as in short texts; a longer one must be asked for."""
        return nn.settled_positions(self.scaling, self.max_position_embeddings)

    # What relatives differ in.

    activation_field: ClassVar[str] = "hidden_act"

    @property
    def activation(self) -> str:
        """The activation of the feed-forward part, as the catalogue of ops calls it."""
        return ACTIVATIONS[getattr(self, self.activation_field)]

    @property
    def qkv_bias(self) -> bool:
        return self.attention_bias

    @property
    def out_bias(self) -> bool:
        return self.attention_bias

    @property
    def inner_bias(self) -> bool:
        """Whether the feed-forward part has biases."""
        return self.mlp_bias

    @property
    def rotated(self) -> int:
        """How many channels of a head are rotated."""
        return self.channels

    @property
    def scaling(self) -> Mapping[str, Any] | None:
        """The rope_scaling that applies."""
        return self.rope_scaling

    @property
    def score_scale(self) -> float:
        """What dot products of queries and keys are multiplied by."""
        return 1.0 / math.sqrt(self.channels)

    @property
    def score_cap(self) -> float:
        """The soft cap of attention scores; 0 for none."""
        return 0.0

    @property
    def bidirectional(self) -> bool:
        """Whether tokens attend to later tokens too, as in an encoder."""
        return not self.is_causal

    def window(self, layer: int) -> int:
        """How many tokens a token of this layer attends to, itself included; 0 for all."""
        return 0

    def rotation(self, layer: int, context: int) -> Rope | None:
        """The rotation of this layer's queries and keys in a context of so many tokens; None where there is none."""
        return nn.rope(
            self.rotated, self.rope_theta, self.scaling, positions=self.max_position_embeddings, context=context
        )


def projections(x: Tensor, w: Scope, cfg: Config) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden] -> queries [T, heads, dim], keys and values [T, kv_heads, dim]"""
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    q = nn.linear(x, w / "q_proj", heads * dim, cfg.qkv_bias).reshape(tokens, heads, dim)
    k = nn.linear(x, w / "k_proj", groups * dim, cfg.qkv_bias).reshape(tokens, groups, dim)
    v = nn.linear(x, w / "v_proj", groups * dim, cfg.qkv_bias).reshape(tokens, groups, dim)
    return q, k, v


def rotary_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Scope,
    cfg: Config,
    step: Step,
    layer: int,
    out: str = "o_proj",
    sinks: Tensor | None = None,
    key_bias: Tensor | None = None,
    reach: Tensor | None = None,
) -> Tensor:
    rotation = cfg.rotation(layer, step.context)
    if rotation is not None:
        q, k = nn.rotate(q, step, rotation), nn.rotate(k, step, rotation)
    window, causal = cfg.window(layer), not cfg.bidirectional
    if window and not cfg.is_causal:
        window += 1  # transformers' window includes the token itself in causal models and excludes it in others
    scale, cap = cfg.score_scale, cfg.score_cap
    y = nn.attend(
        q,
        k,
        v,
        step,
        layer,
        causal=causal,
        window=window,
        scale=scale,
        softcap=cap,
        sinks=sinks,
        key_bias=key_bias,
        rotation=rotation,
        reach=reach,
    )
    return nn.linear(y.reshape(q.shape[0], q.shape[1] * q.shape[2]), w / out, cfg.hidden_size, cfg.out_bias)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    # Queries and keys are turned as they come from the projections, so the bias is in every key.
    bias = (w / "k_proj").weight("bias", cfg.kv_heads * cfg.channels) if cfg.qkv_bias else None
    return rotary_attention(*projections(x, w, cfg), w, cfg, step, layer, key_bias=bias)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    gate = nn.linear(x, w / "gate_proj", cfg.intermediate_size, cfg.inner_bias)
    up = nn.linear(x, w / "up_proj", cfg.intermediate_size, cfg.inner_bias)
    return nn.linear(nn.gated(gate, up, kind=cfg.activation), w / "down_proj", cfg.hidden_size, cfg.inner_bias)


def block(
    x: Tensor,
    w: Scope,
    cfg: Config,
    step: Step,
    layer: int,
    attention: Callable[..., Tensor] = self_attention,
    feed_forward: Callable[..., Tensor] = mlp,
) -> Tensor:
    """One layer; relatives pass the parts that differ."""
    x = x + attention(nn.rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps), w / "self_attn", cfg, step, layer)
    return x + feed_forward(nn.rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps), w / "mlp", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.token_inputs(step, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(nn.take_rows(x, step.rows), w / "norm", cfg.rms_norm_eps)


def head(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    """Logits of hidden states: x [L, hidden] -> [L, vocab]"""
    if cfg.tie_word_embeddings:
        return nn.tied_linear(x, w / "model" / "embed_tokens", cfg.vocab_size)
    return nn.linear(x, w / "lm_head", cfg.vocab_size)


def token_logit(x: Tensor, w: Scope, cfg: Config, id: int) -> Tensor:
    """The logit of one token: x [L, hidden] -> [L, 1]"""
    rows = w / "model" / "embed_tokens" if cfg.tie_word_embeddings else w / "lm_head"
    return nn.linear(x, rows, 1, part=(id, cfg.vocab_size))


def forward(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return head(hidden_states(w / "model", cfg, step, layers), w, cfg)


def part_names() -> dict[str, str]:
    """What a description calls the parts -> the scope names."""
    at = "model.layers.{i}."
    return {
        "embedding": "model.embed_tokens",
        "attention_norm": f"{at}input_layernorm",
        **{name: f"{at}self_attn.{name}_proj" for name in "qkvo"},
        "qkv": f"{at}self_attn.qkv_proj",
        **{f"{name}_norm": f"{at}self_attn.{name}_norm" for name in "qk"},
        "mlp_norm": f"{at}post_attention_layernorm",
        **{name: f"{at}mlp.{name}_proj" for name in ("gate", "up", "gate_up", "down")},
        "final_norm": "model.norm",
        "head": "lm_head",
    }


def describe(
    cfg: Config,
    names: Collection[str] = (),
    *,
    embedding: said.Embedding | None = None,
    block: said.Block | None = None,
    output: said.Output | None = None,
    plus_one: bool = False,
    qk_norm: str = "none",
    fused: tuple[str, ...] = (),
    weights: Mapping[str, str] | None = None,
) -> said.Description:
    """The model in words. Relatives pass what differs; `weights` replaces names of parts."""
    from weft.nn import description as said

    layers = range(cfg.num_hidden_layers)
    windows = [cfg.window(layer) for layer in layers]
    if not cfg.is_causal:  # see rotary_attention
        windows = [window + 1 if window else 0 for window in windows]
    attention = said.Attention(
        heads=cfg.num_attention_heads,
        kv_heads=cfg.kv_heads,
        head_dim=cfg.channels,
        causal=not cfg.bidirectional,
        scale=cfg.score_scale,
        cap=cfg.score_cap or None,
        bias=cfg.qkv_bias and "qkv" not in fused,
        out_bias=cfg.out_bias,
        qk_norm=qk_norm,
        qkv="stacked" if "qkv" in fused else "apart",
    )
    gate = "gate_up" if "gate_up" in fused else "apart"
    bias = cfg.inner_bias and gate == "apart"
    return said.described(
        {**part_names(), **(weights or {})},
        kind="decoder",
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        layers=cfg.num_hidden_layers,
        positions=cfg.max_position_embeddings,
        embedding=embedding or said.Embedding(),
        norm=said.Norm("rms", cfg.rms_norm_eps, plus_one=plus_one),
        block=block or said.Block("pre"),
        attention=attention,
        mlp=said.Mlp(cfg.intermediate_size, cfg.activation, gated=True, bias=bias, gate=gate),
        output=output or said.Output(tied=cfg.tie_word_embeddings),
        **said.layers_of(windows, [cfg.rotation(layer, 0) for layer in layers]),
    )
