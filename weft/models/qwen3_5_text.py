"""Qwen3.5 (text, dense): three layers of the gated delta rule to one of gated attention.

Reference: transformers/models/qwen3_5. Queries and gates of attention lie head by head in q_proj. Queries, keys and
values of the delta rule are row ranges of in_proj_qkv, and of the convolution that they pass. All norms but the delta
rule's hold their weight less one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama, qwen3_vl_text
from weft.models.llama import token_logit
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step

__all__ = [
    "DRAFT_HEAD",
    "GGUF",
    "KIND",
    "NAMES",
    "Config",
    "draft",
    "forward",
    "forward_hidden",
    "hidden_states",
    "token_logit",
]

KIND = "decoder"
# Names inside a model with images (qwen3_5.py).
NAMES = Names(trunk="model.", part={"model.language_model.": "model.", "lm_head.": "lm_head.", "mtp.": "mtp."})
DRAFT_HEAD = "mtp.fc.weight"  # there where a checkpoint has the head for multi-token prediction
LAYER_TYPES = ("linear_attention", "full_attention")
MAX_WIDTH = 16  # of a convolution, csrc/kernels/causal_conv.cpp
UNIT_EPS = 1e-6  # of queries and keys of the delta rule
SECTIONS = (11, 11, 10)  # pairs that turn with time, row and column, where a file says nothing
INTERVAL = 4  # every fourth layer attends, where a file says nothing else
# What only a head for the next token but one has, in GGUF's words; the first four are what Qwen's heads have.
NEXTN = {
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
    "embed_tokens": "",
    "shared_head_head": "",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    dim, heads = config["head_dim"], keys.count("ssm.time_step_rank", high=1024)
    layers = config["num_hidden_layers"] - keys.size("nextn_predict_layers", 0, high=config["num_hidden_layers"] - 1)
    recurrent = keys.flags("attention.recurrent_layers", config["num_hidden_layers"])
    types = [LAYER_TYPES[not flag] for flag in recurrent[:layers]] if recurrent is not None else None
    return {
        "num_hidden_layers": layers,
        "partial_rotary_factor": keys.count("rope.dimension_count", dim, high=dim) / dim,
        "linear_conv_kernel_dim": keys.count("ssm.conv_kernel", high=MAX_WIDTH),
        "linear_key_head_dim": keys.count("ssm.state_size", high=4096),
        "linear_num_key_heads": keys.count("ssm.group_count", high=1024),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.count("ssm.inner_size") // heads,
        "full_attention_interval": keys.count("full_attention_interval", INTERVAL, high=1024),
        "layer_types": types,
        "tiled_value_heads": True,
        **qwen3_vl_text.read_sections(keys, config),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    cfg = nn.read_config(Config, config)
    if cfg.linear_num_key_heads != cfg.linear_num_value_heads and not cfg.tiled_value_heads:
        raise gguf.unwritable("value heads in the order of their key heads")
    if cfg.linear_key_head_dim != cfg.linear_value_head_dim:
        raise gguf.unwritable("a linear_value_head_dim other than linear_key_head_dim")
    if cfg.attention_bias:
        raise gguf.unwritable("attention_bias")
    heads = config.get("mtp_num_hidden_layers") or 0
    if heads > 1:
        raise gguf.unwritable("more than one layer of multi-token prediction")
    return {
        **({"block_count": cfg.num_hidden_layers + 1, "nextn_predict_layers": 1} if heads else {}),
        "rope.dimension_count": cfg.rotated,
        "rope.dimension_sections": qwen3_vl_text.sections(
            config, [(cfg.rotated // 2 + 2 - part) // 3 for part in range(3)]
        ),
        "ssm.conv_kernel": cfg.linear_conv_kernel_dim,
        "ssm.state_size": cfg.linear_key_head_dim,
        "ssm.group_count": cfg.linear_num_key_heads,
        "ssm.time_step_rank": cfg.linear_num_value_heads,
        "ssm.inner_size": cfg.linear_num_value_heads * cfg.linear_value_head_dim,
        "full_attention_interval": cfg.full_attention_interval,
        "attention.recurrent_layers": [not cfg.attends(i) for i in range(cfg.num_hidden_layers)] + [False] * heads,
    }


GGUF = replace(
    llama.GGUF,
    architecture="qwen35",
    model_type="qwen3_5_text",
    class_name="Qwen3_5ForCausalLM",
    layer={
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_output": "self_attn.o_proj",
        "attn_qkv": "linear_attn.in_proj_qkv",
        "attn_gate": "linear_attn.in_proj_z",
        "ssm_conv1d": "linear_attn.conv1d",
        "ssm_beta": "linear_attn.in_proj_b",
        "ssm_alpha": "linear_attn.in_proj_a",
        "ssm_norm": "linear_attn.norm",
        "ssm_out": "linear_attn.out_proj",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        **{f"nextn.{name}": f"nextn.{name}" for name in NEXTN},
    },
    whole={"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"},
    minus_exp="linear_attn.A_log",
    plain_norms=("linear_attn.norm.weight",),
    draft={"": "mtp.layers.0", **{f"nextn.{name}": own for name, own in NEXTN.items() if own}},
    absent=frozenset(),
    plus_one=True,
    paired=False,
    part_rotates=True,
    factors="",
    head_dim=256,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    LIMITS: ClassVar[dict[str, int]] = {
        "full_attention_interval": 1024,
        "linear_conv_kernel_dim": MAX_WIDTH,
        "linear_key_head_dim": 4096,
        "linear_value_head_dim": 4096,
        "linear_num_key_heads": 1024,
        "linear_num_value_heads": 1024,
    }
    num_key_value_heads: int = 4
    head_dim: int = 256
    max_position_embeddings: int = 32_768
    partial_rotary_factor: float = 0.25
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    full_attention_interval: int = INTERVAL
    layer_types: list[str] | None = None
    tiled_value_heads: bool = False  # GGUF's order: value head h reads key head h % linear_num_key_heads

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types, LAYER_TYPES)
        nn.check_part_rotates(self)
        if self.linear_num_value_heads % self.linear_num_key_heads:
            what = f"must be a multiple of linear_num_key_heads ({self.linear_num_key_heads})"
            raise nn.unsupported(self, "linear_num_value_heads", what, given=self.linear_num_value_heads)
        if self.linear_conv_kernel_dim < 2:
            raise nn.unsupported(
                self, "linear_conv_kernel_dim", "must be at least 2", given=self.linear_conv_kernel_dim
            )

    @property
    def rotated(self) -> int:
        return int(self.channels * self.partial_rotary_factor)

    def rotation(self, layer: int, context: int) -> Rope | None:
        """Tokens of pictures are turned by time, row and column (qwen3_5.py)."""
        return nn.turned_by_axes(super().rotation(layer, context), self.scaling, SECTIONS)

    def attends(self, layer: int) -> bool:
        """Whether this layer has attention; the others have the delta rule."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "full_attention"
        return (layer + 1) % self.full_attention_interval == 0


def norm(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return nn.rms_norm(x, w, cfg.rms_norm_eps, plus_one=True)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    rows, bias = 2 * heads * dim, cfg.attention_bias
    q = nn.linear(x, w / "q_proj", heads * dim, bias, part=(0, rows, 2 * dim)).reshape(tokens, heads, dim)
    gate = nn.linear(x, w / "q_proj", heads * dim, bias, part=(dim, rows, 2 * dim))
    k, v = (nn.linear(x, w / name, groups * dim, bias).reshape(tokens, groups, dim) for name in ("k_proj", "v_proj"))
    q, k = norm(q, w / "q_norm", cfg), norm(k, w / "k_norm", cfg)
    rotation = cfg.rotation(layer, step.context)
    assert rotation is not None
    q, k = nn.rotate(q, step, rotation), nn.rotate(k, step, rotation)
    out = nn.attend(q, k, v, step, layer, scale=cfg.score_scale).reshape(tokens, heads * dim)
    return nn.linear(nn.gated(gate, out, kind="sigmoid"), w / "o_proj", cfg.hidden_size, bias)


def projected(x: Tensor, w: Scope, cfg: Config, name: str) -> Tensor:
    """Queries q, keys k, values v and gates z of the delta rule, or the numbers a and b of each value head."""
    heads = cfg.linear_num_value_heads
    keys, values = cfg.linear_num_key_heads * cfg.linear_key_head_dim, heads * cfg.linear_value_head_dim
    if name in "abz":
        return nn.linear(x, w / f"in_proj_{name}", values if name == "z" else heads)
    first = {"q": 0, "k": keys, "v": 2 * keys}[name]
    return nn.linear(x, w / "in_proj_qkv", values if name == "v" else keys, part=(first, 2 * keys + values))


def delta_layer(
    x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, project: Callable[..., Tensor] = projected
) -> Tensor:
    """Queries, keys and values pass a short convolution; the state decays by token and head, and learns by `beta`."""
    tokens, heads, groups = x.shape[0], cfg.linear_num_value_heads, cfg.linear_num_key_heads
    keys, values = groups * cfg.linear_key_head_dim, heads * cfg.linear_value_head_dim
    rows = 2 * keys + values

    def mixed(name: str, first: int) -> Tensor:
        y, width = project(x, w, cfg, name), cfg.linear_conv_kernel_dim
        y = nn.causal_conv(y, w / "conv1d", step, f"{layer}.{name}", width, part=(first, rows))
        return nn.activate(y, kind="silu")

    q, k = (
        nn.unit_norm(mixed(name, first).reshape(tokens, groups, cfg.linear_key_head_dim), UNIT_EPS)
        for name, first in (("q", 0), ("k", keys))
    )
    v = mixed("v", 2 * keys).reshape(tokens, heads, cfg.linear_value_head_dim)
    beta = nn.activate(project(x, w, cfg, "b"), kind="sigmoid")
    rate = nn.activate(project(x, w, cfg, "a") + w.weight("dt_bias", heads), kind="softplus")
    decay = rate * w.weight("A_log", heads, minus_exp=True)
    scale = cfg.linear_key_head_dim**-0.5
    y = nn.delta_rule(q, k, v, decay, beta, step, layer, scale=scale, tiled=cfg.tiled_value_heads)
    y = nn.rms_norm(y, w / "norm", cfg.rms_norm_eps).reshape(tokens, values)  # over the channels of each head
    return nn.linear(nn.gated(project(x, w, cfg, "z"), y, kind="silu"), w / "out_proj", cfg.hidden_size)


def block(
    x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, feed_forward: Callable[..., Tensor] = llama.mlp
) -> Tensor:
    y = norm(x, w / "input_layernorm", cfg)
    if cfg.attends(layer):
        x = x + self_attention(y, w / "self_attn", cfg, step, layer)
    else:
        x = x + delta_layer(y, w / "linear_attn", cfg, step, layer)
    return x + feed_forward(norm(x, w / "post_attention_layernorm", cfg), w / "mlp", cfg)


def trunk(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The last hidden state of all tokens [T, hidden], before the norm."""
    x = nn.token_inputs(step, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return x


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return norm(nn.take_rows(trunk(w, cfg, step, layers), step.rows), w / "norm", cfg)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)


def forward_hidden(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> tuple[Tensor, Tensor]:
    """`forward`, and the normed last hidden state of all tokens [T, hidden], which `draft` reads."""
    x = norm(trunk(w / "model", cfg, step, layers), w / "model" / "norm", cfg)
    return llama.head(nn.take_rows(x, step.rows), w, cfg), x


def draft(w: Scope, cfg: Config, step: Step, feed_forward: Callable[..., Tensor] = llama.mlp) -> tuple[Tensor, Tensor]:
    """Multi-token prediction: logits of the token after the next one, and hidden states to go on from, of step.rows.

    step.vectors are normed hidden states, step.ids the tokens after theirs. All norms hold their weight less one.
    """
    hidden, head = cfg.hidden_size, w / "mtp"
    e = nn.embedding(step.ids, w / "model" / "embed_tokens", cfg.vocab_size, hidden)
    x = nn.linear(norm(e, head / "pre_fc_norm_embedding", cfg), head / "fc", hidden, columns=(0, 2 * hidden))
    y = norm(step.vectors, head / "pre_fc_norm_hidden", cfg)
    x = x + nn.linear(y, head / "fc", hidden, columns=(hidden, 2 * hidden))
    at, layer = head / "layers" / 0, cfg.num_hidden_layers  # its keys and values lie in the same pages
    x = x + self_attention(norm(x, at / "input_layernorm", cfg), at / "self_attn", cfg, step, layer)
    x = x + feed_forward(norm(x, at / "post_attention_layernorm", cfg), at / "mlp", cfg)
    x = norm(nn.take_rows(x, step.rows), head / "norm", cfg)
    return llama.head(x, w, cfg), x
