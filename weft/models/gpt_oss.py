"""gpt-oss (20B, 120B): experts with biases and a clamped gate, a sink for each head, a window in every other layer.

Reference: transformers/models/gpt_oss. Files hold the experts in MXFP4 or in bfloat16: weft/weights/experts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import token_logit
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "forward", "hidden_states", "token_logit"]

KIND = "decoder"
GATES_IN_TURNS = True  # rows of gate_up_proj: a gate, an up, a gate, for adapters of it
NAMES = Names(trunk="model.", stacks=True)
PATTERN = 2  # every second layer has no window
# Of files that do not say otherwise.
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    experts = keys.count("expert_count", high=nn.MAX_EXPERTS)
    scaling = config.get("rope_scaling")
    return {
        "num_local_experts": experts,
        "num_experts_per_tok": keys.count("expert_used_count", high=experts),
        "intermediate_size": keys.count("expert_feed_forward_length", config["intermediate_size"], high=1 << 20),
        "sliding_window": keys.count("attention.sliding_window", 128, high=1 << 24),
        "attention_bias": True,
        "rope_scaling": scaling and {**scaling, "truncate": False},  # as the model was trained; no key says so
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    pattern = ["full_attention" if (i + 1) % PATTERN == 0 else "sliding_attention" for i in range(1024)]
    if config.get("layer_types") not in (None, pattern[: config["num_hidden_layers"]]):
        raise gguf.unwritable("another order of layer_types")
    if (config.get("rope_scaling") or {}).get("rope_type", "default") != "default":
        raise gguf.unwritable("rope_scaling of this model")  # some readers round the ends of its ramp
    if config.get("swiglu_limit", 7.0) != 7.0 or config.get("swiglu_alpha", 1.702) != 1.702:
        raise gguf.unwritable("another swiglu_limit or swiglu_alpha")
    return {
        "expert_count": config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config["intermediate_size"],
        "attention.sliding_window": config["sliding_window"],
    }


GGUF = replace(
    llama.GGUF,
    architecture="gpt-oss",
    model_type="gpt_oss",
    class_name="GptOssForCausalLM",
    layer={
        **{stem: own for stem, own in llama.GGUF.layer.items() if stem.startswith("attn_")},
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
        "ffn_gate_exps": "mlp.experts.each.gate_proj",
        "ffn_up_exps": "mlp.experts.each.up_proj",
        "ffn_down_exps": "mlp.experts.each.down_proj",
    },
    whole={"attn_sinks.weight": "self_attn.sinks"},
    absent=frozenset(),
    paired=False,
    factors="",
    experts=True,
    stacks=True,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    LIMITS: ClassVar[dict[str, int]] = {"num_local_experts": nn.MAX_EXPERTS, "num_experts_per_tok": nn.MAX_EXPERTS}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("swiglu_limit", "swiglu_alpha")
    num_key_value_heads: int = 8
    head_dim: int = 64
    rms_norm_eps: float = 1e-5
    rope_theta: float = 150_000.0
    rope_scaling: dict[str, Any] | None = field(default_factory=lambda: dict(YARN))
    max_position_embeddings: int = 131_072
    attention_bias: bool = True
    sliding_window: int = 128
    layer_types: list[str] | None = None
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    swiglu_limit: float = 7.0
    swiglu_alpha: float = 1.702

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_one_of(self, "hidden_act", ("silu",))
        nn.check_layer_types(self, self.layer_types)
        if self.num_experts_per_tok > self.num_local_experts:
            what = f"must be at most num_local_experts ({self.num_local_experts})"
            raise nn.unsupported(self, "num_experts_per_tok", what, given=self.num_experts_per_tok)

    def window(self, layer: int) -> int:
        listed = self.layer_types
        slides = (layer + 1) % PATTERN != 0 if listed is None else listed[layer] == "sliding_attention"
        return self.sliding_window if slides else 0


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    sinks = w.weight("sinks", cfg.num_attention_heads)
    return llama.rotary_attention(*llama.projections(x, w, cfg), w, cfg, step, layer, sinks=sinks)


def experts(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    """The softmax of the chosen experts' scores is that of all scores, divided by its sum over the chosen ones."""
    return nn.mixture(
        x,
        nn.linear(x, w / "router", cfg.num_local_experts, bias=True),
        w / "experts",
        top=cfg.num_experts_per_tok,
        inner=cfg.intermediate_size,
        gate=lambda gate, up: nn.gated_clamped(gate, up, limit=cfg.swiglu_limit, alpha=cfg.swiglu_alpha),
        biased=True,
        normalise=True,
    )


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return llama.block(x, w, cfg, step, layer, self_attention, experts)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)
