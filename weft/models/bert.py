"""BERT (MiniLM, BGE, E5-en): learned positions, attention both ways, norms after the residual sums.

Reference: transformers/models/bert. Checkpoint names are the scope names below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import ops
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.nn import Scope, Step, attend, embedding, layer_norm, linear

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

KIND = "encoder"
# what transformers calls them -> the catalogue's word
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


@frozen
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    position_embedding_type: str = "absolute"
    causal: bool = False  # GGUF's word; no model has it
    is_decoder: bool = False  # transformers' word for the same

    def __post_init__(self) -> None:
        if self.position_embedding_type != "absolute":
            raise self.unsupported(
                f"position_embedding_type {self.position_embedding_type!r:.80}; only absolute is known"
            )
        if self.causal or self.is_decoder:
            raise self.unsupported("causal attention (is_decoder); weft runs this model both ways")
        if self.hidden_act not in ACTIVATIONS:
            raise self.unsupported(f"hidden_act {self.hidden_act!r:.80}; known are {', '.join(ACTIVATIONS)}")
        if self.hidden_size % self.num_attention_heads:
            raise self.unsupported(
                f"hidden_size {self.hidden_size} does not split into num_attention_heads {self.num_attention_heads}"
            )

    def unsupported(self, what: str) -> UnsupportedError:
        """The error that names the model type, a relative's too."""
        return UnsupportedError(f"[{type(self).__module__.rpartition('.')[2]}] {what}")

    @property
    def first_position(self) -> int:
        """The row of the position table that the first token of a text takes."""
        return 0

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings - self.first_position


def embeddings(w: Scope, cfg: Config, step: Step) -> Tensor:
    words = embedding(step.ids, w / "word_embeddings", cfg.vocab_size, cfg.hidden_size)
    part = (cfg.first_position, cfg.max_position_embeddings) if cfg.first_position else None
    places = embedding(step.positions, w / "position_embeddings", cfg.positions, cfg.hidden_size, part=part)
    types = embedding(step.types, w / "token_type_embeddings", cfg.type_vocab_size, cfg.hidden_size)
    return layer_norm(words + types + places, w / "LayerNorm", cfg.layer_norm_eps)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads = x.shape[0], cfg.num_attention_heads
    dim = cfg.hidden_size // heads
    q, k, v = (
        linear(x, w / "self" / name, cfg.hidden_size, bias=True).reshape(tokens, heads, dim)
        for name in ("query", "key", "value")
    )
    out = attend(q, k, v, step, layer, causal=False).reshape(tokens, cfg.hidden_size)
    out = linear(out, w / "output" / "dense", cfg.hidden_size, bias=True)
    return layer_norm(out + x, w / "output" / "LayerNorm", cfg.layer_norm_eps)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    x = self_attention(x, w / "attention", cfg, step, layer)
    inner = linear(x, w / "intermediate" / "dense", cfg.intermediate_size, bias=True)
    out = linear(
        ops.activate(inner, kind=ACTIVATIONS[cfg.hidden_act]), w / "output" / "dense", cfg.hidden_size, bias=True
    )
    return layer_norm(out + x, w / "output" / "LayerNorm", cfg.layer_norm_eps)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of first tokens: x [B, hidden] -> [B, labels]

    RoBERTa's classifier has its inner layer inside; GGUF calls BERT's own pooler so too.
    """
    whole = "classifier.out_proj.weight" in w
    inner = linear(x, w / "classifier" / "dense" if whole else w / "pooler" / "dense", cfg.hidden_size, bias=True)
    last = w / "classifier" / "out_proj" if whole else w / "classifier"
    return linear(ops.activate(inner, kind="tanh"), last, labels, bias=True)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    x = embeddings(w / "embeddings", cfg, step)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "encoder" / "layer" / layer, cfg, step, layer)
    return x
