"""Nemotron-H and Nemotron 3: a layer is Mamba2, attention without positions, a feed-forward part, or experts.

Reference: transformers/models/nemotron_h. Feed-forward parts and experts have no gate, and a squared ReLU. Scores of
experts are sigmoids, a bias of its own chooses between them, and every token takes a shared expert too; some models
have experts that see a narrower projection of the token. A rate has no lower bound here: there it is bounded by
time_step_min in prompts, and not when it decodes.
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
LAYERS = {"M": ("linear_attention", "mamba"), "*": ("full_attention", "attention"), "-": ("mlp",), "E": ("moe",)}
LETTERS = {word: letter for letter, words in LAYERS.items() for word in words}
SUM_EPS = 1e-20  # added to the sum that a token's weights are divided by
NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head_norm")  # a head for the next token but one, which is not read


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    blocks = config["num_hidden_layers"]
    layers = blocks - keys.size("nextn_predict_layers", 0, high=blocks - 1)
    attend, feed = (keys.counts(name, blocks) for name in ("attention.head_count_kv", "feed_forward_length"))
    if attend is None or feed is None:
        keys.refuse("attention.head_count_kv", "must have a number for each layer, as feed_forward_length must")
    inner, heads = keys.count("ssm.inner_size"), keys.count("ssm.time_step_rank", high=1024)
    first = next((layer for layer, count in enumerate(attend) if count), 0)
    fed = next((layer for layer, count in enumerate(feed) if count), 0)
    experts = keys.size("expert_count", 0, high=nn.MAX_EXPERTS)
    fed_by = "E" if experts else "-"
    return {
        **(_read_experts(keys, config, experts, fed) if experts else {}),
        "num_hidden_layers": layers,
        "hybrid_override_pattern": "".join("*" if a else fed_by if f else "M" for a, f in zip(attend, feed))[:layers],
        "mlp_hidden_act": "relu2",
        "attention_bias": keys.has(f"blk.{first}.attn_q.bias"),
        "mlp_bias": keys.has(f"blk.{fed}.ffn_up.bias"),
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
        "n_groups": keys.count("ssm.group_count", high=1024),
        "ssm_state_size": keys.count("ssm.state_size", high=4096),
        "conv_kernel": keys.count("ssm.conv_kernel", high=MAX_WIDTH),
    }


def _read_experts(keys: GgufKeys, config: dict[str, Any], experts: int, fed: int) -> dict[str, Any]:
    if keys.size("expert_group_count", 1) > 1:
        keys.refuse("expert_group_count", "must be 1")
    return {
        "n_routed_experts": experts,
        "num_experts_per_tok": keys.count("expert_used_count", high=experts),
        "moe_intermediate_size": keys.count("expert_feed_forward_length", config["intermediate_size"], high=1 << 20),
        "moe_shared_expert_intermediate_size": keys.rows(f"blk.{fed}.ffn_up_shexp.weight"),
        "moe_latent_size": keys.size("moe_latent_size", 0, high=1 << 20) or None,
        "norm_topk_prob": keys.flag("expert_weights_norm", False),
        "routed_scaling_factor": keys.real("expert_weights_scale", 1.0),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    cfg = nn.read_config(Config, config)
    if "E" in cfg.pattern and "-" in cfg.pattern:
        raise gguf.unwritable("a feed-forward part beside experts")
    if "E" in cfg.pattern and cfg.mlp_bias:
        raise gguf.unwritable("mlp_bias of experts")
    if cfg.use_bias:
        raise gguf.unwritable("use_bias")
    if not cfg.use_conv_bias:
        raise gguf.unwritable("a convolution without bias")
    return {
        "block_count": len(cfg.pattern),
        **{f"attention.layer_norm_{kind}epsilon": cfg.rms_norm_eps for kind in ("rms_", "")},  # readers ask for both
        "attention.head_count_kv": [cfg.kv_heads if letter == "*" else 0 for letter in cfg.pattern],
        "feed_forward_length": [_width(cfg, letter) for letter in cfg.pattern],
        **(_written_experts(cfg) if "E" in cfg.pattern else {}),
        "ssm.inner_size": cfg.mamba.inner,
        "ssm.time_step_rank": cfg.mamba.heads,
        "ssm.group_count": cfg.mamba.groups,
        "ssm.state_size": cfg.mamba.state,
        "ssm.conv_kernel": cfg.mamba.width,
    }


def _width(cfg: Config, letter: str) -> int:
    return {"-": cfg.intermediate_size, "E": cfg.moe_intermediate_size}.get(letter, 0)


def _written_experts(cfg: Config) -> dict[str, Any]:
    return {
        "expert_count": cfg.n_routed_experts,
        "expert_used_count": cfg.num_experts_per_tok,
        "expert_feed_forward_length": cfg.moe_intermediate_size,
        "expert_shared_feed_forward_length": cfg.moe_shared_expert_intermediate_size,
        "expert_shared_count": 1,
        "expert_weights_norm": cfg.norm_topk_prob,
        "expert_weights_scale": cfg.routed_scaling_factor,
        "expert_group_count": 1,
        **({"moe_latent_size": cfg.moe_latent_size} if cfg.moe_latent_size else {}),
    }


_DENSE = replace(
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
_SPARSE = replace(
    _DENSE,
    architecture="nemotron_h_moe",
    layer={
        **_DENSE.layer,
        "ffn_gate_inp": "mixer.gate",
        **{f"ffn_{name}_exps": f"mixer.experts.each.{name}_proj" for name in ("up", "down")},
        **{f"ffn_{name}_shexp": f"mixer.shared_experts.{name}_proj" for name in ("up", "down")},
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
        "post_attention_norm": "post_attention_norm",
        **{f"nextn.{name}": f"nextn.{name}" for name in NEXTN},
    },
    whole={**_DENSE.whole, "exp_probs_b.bias": "mixer.gate.e_score_correction_bias"},
    experts=True,
)
GGUF = replace(_DENSE, sparse=_SPARSE, is_sparse=lambda config: "E" in nn.read_config(Config, config).pattern)


@frozen
class Config(llama.Config):
    ALIASES: ClassVar[dict[str, str]] = {
        "layer_norm_epsilon": "rms_norm_eps",
        "layer_types": "layers_block_type",
        "mamba_n_groups": "n_groups",
        "mamba_d_conv": "conv_kernel",
        "mamba_conv_bias": "use_conv_bias",
        "num_local_experts": "n_routed_experts",
    }
    LIMITS: ClassVar[dict[str, int]] = {
        "mamba_num_heads": 1024,
        "mamba_head_dim": 4096,
        "n_groups": 1024,
        "ssm_state_size": 4096,
        "conv_kernel": MAX_WIDTH,
        "n_routed_experts": nn.MAX_EXPERTS,
        "num_experts_per_tok": nn.MAX_EXPERTS,
        "moe_intermediate_size": 1 << 20,
        "moe_shared_expert_intermediate_size": 1 << 20,
        "moe_latent_size": 1 << 20,
        "n_group": nn.MAX_EXPERTS,
        "topk_group": nn.MAX_EXPERTS,
    }
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("routed_scaling_factor",)
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
    n_routed_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 7688
    moe_shared_expert_intermediate_size: int = 7688
    moe_latent_size: int | None = None
    routed_scaling_factor: float = 1.0
    norm_topk_prob: bool = True
    n_group: int = 1
    topk_group: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_layers()
        if "E" in self.pattern:
            self._check_experts()
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

    def _check_experts(self) -> None:
        if self.num_experts_per_tok > self.n_routed_experts:
            what = f"must be at most n_routed_experts ({self.n_routed_experts})"
            raise nn.unsupported(self, "num_experts_per_tok", what, given=self.num_experts_per_tok)
        if self.topk_group != self.n_group:
            what = "must be n_group: weft does not choose groups of experts first"
            raise nn.unsupported(self, "topk_group", what, given=self.topk_group)

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


def mlp(x: Tensor, w: Scope, cfg: Config, width: int) -> Tensor:
    y = nn.activate(nn.linear(x, w / "up_proj", width, cfg.mlp_bias), kind=cfg.activation)
    return nn.linear(y, w / "down_proj", cfg.hidden_size, cfg.mlp_bias)


def experts(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    narrow = cfg.moe_latent_size
    y = nn.mixture(
        nn.linear(x, w / "fc1_latent_proj", narrow, cfg.mlp_bias) if narrow else x,
        nn.linear(x, w / "gate", cfg.n_routed_experts),
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.moe_intermediate_size,
        kind=cfg.activation,
        names=("up_proj", "down_proj"),
        bias=(w / "gate").weight("e_score_correction_bias", cfg.n_routed_experts),
        sigmoid=True,
        normalise=cfg.norm_topk_prob,
        scale=cfg.routed_scaling_factor,
        eps=SUM_EPS,
    )
    y = nn.linear(y, w / "fc2_latent_proj", cfg.hidden_size, cfg.mlp_bias) if narrow else y
    return y + mlp(x, w / "shared_experts", cfg, cfg.moe_shared_expert_intermediate_size)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y, letter = nn.rms_norm(x, w / "norm", cfg.rms_norm_eps), cfg.pattern[layer]
    if letter == "M":
        return x + nn.mamba2(y, w / "mixer", cfg.mamba, step, layer)
    if letter == "*":
        return x + llama.self_attention(y, w / "mixer", cfg, step, layer)
    if letter == "E":
        return x + experts(y, w / "mixer", cfg)
    return x + mlp(y, w / "mixer", cfg, cfg.intermediate_size)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    x = nn.embedding(step.ids, w / "embeddings", cfg.vocab_size, cfg.hidden_size)
    for layer in range(len(cfg.pattern)):
        x = block(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(nn.take_rows(x, step.rows), w / "norm_f", cfg.rms_norm_eps)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions, pages and slots."""
    return llama.head(hidden_states(w / "model", cfg, step), w, cfg)
