"""EuroBERT (210M to 2.1B): Llama's layers with bidirectional attention.

Reference: transformers/models/eurobert. Checkpoint names are Llama's, with or without the prefix `model.`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from weft import nn
from weft.frozen import frozen
from weft.models import llama
from weft.weights.names import Names

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step
    from weft.nn import description as said

KIND = "encoder"
NAMES = Names(prefixes=("model.",))
GGUF = None


@frozen
class Config(llama.Config):
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 8192
    is_causal: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.is_causal:
            raise nn.unsupported(self, "is_causal", "must be false: this model has bidirectional attention")


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The normed last hidden state of every token [T, hidden]."""
    x = nn.embedding(step.ids, w / "embed_tokens", cfg.vocab_size, cfg.hidden_size)
    for layer in range(cfg.num_hidden_layers):
        x = llama.block(x, w / "layers" / layer, cfg, step, layer)
    return nn.rms_norm(x, w / "norm", cfg.rms_norm_eps)


def describe(cfg: Config, names: Collection[str] = ()) -> said.Description:
    made = llama.describe(cfg)
    weights = {role: name.removeprefix("model.") for role, name in made.weights.items() if role != "head"}
    return replace(made, kind="encoder", output=None, weights=weights)
