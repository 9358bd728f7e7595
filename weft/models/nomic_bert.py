"""NomicBERT (nomic-embed-text): BERT with rotary positions, SwiGLU, and biases only in the norms.

Reference: transformers/models/nomic_bert. The names are those of the first checkpoints, which GGUF follows: Wqkv is
fused, fc11 is multiplied with the activated fc12. transformers' own are read too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import bert
from weft.models.bert import ACTIVATIONS
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "encoder"
NAMES = replace(bert.NAMES, prefixes=("nomic_bert.", "bert."))
# the first checkpoints' name of a part -> transformers'
NATIVE = {
    "emb_ln": "embeddings.LayerNorm",
    "encoder.layers": "layers",
    "attn": "self_attn",
    "attn.out_proj": "self_attn.o_proj",
    "mlp.fc11": "mlp.up_proj",
    "mlp.fc12": "mlp.gate_proj",
    "mlp.fc2": "mlp.down_proj",
    "norm1": "post_attention_layernorm",
    "norm2": "post_mlp_layernorm",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    theta = keys.real("rope.freq_base", 10_000.0)
    return {"rope_theta": theta, "rope_scaling": keys.rope_scaling(config["head_dim"])}


GGUF = Gguf(
    architecture="nomic-bert",
    model_type="nomic_bert",
    class_name="NomicBertModel",
    encoder=True,
    root={
        "token_embd": "embeddings.word_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "emb_ln",
    },
    layer={
        "attn_qkv": "attn.Wqkv",
        "attn_output": "attn.out_proj",
        "attn_output_norm": "norm1",
        "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12",
        "ffn_down": "mlp.fc2",
        "layer_output_norm": "norm2",
    },
    layer_prefix="encoder.layers",
    read=read_gguf,
)


@frozen
class Config:
    # GPT-2's names, which the first checkpoints have, and the usual ones
    ALIASES: ClassVar[dict[str, str]] = {
        "n_embd": "hidden_size",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
    }
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "silu"
    rope_theta: float = 1000.0
    rope_scaling: dict[str, Any] | None = None
    head_dim: int = 0
    # fields of the first checkpoints, which all have these values
    activation_function: str = "swiglu"
    rotary_emb_fraction: float = 1.0
    rotary_scaling_factor: float | None = None
    prenorm: bool = False
    use_rms_norm: bool = False
    qkv_proj_bias: bool = False
    mlp_fc1_bias: bool = False
    mlp_fc2_bias: bool = False
    num_experts: int = 0
    moe_every_n_layers: int = 0

    def __post_init__(self) -> None:
        for name, only in (
            ("activation_function", "swiglu"),
            ("rotary_emb_fraction", 1.0),
            ("rotary_scaling_factor", None),
            ("num_experts", 0),
            *((name, False) for name in ("prenorm", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")),
        ):
            if getattr(self, name) != only:
                raise nn.unsupported(self, name, given=getattr(self, name), advice=f"weft knows only {only}")
        nn.check_one_of(self, "hidden_act", ACTIVATIONS)
        if self.channels < 2 or self.channels % 2 or self.channels * self.num_attention_heads != self.hidden_size:
            what = f"must be num_attention_heads ({self.num_attention_heads}) times an even head_dim ({self.channels})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)

    @property
    def channels(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings


def part(w: Scope, name: str) -> Scope:
    """The part `name` of the first checkpoints, or what transformers calls it where that is there."""
    for step in (name if f"{name}.weight" in w else NATIVE[name]).split("."):
        w = w / step
    return w


def projections(x: Tensor, w: Scope, cfg: Config) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, hidden] -> queries, keys and values [T, heads, dim]"""
    tokens, heads, hidden = x.shape[0], cfg.num_attention_heads, cfg.hidden_size
    if "attn.Wqkv.weight" in w:
        flat = [nn.linear(x, w / "attn" / "Wqkv", hidden, part=(i * hidden, 3 * hidden)) for i in range(3)]
    else:
        flat = [nn.linear(x, w / NATIVE["attn"] / f"{name}_proj", hidden) for name in "qkv"]
    q, k, v = (y.reshape(tokens, heads, cfg.channels) for y in flat)
    return q, k, v


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    q, k, v = projections(x, w, cfg)
    rotation = nn.rope(cfg.channels, cfg.rope_theta, cfg.rope_scaling, positions=cfg.max_position_embeddings)
    q, k = nn.rotate(q, step, rotation), nn.rotate(k, step, rotation)
    out = nn.attend(q, k, v, step, layer, causal=False).reshape(x.shape[0], cfg.hidden_size)
    return nn.linear(out, part(w, "attn.out_proj"), cfg.hidden_size)


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    up = nn.linear(x, part(w, "mlp.fc11"), cfg.intermediate_size)
    gate = nn.linear(x, part(w, "mlp.fc12"), cfg.intermediate_size)
    return nn.linear(nn.gated(gate, up, kind=ACTIVATIONS[cfg.hidden_act]), part(w, "mlp.fc2"), cfg.hidden_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    x = nn.layer_norm(self_attention(x, w, cfg, step, layer) + x, part(w, "norm1"), cfg.layer_norm_eps)
    return nn.layer_norm(mlp(x, w, cfg) + x, part(w, "norm2"), cfg.layer_norm_eps)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    words = nn.embedding(step.ids, w / "embeddings" / "word_embeddings", cfg.vocab_size, cfg.hidden_size)
    types = nn.embedding(step.types, w / "embeddings" / "token_type_embeddings", cfg.type_vocab_size, cfg.hidden_size)
    x = nn.layer_norm(words + types, part(w, "emb_ln"), cfg.layer_norm_eps)
    layers = w / "encoder" / "layers" if "emb_ln.weight" in w else w / NATIVE["encoder.layers"]
    for layer in range(cfg.num_hidden_layers):
        x = block(x, layers / layer, cfg, step, layer)
    return x


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    """The names are the file's own: those of the first checkpoints, or transformers'."""
    from weft.nn import description as said

    first = "emb_ln.weight" in names
    fused = "encoder.layers.0.attn.Wqkv.weight" in names

    def named(part: str) -> str:
        return part if first else NATIVE[part]

    at = named("encoder.layers") + ".{i}."
    rotation = nn.rope(cfg.channels, cfg.rope_theta, cfg.rope_scaling, positions=cfg.max_position_embeddings)
    return said.described(
        {
            "embedding": "embeddings.word_embeddings",
            "types": "embeddings.token_type_embeddings",
            "embedding_norm": named("emb_ln"),
            "qkv": f"{at}attn.Wqkv",
            **{name: f"{at}{NATIVE['attn']}.{name}_proj" for name in "qkv"},
            "o": at + named("attn.out_proj"),
            "attention_out_norm": at + named("norm1"),
            "up": at + named("mlp.fc11"),
            "gate": at + named("mlp.fc12"),
            "down": at + named("mlp.fc2"),
            "mlp_out_norm": at + named("norm2"),
        },
        kind="encoder",
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        layers=cfg.num_hidden_layers,
        positions=cfg.positions,
        embedding=said.Embedding(types=cfg.type_vocab_size, norm=True),
        norm=said.Norm("layer", cfg.layer_norm_eps, bias=True),
        block=said.Block("post", final_norm=False),
        attention=said.both_ways(
            cfg.num_attention_heads, cfg.hidden_size, bias=False, qkv="stacked" if fused else "apart"
        ),
        mlp=said.Mlp(cfg.intermediate_size, ACTIVATIONS[cfg.hidden_act], gated=True),
        **said.layers_of([0] * cfg.num_hidden_layers, [rotation] * cfg.num_hidden_layers),
    )
