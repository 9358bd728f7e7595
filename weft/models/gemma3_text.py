"""Gemma 3 (text): Gemma 2 with norms over queries and keys in place of caps; five of six layers have a window.

Reference: transformers/models/gemma3. Checkpoint names are Gemma 2's, with q_norm and k_norm beside the projections.
EmbeddingGemma is one with bidirectional attention.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import gemma2, llama
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Rope, Scope, Step
    from weft.nn import description as said

KIND = "decoder"
# Names inside a model with images (gemma3.py), older files first.
NAMES = Names(
    trunk="model.",
    part={"language_model.": "", "model.language_model.": "model.", "lm_head.": "lm_head."},
)
PATTERN = 6
WIDE_LAYERS = 62  # of the 27B model, see gemma2.py
THETA, LOCAL_THETA = 1_000_000.0, 10_000.0  # where a file leaves them out


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    """Without a window in the file no layer has one."""
    cap = "final_logit_softcapping"
    return {
        **gemma2.read_windows(keys, config, 0, PATTERN),
        "query_pre_attn_scalar": gemma2.score_scalar(config, WIDE_LAYERS),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": keys.real(cap) if cap in keys else None,
        "rope_local_base_freq": keys.real("rope.freq_base_swa", LOCAL_THETA),
    }


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    gemma2.check_writable(gguf, config, WIDE_LAYERS)
    local = config.get("rope_local_scaling") or {}
    if local.get("rope_type", "default") != "default":
        raise gguf.unwritable("a rope_scaling of layers that slide")
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {
        **gemma2.written_windows(gguf, config, config.get("sliding_window_pattern") or PATTERN),
        **{name: float(config[name]) for name in names if config.get(name) is not None},
        "rope.freq_base": float(config.get("rope_theta", THETA)),
        "rope.freq_base_swa": float(config.get("rope_local_base_freq", LOCAL_THETA)),
    }


GGUF = replace(
    gemma2.GGUF,
    architecture="gemma3",
    model_type="gemma3_text",
    class_name="Gemma3ForCausalLM",
    root=llama.GGUF.root,
    layer={**gemma2.GGUF.layer, "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(gemma2.Config):
    LIMITS: ClassVar[dict[str, int]] = {"sliding_window_pattern": gemma2.MAX_PATTERN}
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = ("rope_local_base_freq",)
    LAYER_ROPES: ClassVar[dict[str, tuple[str, str]]] = {
        "full_attention": ("rope_theta", "rope_scaling"),
        "sliding_attention": ("rope_local_base_freq", "rope_local_scaling"),
    }
    # The text part of a model with images leaves out what is upstream's default.
    vocab_size: int = 262_208
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    max_position_embeddings: int = 131_072
    rope_theta: float = THETA
    rope_local_base_freq: float = LOCAL_THETA
    rope_local_scaling: dict[str, Any] | None = None
    sliding_window_pattern: int | None = PATTERN
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attn_logit_softcapping is not None:
            what = "is not supported: transformers reads it and does not apply it"
            raise nn.unsupported(self, "attn_logit_softcapping", what, given=self.attn_logit_softcapping)

    @property
    def pattern(self) -> int:
        return self.sliding_window_pattern or PATTERN

    @property
    def bidirectional(self) -> bool:
        return bool(self.use_bidirectional_attention) or super().bidirectional

    def window(self, layer: int) -> int:
        """With bidirectional attention the config's width is that of both sides together."""
        width = super().window(layer)
        return width // 2 + 1 if width and self.use_bidirectional_attention else width

    def rotation(self, layer: int, context: int) -> Rope | None:
        """Layers with a window have their own theta, and a scaling only where the file says so."""
        if not self.slides(layer):
            return super().rotation(layer, context)
        scaling: Mapping[str, Any] | None = self.rope_local_scaling
        rotation = nn.rope(
            self.rotated,
            self.rope_local_base_freq,
            scaling,
            positions=self.max_position_embeddings,
            context=context,
        )
        return replace(rotation, name="rope.local.inv_freq")


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    q, k, v = llama.projections(x, w, cfg)
    q, k = gemma2.norm(q, w / "q_norm", cfg), gemma2.norm(k, w / "k_norm", cfg)  # over the channels of each head
    # Tokens of a picture see each other (gemma3.py).
    return llama.rotary_attention(q, k, v, w, cfg, step, layer, reach=step.reach)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    return gemma2.block(x, w, cfg, step, layer, self_attention)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    return gemma2.hidden_states(w, cfg, step, block)


def forward(w: Scope, cfg: Config, step: Step) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    return gemma2.forward(w, cfg, step, block)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    return gemma2.describe(cfg, qk_norm="head")
