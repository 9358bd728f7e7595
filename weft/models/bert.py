"""BERT (MiniLM, BGE, E5-en): learned positions, bidirectional attention, norms after the residual sums.

Reference: transformers/models/bert. Checkpoint names are the scope names below.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from weft import nn
from weft.frozen import frozen
from weft.weights.names import Gguf, GgufKeys, Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "encoder"
NAMES = Names(
    prefixes=("bert.", "model.bert."),
    endings={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},  # made from TensorFlow's
)
# transformers' name -> the catalogue's
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


def read_gguf(keys: GgufKeys, config: dict[str, Any]) -> dict[str, Any]:
    positions = min(keys.rows("position_embd.weight"), config["max_position_embeddings"])
    return {"max_position_embeddings": positions, "position_embedding_type": "absolute"}


GGUF = Gguf(
    architecture="bert",
    model_type="bert",
    class_name="BertModel",
    encoder=True,
    root={
        "token_embd": "embeddings.word_embeddings",
        "position_embd": "embeddings.position_embeddings",
        "token_types": "embeddings.token_type_embeddings",
        "token_embd_norm": "embeddings.LayerNorm",
        "cls": "classifier.dense",
        "cls.output": "classifier.out_proj",
    },
    layer={
        "attn_q": "attention.self.query",
        "attn_k": "attention.self.key",
        "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense",
        "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense",
        "ffn_down": "output.dense",
        "layer_output_norm": "output.LayerNorm",
    },
    layer_prefix="encoder.layer",
    absent=frozenset({"pooler.dense", "embeddings.position_ids"}),  # not used for embeddings, so not in GGUF
    activation="gelu",
    read=read_gguf,
)


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
    hidden_dropout_prob: float = 0.1  # while it learns
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    causal: bool = False  # GGUF's key; no model sets it
    is_decoder: bool = False  # transformers' field for the same

    def __post_init__(self) -> None:
        nn.check_one_of(self, "position_embedding_type", ("absolute",))
        if self.causal or self.is_decoder:
            what = "is not supported: weft runs this model with bidirectional attention"
            raise nn.unsupported(self, "is_decoder" if self.is_decoder else "causal", what)
        nn.check_one_of(self, "hidden_act", ACTIVATIONS)
        if self.hidden_size % self.num_attention_heads:
            what = f"must be a multiple of num_attention_heads ({self.num_attention_heads})"
            raise nn.unsupported(self, "hidden_size", what, given=self.hidden_size)

    @property
    def first_position(self) -> int:
        """The row of the position table that the first token of a text takes."""
        return 0

    @property
    def positions(self) -> int:
        """The longest text in tokens."""
        return self.max_position_embeddings - self.first_position


def embeddings(w: Scope, cfg: Config, step: Step) -> Tensor:
    words = nn.embedding(step.ids, w / "word_embeddings", cfg.vocab_size, cfg.hidden_size)
    part = (cfg.first_position, cfg.max_position_embeddings) if cfg.first_position else None
    places = nn.embedding(step.positions, w / "position_embeddings", cfg.positions, cfg.hidden_size, part=part)
    types = nn.embedding(step.types, w / "token_type_embeddings", cfg.type_vocab_size, cfg.hidden_size)
    x = nn.layer_norm(words + types + places, w / "LayerNorm", cfg.layer_norm_eps)
    return nn.dropout(x, cfg.hidden_dropout_prob)


def self_attention(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    tokens, heads = x.shape[0], cfg.num_attention_heads
    dim = cfg.hidden_size // heads
    q, k, v = (
        nn.linear(x, w / "self" / name, cfg.hidden_size, bias=True).reshape(tokens, heads, dim)
        for name in ("query", "key", "value")
    )
    out = nn.attend(q, k, v, step, layer, causal=False, dropout=cfg.attention_probs_dropout_prob)
    out = out.reshape(tokens, cfg.hidden_size)
    out = nn.linear(out, w / "output" / "dense", cfg.hidden_size, bias=True)
    out = nn.dropout(out, cfg.hidden_dropout_prob)
    return nn.layer_norm(out + x, w / "output" / "LayerNorm", cfg.layer_norm_eps)


def block(x: Tensor, w: Scope, cfg: Config, step: Step, layer: int) -> Tensor:
    x = self_attention(x, w / "attention", cfg, step, layer)
    inner = nn.linear(x, w / "intermediate" / "dense", cfg.intermediate_size, bias=True)
    out = nn.linear(
        nn.activate(inner, kind=ACTIVATIONS[cfg.hidden_act]), w / "output" / "dense", cfg.hidden_size, bias=True
    )
    out = nn.dropout(out, cfg.hidden_dropout_prob)
    return nn.layer_norm(out + x, w / "output" / "LayerNorm", cfg.layer_norm_eps)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of first tokens: x [B, hidden] -> [B, labels]

    The inner layer is BERT's pooler, or part of the classifier in RoBERTa and in GGUF files of either.
    """
    whole = "classifier.out_proj.weight" in w
    rate = cfg.hidden_dropout_prob if cfg.classifier_dropout is None else cfg.classifier_dropout
    x = nn.dropout(x, rate) if whole else x
    inner = nn.linear(x, w / "classifier" / "dense" if whole else w / "pooler" / "dense", cfg.hidden_size, bias=True)
    last = w / "classifier" / "out_proj" if whole else w / "classifier"
    return nn.linear(nn.dropout(nn.activate(inner, kind="tanh"), rate), last, labels, bias=True)


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    x = embeddings(w / "embeddings", cfg, step)
    for layer in range(cfg.num_hidden_layers):
        x = block(x, w / "encoder" / "layer" / layer, cfg, step, layer)
    return x


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    from weft.nn import description as said

    at = "encoder.layer.{i}."
    whole = "classifier.out_proj.weight" in names  # see classify
    scores = whole or {"classifier.weight", "pooler.dense.weight"} <= set(names)
    return said.described(
        {
            "classifier_inner": "classifier.dense" if whole else "pooler.dense",
            "classifier": "classifier.out_proj" if whole else "classifier",
            "embedding": "embeddings.word_embeddings",
            "positions": "embeddings.position_embeddings",
            "types": "embeddings.token_type_embeddings",
            "embedding_norm": "embeddings.LayerNorm",
            **{name[0]: f"{at}attention.self.{name}" for name in ("query", "key", "value")},
            "o": f"{at}attention.output.dense",
            "attention_out_norm": f"{at}attention.output.LayerNorm",
            "up": f"{at}intermediate.dense",
            "down": f"{at}output.dense",
            "mlp_out_norm": f"{at}output.LayerNorm",
        },
        kind="encoder",
        vocab_size=cfg.vocab_size,
        hidden_size=cfg.hidden_size,
        layers=cfg.num_hidden_layers,
        positions=cfg.positions,
        embedding=said.Embedding(
            positions="learned", first_position=cfg.first_position, types=cfg.type_vocab_size, norm=True
        ),
        norm=said.Norm("layer", cfg.layer_norm_eps, bias=True),
        block=said.Block("post", final_norm=False),
        attention=said.both_ways(cfg.num_attention_heads, cfg.hidden_size, bias=True),
        mlp=said.Mlp(cfg.intermediate_size, ACTIVATIONS[cfg.hidden_act], gated=False, bias=True),
        classifier=said.Classifier("tanh") if scores else None,
        **said.layers_of([0] * cfg.num_hidden_layers, [None] * cfg.num_hidden_layers),
    )
