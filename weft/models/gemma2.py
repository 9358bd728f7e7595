"""Gemma 2: norms before and after attention and feed-forward, capped scores and logits, windows in every other layer.

Reference: transformers/models/gemma2. Checkpoint names are the scope names below; norms are stored less one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.models.llama import NAMES
from weft.weights.names import Gguf, GgufKeys

__all__ = ["GGUF", "KIND", "NAMES", "Config", "describe", "forward", "hidden_states"]

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "decoder"
MAX_PATTERN = 1024
PATTERN = 2  # one layer of so many attends to everything, unless a key says otherwise
# The layers of the one Gemma 2 (27B) whose scores are scaled by a head's share of the embedding, not by the head's
# width: GGUF has no key for it, readers know the model by this number.
WIDE_LAYERS = 46
WINDOW, SCORE_CAP, LOGIT_CAP = 4096, 50.0, 30.0  # where a file leaves them out


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    return {
        **read_windows(keys, config, WINDOW, PATTERN),
        "query_pre_attn_scalar": score_scalar(config, WIDE_LAYERS),
        "attn_logit_softcapping": keys.real("attn_logit_softcapping", SCORE_CAP),
        "final_logit_softcapping": keys.real("final_logit_softcapping", LOGIT_CAP),
    }


def read_windows(keys: GgufKeys, config: dict[str, Any], window: int, pattern: int) -> dict[str, Any]:
    """The activation and which layers have a window, of both Gemmas; `window` and `pattern` are the defaults."""
    layers = config["num_hidden_layers"]
    window = keys.size("attention.sliding_window", window)
    slides = [False] * layers
    if window:
        period = "attention.sliding_window_pattern"
        slides = keys.flags(period, layers) or sliding(keys.size(period, pattern, high=MAX_PATTERN), layers)
    return {
        "hidden_activation": config["hidden_act"],
        "sliding_window": window or None,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
    }


def sliding(period: int, layers: int) -> list[bool]:
    """Which layers have a window: all but the last of every `period`; all of them where that is 0."""
    return [period == 0 or (layer + 1) % period != 0 for layer in range(layers)]


def score_scalar(config: Mapping[str, Any], wide_layers: int) -> int:
    """The query_pre_attn_scalar that readers of GGUF assume."""
    wide = config["num_hidden_layers"] == wide_layers
    return int(config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"])


def write_gguf(gguf: Gguf, config: Mapping[str, Any]) -> dict[str, Any]:
    check_writable(gguf, config, WIDE_LAYERS)
    caps = {"attn_logit_softcapping": SCORE_CAP, "final_logit_softcapping": LOGIT_CAP}
    caps = {name: config.get(name, default) for name, default in caps.items()}
    if None in caps.values():
        raise gguf.unwritable("the absence of a cap")
    windows = written_windows(gguf, config, PATTERN)
    if not windows:
        raise gguf.unwritable("a list of layer_types in which none slides")
    return {**windows, **{name: float(cap) for name, cap in caps.items()}}


def check_writable(gguf: Gguf, config: Mapping[str, Any], wide_layers: int) -> None:
    """Refuse what a file of either Gemma cannot say."""
    for name in ("attention_bias", "use_bidirectional_attention"):
        if config.get(name):
            raise gguf.unwritable(name)
    scalar = score_scalar(config, wide_layers)
    if config.get("query_pre_attn_scalar", 256) != scalar:
        raise gguf.unwritable(f"a query_pre_attn_scalar that is not {scalar}")


def written_windows(gguf: Gguf, config: Mapping[str, Any], pattern: int) -> dict[str, Any]:
    """The window and how many layers it takes until one has none; nothing where no layer has one."""
    slides = sliding(pattern, config["num_hidden_layers"])
    if config.get("layer_types") is not None:
        slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    if not any(slides):
        return {}
    period = slides.index(False) + 1 if False in slides else 0
    if slides != sliding(period, len(slides)):
        raise gguf.unwritable("a list of layer_types in which not every n-th layer sees everything")
    window = int(config.get("sliding_window", WINDOW))
    return {"attention.sliding_window": window, "attention.sliding_window_pattern": period}


GGUF = replace(
    llama.GGUF,
    architecture="gemma2",
    model_type="gemma2",
    class_name="Gemma2ForCausalLM",
    root={"token_embd": "model.embed_tokens", "output_norm": "model.norm"},  # the head is always the embedding
    layer={
        **llama.GGUF.layer,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    absent=frozenset(),
    plus_one=True,
    paired=False,
    factors="",
    activation="gelu_pytorch_tanh",
    head_dim=256,
    read=read_gguf,
    write=write_gguf,
)


@frozen
class Config(llama.Config):
    ABOVE_ZERO: ClassVar[tuple[str, ...]] = (
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "query_pre_attn_scalar",
    )
    activation_field: ClassVar[str] = "hidden_activation"
    head_dim: int = 256
    hidden_activation: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 8192
    tie_word_embeddings: bool = True
    query_pre_attn_scalar: float = 256.0
    sliding_window: int | None = WINDOW
    layer_types: list[str] | None = None
    attn_logit_softcapping: float | None = SCORE_CAP
    final_logit_softcapping: float | None = LOGIT_CAP
    use_bidirectional_attention: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        nn.check_layer_types(self, self.layer_types)
        if self.use_bidirectional_attention and not self.bidirectional:
            raise nn.unsupported(self, "use_bidirectional_attention", "is not supported: weft runs this model causally")
        if self.sliding_window is None and any(map(self.slides, range(self.num_hidden_layers))):
            raise nn.unsupported(self, "sliding_window", "must not be null: some layers have a window")

    @property
    def score_scale(self) -> float:
        return self.query_pre_attn_scalar**-0.5

    @property
    def score_cap(self) -> float:
        return self.attn_logit_softcapping or 0.0

    @property
    def pattern(self) -> int:
        """One layer of so many, the last of them, attends to everything, unless the file lists each layer's type."""
        return PATTERN

    def slides(self, layer: int) -> bool:
        """Whether this layer has a window."""
        if self.layer_types is not None:
            return self.layer_types[layer] == "sliding_attention"
        return (layer + 1) % self.pattern != 0

    def window(self, layer: int) -> int:
        return (self.sliding_window or 0) if self.slides(layer) else 0


def norm(x: Tensor, w: Scope, cfg: Config) -> Tensor:
    return nn.rms_norm(x, w, cfg.rms_norm_eps, plus_one=True)


def block(
    x: Tensor,
    w: Scope,
    cfg: Config,
    step: Step,
    layer: int,
    attention: Callable[..., Tensor] = llama.self_attention,
) -> Tensor:
    """One layer; a relative passes its own attention."""
    y = attention(norm(x, w / "input_layernorm", cfg), w / "self_attn", cfg, step, layer)
    x = x + norm(y, w / "post_attention_layernorm", cfg)
    y = llama.mlp(norm(x, w / "pre_feedforward_layernorm", cfg), w / "mlp", cfg)
    return x + norm(y, w / "post_feedforward_layernorm", cfg)


def hidden_states(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """The normed last hidden state of the tokens in step.rows [L, hidden]."""
    by = math.sqrt(cfg.hidden_size)
    x = nn.token_inputs(step, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size, by=by)
    for layer in range(cfg.num_hidden_layers):
        x = layers(x, w / "layers" / layer, cfg, step, layer)
    return norm(nn.take_rows(x, step.rows), w / "norm", cfg)


def forward(w: Scope, cfg: Config, step: Step, layers: Callable[..., Tensor] = block) -> Tensor:
    """Logits of the tokens in step.rows [L, vocab]; step carries positions and the key/value pages."""
    logits = llama.head(hidden_states(w / "model", cfg, step, layers), w, cfg)
    cap = cfg.final_logit_softcapping
    return nn.softcap(logits, cap=cap) if cap is not None else logits


def describe(cfg: Config, names: Collection[str] = (), *, qk_norm: str = "none") -> said.Description:
    from weft.nn import description as said

    at = "model.layers.{i}."
    return llama.describe(
        cfg,
        embedding=said.Embedding(scale=math.sqrt(cfg.hidden_size)),
        block=said.Block("sandwich"),
        output=said.Output(tied=cfg.tie_word_embeddings, cap=cfg.final_logit_softcapping),
        plus_one=True,
        qk_norm=qk_norm,
        weights={
            "attention_out_norm": f"{at}post_attention_layernorm",
            "mlp_norm": f"{at}pre_feedforward_layernorm",
            "mlp_out_norm": f"{at}post_feedforward_layernorm",
        },
    )
