"""LFM2 (350M to 2.6B): short gated convolutions, and attention in some layers.

Reference: transformers/models/lfm2. Checkpoint names are the scope names below; the last norm is embedding_norm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
LAYER_TYPES = ("conv", "full_attention")
MAX_WIDTH = 16  # of a convolution, csrc/kernels/causal_conv.cpp


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    heads = keys.counts("attention.head_count_kv", config["num_hidden_layers"])
    return {
        "norm_eps": config["rms_norm_eps"],
        "conv_L_cache": keys.count("shortconv.l_cache", high=MAX_WIDTH),
        "block_auto_adjust_ff_dim": False,
        "layer_types": None if heads is None else ["full_attention" if count else "conv" for count in heads],
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("conv_bias"):
        raise gguf.unwritable("conv_bias")
    cfg = nn.read_config(Config, config)
    groups = cfg.kv_heads
    return {
        "feed_forward_length": cfg.inner,
        "attention.layer_norm_rms_epsilon": cfg.norm_eps,
        "attention.head_count_kv": [groups if cfg.attends(layer) else 0 for layer in range(cfg.num_hidden_layers)],
        "rope.freq_base": cfg.rope_theta,
        "shortconv.l_cache": cfg.conv_L_cache,
    }


GGUF = replace(
    llama.GGUF,
    architecture="lfm2",
    model_type="lfm2",
    class_name="Lfm2ForCausalLM",
    root={"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    layer={
        "attn_norm": "operator_norm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_down": "feed_forward.w2",
        "ffn_up": "feed_forward.w3",
    },
    absent=frozenset(),
    paired=False,
    factors="",
    some_attend=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    ALIASES: ClassVar[dict[str, str]] = {"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}
    LIMITS: ClassVar[dict[str, int]] = {"conv_L_cache": MAX_WIDTH, "block_multiple_of": 65_536}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("block_ffn_dim_multiplier",)
    num_key_value_heads: int = 8
    norm_eps: float = 1e-5
    rope_theta: float = 1_000_000.0
    max_position_embeddings: int = 128_000
    tie_word_embeddings: bool = True
    conv_bias: bool = False
    conv_L_cache: int = 3
    block_multiple_of: int = 256
    block_ffn_dim_multiplier: float | None = 1.0
    block_auto_adjust_ff_dim: bool = True
    full_attn_idxs: list[int] | None = None
    layer_types: list[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types, LAYER_TYPES)
        if self.conv_L_cache < 2:
            raise nn.unsupported(self, "conv_L_cache", "must be at least 2", given=self.conv_L_cache)

    def attends(self, layer: int) -> bool:
        """Whether this layer has attention; the others have a convolution."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "full_attention"
        return self.full_attn_idxs is None or layer in self.full_attn_idxs

    @property
    def inner(self) -> int:
        """The width of the feed-forward part, which the file's number may stand for in the old way."""
        width = self.intermediate_size
        if not self.block_auto_adjust_ff_dim:
            return width
        width = int(2 * width / 3)
        if self.block_ffn_dim_multiplier is None:
            return width
        multiple = self.block_multiple_of
        return multiple * ((int(self.block_ffn_dim_multiplier * width) + multiple - 1) // multiple)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    q, k, v = llama.projections(x, w, cfg)
    q = nn.rms_norm(q, w / "q_layernorm", cfg.norm_eps)  # over the channels of each head
    k = nn.rms_norm(k, w / "k_layernorm", cfg.norm_eps)
    return llama.rotary_attention(q, k, v, w, cfg, step, layer, out="out_proj")


def convolution(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    """A gate before and one after a convolution over the last few tokens of each channel."""
    hidden, rows = cfg.hidden_size, 3 * cfg.hidden_size
    before, after, value = (
        nn.linear(x, w / "in_proj", hidden, cfg.conv_bias, part=(first, rows)) for first in (0, hidden, 2 * hidden)
    )
    mixed = nn.causal_conv(before * value, w / "conv", step, layer, cfg.conv_L_cache, bias=cfg.conv_bias)
    return nn.linear(after * mixed, w / "out_proj", hidden, cfg.conv_bias)


def feed_forward(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    gate, up = nn.linear(x, w / "w1", cfg.inner), nn.linear(x, w / "w3", cfg.inner)
    return nn.linear(nn.gated(gate, up, kind="silu"), w / "w2", cfg.hidden_size)


def block(
    x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, feed_forward: Callable[..., Tensor] = feed_forward
) -> Tensor:
    y = nn.rms_norm(x, w / "operator_norm", cfg.norm_eps)
    if cfg.attends(layer):
        x = x + self_attention(y, w / "self_attn", cfg, step, layer)
    else:
        x = x + convolution(y, w / "conv", cfg, step, layer)
    return x + feed_forward(nn.rms_norm(x, w / "ffn_norm", cfg.norm_eps), w / "feed_forward", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(nn.take_rows(x, step.rows), w / "embedding_norm", cfg.norm_eps)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)
