"""DistilBERT (multi-qa-distilbert, msmarco-distilbert): half of BERT's layers, without types of tokens.

Reference: transformers/models/distilbert. Checkpoint names are the scope names below.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar

from weft import nn
from weft.frozen import frozen
from weft.models.bert import ACTIVATIONS
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "encoder"
NAMES = Names(prefixes=("distilbert.", "model.distilbert."))
GGUF = None
EPS = 1e-12


@frozen
class Config:
    ALIASES: ClassVar[dict[str, str]] = {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "activation": "hidden_act",
    }
    vocab_size: int
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 6
    num_attention_heads: int = 12
    max_position_embeddings: int = 512
    hidden_act: str = "gelu"
    dropout: float = 0.1  # while it learns
    attention_dropout: float = 0.1
    seq_classif_dropout: float = 0.2

    def __post_init__(self) -> None:
        nn.check_one_of(self, "hidden_act", ACTIVATIONS)
        if self.hidden_size % self.num_attention_heads:
            what = f"must be a multiple of num_attention_heads ({self.num_attention_heads})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads, hidden = x.shape[0], cfg.num_attention_heads, cfg.hidden_size
    q, k, v = (
        nn.linear(x, w / "attention" / name, hidden, bias=True).reshape(tokens, heads, hidden // heads)
        for name in ("q_lin", "k_lin", "v_lin")
    )
    out = nn.attend(q, k, v, step, layer, causal=False, dropout=cfg.attention_dropout).reshape(tokens, hidden)
    out = nn.linear(out, w / "attention" / "out_lin", hidden, bias=True)
    x = nn.layer_norm(out + x, w / "sa_layer_norm", EPS)
    inner = nn.linear(x, w / "ffn" / "lin1", cfg.intermediate_size, bias=True)
    out = nn.linear(nn.activate(inner, kind=ACTIVATIONS[cfg.hidden_act]), w / "ffn" / "lin2", hidden, bias=True)
    out = nn.dropout(out, cfg.dropout)
    return nn.layer_norm(out + x, w / "output_layer_norm", EPS)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of first tokens: x [B, hidden] -> [B, labels]"""
    inner = nn.linear(x, w / "pre_classifier", cfg.hidden_size, bias=True)
    inner = nn.dropout(nn.activate(inner, kind="relu"), cfg.seq_classif_dropout)
    return nn.linear(inner, w / "classifier", labels, bias=True)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    table = w / "embeddings"
    words = nn.embedding(step.ids, table / "word_embeddings", cfg.vocab_size, cfg.hidden_size)
    places = nn.embedding(step.positions, table / "position_embeddings", cfg.positions, cfg.hidden_size)
    x = nn.dropout(nn.layer_norm(words + places, table / "LayerNorm", EPS), cfg.dropout)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "transformer" / "layer" / layer, cfg, step, layer)
    return x


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    at = "transformer.layer.{i}."
    return said.described(
        {
            "embedding": "embeddings.word_embeddings",
            "positions": "embeddings.position_embeddings",
            "embedding_norm": "embeddings.LayerNorm",
            **{name: f"{at}attention.{name}_lin" for name in "qkv"},
            "o": f"{at}attention.out_lin",
            "attention_out_norm": f"{at}sa_layer_norm",
            "up": f"{at}ffn.lin1",
            "down": f"{at}ffn.lin2",
            "mlp_out_norm": f"{at}output_layer_norm",
            "classifier_inner": "pre_classifier",
            "classifier": "classifier",
        },
        kind="encoder",
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        layers=cfg.num_hidden_layers,
        positions=cfg.positions,
        embedding=said.Embedding(positions="learned", norm=True),
        norm=said.Norm("layer", EPS, bias=True),
        block=said.Block("post", final_norm=False),
        attention=said.both_ways(cfg.num_attention_heads, cfg.hidden_size, bias=True),
        mlp=said.Mlp(cfg.intermediate_size, ACTIVATIONS[cfg.hidden_act], gated=False, bias=True),
        classifier=said.Classifier("relu") if "classifier.weight" in names else None,
        **said.layers_of([0] * cfg.num_hidden_layers, [None] * cfg.num_hidden_layers),
    )
