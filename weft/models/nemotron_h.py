"""Nemotron-H (4B to 56B, without experts): a layer is Mamba2, attention without positions, or a feed-forward part.

Reference: transformers/models/nemotron_h. The feed-forward part has no gate, and a squared ReLU. A rate has no lower
bound here: there it is bounded by time_step_min in prompts, and not when it decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.granitemoehybrid import MAMBA_LAYER, MAMBA_WHOLE, MAX_WIDTH
from weft.models.llama import token_logit
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Mamba2, Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
NAMES = Names(renamed={"backbone.": "model."})
# A layer's letter in hybrid_override_pattern -> its words in layers_block_type, newer and older.
LAYERS = {"M": ("linear_attention", "mamba"), "*": ("full_attention", "attention"), "-": ("mlp",)}
LETTERS = {word: letter for letter, words in LAYERS.items() for word in words}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    layers = config["num_hidden_layers"]
    attend, feed = (keys.counts(name, layers) for name in ("attention.head_count_kv", "feed_forward_length"))
    if attend is None or feed is None:
        keys.refuse("attention.head_count_kv", "must have a number for each layer, as feed_forward_length must")
    inner, heads = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank", high=1024)
    first = next((layer for layer, count in enumerate(attend) if count), 0)
    fed = next((layer for layer, count in enumerate(feed) if count), 0)
    return {
        "hybrid_override_pattern": "".join("*" if a else "-" if f else "M" for a, f in zip(attend, feed)),
        "mlp_hidden_act": "relu2",
        "attention_bias": keys.has(f"blk.{first}.attn_q.bias"),
        "mlp_bias": keys.has(f"blk.{fed}.ffn_up.bias"),
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": keys.count("ssm.group_count", high=1024),
        "ssm_state_size": keys.count("ssm.state_size", high=4096),
        "conv_kernel": keys.count("ssm.conv_kernel", high=MAX_WIDTH),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    cfg = nn.read_config(Config, config)
    if cfg.use_bias:
        raise gguf.unwritable("use_bias")
    if not cfg.use_conv_bias:
        raise gguf.unwritable("a convolution without bias")
    return {
        "block_count": len(cfg.pattern),
        **{f"attention.layer_norm_{kind}epsilon": cfg.rms_norm_eps for kind in ("rms_", "")},  # readers ask for both
        "attention.head_count_kv": [cfg.kv_heads if letter == "*" else 0 for letter in cfg.pattern],
        "feed_forward_length": [cfg.intermediate_size if letter == "-" else 0 for letter in cfg.pattern],
        "ssm.inner_size": cfg.mamba.inner,
        "ssm.time_step_rank": cfg.mamba.heads,
        "ssm.group_count": cfg.mamba.groups,
        "ssm.state_size": cfg.mamba.state,
        "ssm.conv_kernel": cfg.mamba.width,
    }


GGUF = replace(
    llama.GGUF,
    architecture="nemotron_h",
    model_type="nemotron_h",
    class_name="NemotronHForCausalLM",
    root={"token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head"},
    layer={
        "attn_norm": "norm",
        **{f"attn_{name}": f"mixer.{name}_proj" for name in "qkv"},
        "attn_output": "mixer.o_proj",
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
        **{name: f"mixer.{own}" for name, own in MAMBA_LAYER.items()},
    },
    whole={name: f"mixer.{own}" for name, own in MAMBA_WHOLE.items()},
    minus_exp="mixer.A_log",
    folded={"mixer.A_log": "mamba_num_heads", "mixer.D": "mamba_num_heads", "mixer.norm.weight": "n_groups"},
    absent=frozenset(),
    paired=False,
    factors="",
    part_rotates=True,  # none does
    some_attend=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    ALIASES: ClassVar[dict[str, str]] = {
        "layer_norm_epsilon": "rms_norm_eps",
        "layer_types": "layers_block_type",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
    }
    LIMITS: ClassVar[dict[str, int]] = {
        "mamba_num_heads": 1024,
        "mamba_head_dim": 4096,
        "n_groups": 1024,
        "ssm_state_size": 4096,
        "conv_kernel": MAX_WIDTH,
    }
    activation_field: ClassVar[str] = "mlp_hidden_act"
    num_hidden_layers: int = 0  # newer files have the list of layers alone
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    head_dim: int = 128
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    layers_block_type: list[str] | None = None
    hybrid_override_pattern: str | None = None
    mlp_hidden_act: str = "relu2"
    mamba_hidden_act: str = "silu"
    mamba_num_heads: int = 128
    mamba_head_dim: int = 64
    n_groups: int = 8
    ssm_state_size: int = 128
    conv_kernel: int = 4
    use_conv_bias: bool = True
    use_bias: bool = False
    time_step_limit: list[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_layers()
        nn.check_one_of(self, "mamba_hidden_act", ("silu",))
        for field in ("tie_word_embeddings", "attention_bias"):
            if getattr(self, field):
                raise nn.unsupported(self, field, given=True)
        if self.time_step_limit not in (None, [0.0, float("inf")]):
            raise nn.unsupported(self, "time_step_limit", given=self.time_step_limit)
        refusal = self.mamba.refusal(self, {"heads": "mamba_num_heads", "width": "conv_kernel"})
        if refusal is not None:
            raise refusal

    def _check_layers(self) -> None:
        listed = self.layers_block_type is not None
        field = "layers_block_type" if listed else "hybrid_override_pattern"
        known = LETTERS if listed else LAYERS
        unknown = sorted(set(self.layers_block_type or self.hybrid_override_pattern or ()) - set(known))
        if unknown:
            raise nn.unsupported(self, field, given=", ".join(unknown), advice=f"weft knows {', '.join(known)}")
        if not self.pattern or self.num_hidden_layers not in (0, len(self.pattern)):
            what = f"must have one entry for each of {self.num_hidden_layers} layers"
            raise nn.unsupported(self, field, what, given=f"{len(self.pattern)} entries")

    @property
    def pattern(self) -> str:
        """The letter of each layer."""
        if self.layers_block_type is not None:
            return "".join(LETTERS.get(word, "?") for word in self.layers_block_type)
        return self.hybrid_override_pattern or ""

    @property
    def mamba(self) -> Mamba2:
        return nn.Mamba2(
            heads=self.mamba_num_heads,
            head_dim=self.mamba_head_dim,
            groups=self.n_groups,
            state=self.ssm_state_size,
            width=self.conv_kernel,
            eps=self.rms_norm_eps,
            bias=self.use_bias,
            conv_bias=self.use_conv_bias,
        )

    def rotation(self, layer: int, context: int) -> Rope | None:
        return None


def mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    y = nn.activate(nn.linear(x, w / "up_proj", cfg.intermediate_size, cfg.mlp_bias), kind=cfg.activation)
    return nn.linear(y, w / "down_proj", cfg.hidden_size, cfg.mlp_bias)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y, letter = nn.rms_norm(x, w / "norm", cfg.rms_norm_eps), cfg.pattern[layer]
    if letter == "M":
        return x + nn.mamba2(y, w / "mixer", cfg.mamba, step, layer)
    if letter == "*":
        return x + llama.self_attention(y, w / "mixer", cfg, step, layer)
    return x + mlp(y, w / "mixer", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.embedding(step.ids, w / "embeddings", cfg.vocab_size, cfg.hidden_size)
    for layer in range(len(cfg.pattern)):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(nn.take_rows(x, step.rows), w / "norm_f", cfg.rms_norm_eps)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)
