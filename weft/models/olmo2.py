"""OLMo 2 (1B to 32B): Llama with norms after attention and feed-forward, and over all queries and all keys.

Reference: transformers/models/olmo2. Checkpoint names are the scope names below; there are no norms before the layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES, token_logit
from weft.weights.names import Gguf, GgufKeys

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states", "token_logit"]

KIND = "decoder"


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    window = keys.size("attention.sliding_window", 0)
    if not window:
        return {}
    layers = keys.flags("attention.sliding_window_pattern", config["num_hidden_layers"])
    found: dict[str, Any] = {"model_type": "olmo3", "architectures": ["Olmo3ForCausalLM"], "sliding_window": window}
    if layers is not None:
        found["layer_types"] = ["sliding_attention" if slides else "full_attention" for slides in layers]
    return found


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    if config.get("attention_bias"):
        raise gguf.unwritable("attention_bias")
    return {}


GGUF = replace(
    llama.GGUF,
    architecture="olmo2",
    model_type="olmo2",
    class_name="Olmo2ForCausalLM",
    layer={
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    absent=frozenset(),
    paired=False,
    factors="",
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    rms_norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mlp_bias:
            raise nn.unsupported(self, "mlp_bias", given=self.mlp_bias)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, groups, dim = x.shape[0], cfg.num_attention_heads, cfg.kv_heads, cfg.channels
    q = nn.linear(x, w / "q_proj", heads * dim, cfg.qkv_bias)
    k = nn.linear(x, w / "k_proj", groups * dim, cfg.qkv_bias)
    v = nn.linear(x, w / "v_proj", groups * dim, cfg.qkv_bias).reshape(tokens, groups, dim)
    q = nn.rms_norm(q, w / "q_norm", cfg.rms_norm_eps).reshape(tokens, heads, dim)  # over all heads together
    k = nn.rms_norm(k, w / "k_norm", cfg.rms_norm_eps).reshape(tokens, groups, dim)
    return llama.rotary_attention(q, k, v, w, cfg, step, layer)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    y = self_attention(x, w / "self_attn", cfg, step, layer)
    x = x + nn.rms_norm(y, w / "post_attention_layernorm", cfg.rms_norm_eps)
    y = llama.mlp(x, w / "mlp", cfg)
    return x + nn.rms_norm(y, w / "post_feedforward_layernorm", cfg.rms_norm_eps)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return llama.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return llama.forward(w, cfg, step, block)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    at = "model.layers.{i}."
    after = {"attention_out_norm": f"{at}post_attention_layernorm", "mlp_out_norm": f"{at}post_feedforward_layernorm"}
    return llama.describe(cfg, block=said.Block("output"), qk_norm="all", weights=after)
