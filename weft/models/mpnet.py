"""MPNet (all-mpnet-base-v2): BERT without types of tokens; the layers share one table of biases of scores by distance.

Reference: transformers/models/mpnet. Checkpoint names are the scope names below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import nn
from weft.frozen import frozen
from weft.models.bert import ACTIVATIONS
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

KIND = "encoder"
NAMES = Names(prefixes=("mpnet.", "model.mpnet."))
GGUF = None
BUCKETS, FARTHEST = 32, 128  # upstream takes no others, whatever the config says


@frozen
class Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    relative_attention_num_buckets: int = BUCKETS
    pad_token_id: int = 1
    hidden_dropout_prob: float = 0.1  # while it learns
    attention_probs_dropout_prob: float = 0.1

    def __post_init__(self) -> None:
        nn.check_one_of(self, "hidden_act", ACTIVATIONS)
        if self.relative_attention_num_buckets != BUCKETS:
            given = self.relative_attention_num_buckets
            raise nn.unsupported(self, "relative_attention_num_buckets", f"must be {BUCKETS}", given=given)
        if self.pad_token_id < 0 or self.positions < 1:
            what = f"must be 0 or more and leave room for a token in {self.max_position_embeddings} positions"
            raise nn.unsupported(self, "pad_token_id", what, given=self.pad_token_id)
        if self.hidden_size % self.num_attention_heads:
            what = f"must be a multiple of num_attention_heads ({self.num_attention_heads})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)

    @property
    def first_position(self) -> int:
        """The row of the position table that the first token of a text takes."""
        return self.pad_token_id + 1

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings - self.first_position


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int, bias: tuple[Tensor, Tensor]) -> Tensor:
    tokens, heads, hidden = x.shape[0], cfg.num_attention_heads, cfg.hidden_size
    own = w / "attention" / "attn"
    q, k, v = (
        nn.linear(x, own / name, hidden, bias=True).reshape(tokens, heads, hidden // heads) for name in ("q", "k", "v")
    )
    rate = cfg.attention_probs_dropout_prob
    out = nn.attend(q, k, v, step, layer, causal=False, bias=bias, dropout=rate).reshape(tokens, hidden)
    out = nn.dropout(nn.linear(out, own / "o", hidden, bias=True), cfg.hidden_dropout_prob)
    x = nn.layer_norm(out + x, w / "attention" / "LayerNorm", cfg.layer_norm_eps)
    inner = nn.linear(x, w / "intermediate" / "dense", cfg.intermediate_size, bias=True)
    out = nn.linear(nn.activate(inner, kind=ACTIVATIONS[cfg.hidden_act]), w / "output" / "dense", hidden, bias=True)
    out = nn.dropout(out, cfg.hidden_dropout_prob)
    return nn.layer_norm(out + x, w / "output" / "LayerNorm", cfg.layer_norm_eps)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of first tokens: x [B, hidden] -> [B, labels]"""
    x = nn.dropout(x, cfg.hidden_dropout_prob)
    inner = nn.linear(x, w / "classifier" / "dense", cfg.hidden_size, bias=True)
    inner = nn.dropout(nn.activate(inner, kind="tanh"), cfg.hidden_dropout_prob)
    return nn.linear(inner, w / "classifier" / "out_proj", labels, bias=True)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    table, encoder = w / "embeddings", w / "encoder"
    words = nn.embedding(step.ids, table / "word_embeddings", cfg.vocab_size, cfg.hidden_size)
    part = (cfg.first_position, cfg.max_position_embeddings)
    places = nn.embedding(step.positions, table / "position_embeddings", cfg.positions, cfg.hidden_size, part=part)
    x = nn.layer_norm(words + places, table / "LayerNorm", cfg.layer_norm_eps)
    x = nn.dropout(x, cfg.hidden_dropout_prob)
    biases = (encoder / "relative_attention_bias").weight("weight", BUCKETS, cfg.num_attention_heads)
    buckets = x.trace.constant("attention.buckets", nn.relative_buckets(BUCKETS, FARTHEST))
    for layer in range(cfg.num_hidden_layers):
        x = block(x, encoder / "layer" / layer, cfg, step, layer, (biases, buckets))
    return x
