"""Granite 4 (H Micro, H Tiny, H Small): Mamba2 in most layers, attention in some, rotary positions or none.

Reference: transformers/models/granitemoehybrid. The multipliers are Granite's. Gate and up projection of the
feed-forward part are the two halves of input_linear. Some have experts beside that part, whose results are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import granite, llama
from weft.models.granite import token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Mamba2, Rope, Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
RECURRENT, ATTENTION = ("mamba", "linear_attention"), ("attention", "full_attention")  # older and newer words
POSITIONS = ("rope", "nope", None)
MAX_WIDTH = 16  # of a convolution, csrc/kernels/causal_conv.cpp
MOE = "block_sparse_moe"
# As the published checkpoints have them; newer ones have transformers' names.
NAMES = replace(
    granite.NAMES,
    endings={
        f"{MOE}.router.layer.weight": f"{MOE}.router.weight",
        f"{MOE}.input_linear.weight": f"{MOE}.experts.gate_up_proj",
        f"{MOE}.output_linear.weight": f"{MOE}.experts.down_proj",
    },
)


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    counts = keys.counts("attention.head_count_kv", config["num_hidden_layers"])
    attends = [True] * config["num_hidden_layers"] if counts is None else [count > 0 for count in counts]
    inner, heads = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank", high=1024)
    experts = keys.size("expert_count", 0, high=nn.MAX_EXPERTS)
    return {
        **granite.read_gguf(keys, config),
        "layer_types": [ATTENTION[1] if flag else RECURRENT[1] for flag in attends],
        "position_embedding_type": "rope" if keys.flag("rope.scaling.finetuned", True) else "nope",
        "shared_intermediate_size": keys.count(
            "expert_shared_feed_forward_length", config["intermediate_size"], high=1 << 20
        ),
        "num_local_experts": experts,
        "num_experts_per_tok": keys.count("expert_used_count", high=experts) if experts else 0,
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner / config["hidden_size"],
        "mamba_n_groups": keys.count("ssm.group_count", high=1024),
        "mamba_d_state": keys.count("ssm.state_size", high=4096),
        "mamba_d_conv": keys.count("ssm.conv_kernel", high=MAX_WIDTH),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    cfg = nn.read_config(Config, config)
    for field, given in (("mamba_proj_bias", cfg.mamba_proj_bias), ("attention_bias", cfg.attention_bias)):
        if given:
            raise gguf.unwritable(field)
    if not cfg.mamba_conv_bias:
        raise gguf.unwritable("a convolution without bias")
    layers, experts = range(cfg.num_hidden_layers), {}
    if cfg.num_local_experts:
        experts = {
            "expert_count": cfg.num_local_experts,
            "expert_used_count": cfg.num_experts_per_tok,
            "expert_shared_feed_forward_length": cfg.shared_intermediate_size,
        }
    return {
        **granite.write_gguf(gguf, config),
        "attention.head_count_kv": [cfg.kv_heads if cfg.attends(layer) else 0 for layer in layers],
        "feed_forward_length": cfg.intermediate_size if experts else cfg.shared_intermediate_size,
        **experts,
        "rope.scaling.finetuned": cfg.position_embedding_type == "rope",
        "rope.dimension_count": cfg.channels,
        "ssm.inner_size": cfg.mamba.inner,
        "ssm.time_step_rank": cfg.mamba.heads,
        "ssm.group_count": cfg.mamba.groups,
        "ssm.state_size": cfg.mamba.state,
        "ssm.conv_kernel": cfg.mamba.width,
    }


MAMBA_LAYER = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"}
MAMBA_WHOLE = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
_DENSE = replace(
    llama.GGUF,
    architecture="granitehybrid",
    model_type="granitemoehybrid",
    class_name="GraniteMoeHybridForCausalLM",
    layer={
        **{name: own for name, own in llama.GGUF.layer.items() if not name.startswith("ffn_")},
        "ffn_norm": "post_attention_layernorm",
        "ffn_down": "shared_mlp.output_linear",
        **{name: f"mamba.{own}" for name, own in MAMBA_LAYER.items()},
    },
    split={"shared_mlp.input_linear": ("ffn_gate", "ffn_up")},
    whole={name: f"mamba.{own}" for name, own in MAMBA_WHOLE.items()},
    minus_exp="mamba.A_log",
    folded={"mamba.A_log": "mamba_n_heads", "mamba.D": "mamba_n_heads", "mamba.norm.weight": "mamba_n_groups"},
    absent=frozenset(),
    factors="",
    some_attend=True,
    read=read_gguf,
    write=write_gguf,
)
_SPARSE = replace(
    _DENSE,
    layer={
        **{name: own for name, own in _DENSE.layer.items() if name != "ffn_down"},
        "ffn_gate_inp": f"{MOE}.router",
        **{f"ffn_{name}_exps": f"{MOE}.experts.each.{name}_proj" for name in ("gate", "up", "down")},
        "ffn_down_shexp": "shared_mlp.output_linear",
    },
    split={"shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp")},
    experts=True,
)
GGUF = replace(_DENSE, sparse=_SPARSE, is_sparse=lambda config: bool(config.get("num_local_experts")))


@frozen
class Config(granite.Config):
    ALIASES: ClassVar[dict[str, str]] = {"layers_block_type": "layer_types"}
    LIMITS: ClassVar[dict[str, int]] = {
        "shared_intermediate_size": 1 << 20,
        "mamba_n_heads": 1024,
        "mamba_n_groups": 1024,
        "mamba_d_state": 4096,
        "mamba_d_head": 4096,
        "mamba_d_conv": MAX_WIDTH,
    }
    shared_intermediate_size: int = 1024
    position_embedding_type: str | None = None
    layer_types: list[str] | None = None
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int | str | None = "auto"
    mamba_d_conv: int = 4
    mamba_expand: float = 2.0
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    time_step_limit: list[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types, (*RECURRENT, *ATTENTION))
        if not 0 <= self.num_local_experts <= nn.MAX_EXPERTS:
            what = f"must be 0 to {nn.MAX_EXPERTS}"
            raise nn.unsupported(self, "num_local_experts", what, given=self.num_local_experts)
        if self.num_local_experts and not 0 < self.num_experts_per_tok <= self.num_local_experts:
            what = f"must be 1 to num_local_experts ({self.num_local_experts})"
            raise nn.unsupported(self, "num_experts_per_tok", what, given=self.num_experts_per_tok)
        if self.position_embedding_type not in POSITIONS:
            given = self.position_embedding_type
            raise nn.unsupported(self, "position_embedding_type", given=given, advice="weft knows rope and nope")
        if self.time_step_limit not in (None, [0.0, float("inf")]):
            raise nn.unsupported(self, "time_step_limit", given=self.time_step_limit)
        inner = self.mamba_expand * self.hidden_size
        if self.mamba.inner != inner:
            what = f"must be {inner:g} / {self.mamba_n_heads}, the channels of each of mamba_n_heads"
            raise nn.unsupported(self, "mamba_d_head", what, given=self.mamba_d_head)
        refusal = self.mamba.refusal(self, {"heads": "mamba_n_heads", "width": "mamba_d_conv"})
        if refusal is not None:
            raise refusal

    @property
    def mamba(self) -> Mamba2:
        inner = int(self.mamba_expand * self.hidden_size)
        return nn.Mamba2(
            heads=self.mamba_n_heads,
            head_dim=self.mamba_d_head if isinstance(self.mamba_d_head, int) else inner // self.mamba_n_heads,
            groups=self.mamba_n_groups,
            state=self.mamba_d_state,
            width=self.mamba_d_conv,
            eps=self.rms_norm_eps,
            bias=self.mamba_proj_bias,
            conv_bias=self.mamba_conv_bias,
        )

    def attends(self, layer: int) -> bool:
        """Whether this layer has attention; the others have Mamba2."""
        return self.layer_types is not None and self.layer_types[layer] in ATTENTION

    def rotation(self, layer: int, context: int) -> Rope | None:
        return super().rotation(layer, context) if self.position_embedding_type == "rope" else None


def experts(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    """The softmax of the chosen experts' scores is that of all scores, divided by its sum over the chosen ones."""
    return nn.mixture(
        x,
        nn.linear(x, w / "router", cfg.num_local_experts),
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.intermediate_size,
        kind=cfg.activation,
        normalise=True,
    )


def shared_mlp(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    width = cfg.shared_intermediate_size
    gate, up = (nn.linear(x, w / "input_linear", width, part=(first, 2 * width)) for first in (0, width))
    return nn.linear(nn.gated(gate, up, kind=cfg.activation), w / "output_linear", cfg.hidden_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y = nn.rms_norm(x, w / "input_layernorm", cfg.rms_norm_eps)
    if cfg.attends(layer):
        y = llama.self_attention(y, w / "self_attn", cfg, step, layer)
    else:
        y = nn.mamba2(y, w / "mamba", cfg.mamba, step, layer)
    x = x + nn.scale(y, by=cfg.residual_multiplier)
    y = nn.rms_norm(x, w / "post_attention_layernorm", cfg.rms_norm_eps)
    z = shared_mlp(y, w / "shared_mlp", cfg)
    if cfg.num_local_experts:
        z = experts(y, w / MOE, cfg) + z
    return x + nn.scale(z, by=cfg.residual_multiplier)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return granite.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return granite.forward(w, cfg, step, block)
