"""Any encoder that a description in weft.json fits; generic.py builds it.

Its own file because a file says what kind of model it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import nn
from weft.errors import UnsupportedError
from weft.models import generic
from weft.models.generic import GGUF, NAMES, Config

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "classify", "hidden_states"]

KIND = "encoder"


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    return generic.final(generic.trunk(w, cfg, step), w, cfg)


def classify(x: Tensor, w: Scope, cfg: Config, labels: int) -> Tensor:
    """Scores of pooled states: x [B, hidden] -> [B, labels]"""
    own, p = cfg.words.classifier, generic.Parts(w, cfg.words)
    if own is None:
        advice = "add the section classifier, or use it as an embedder"
        raise UnsupportedError("rerank", "the model's description has no classifier", advice=advice)
    y = nn.activate(nn.linear(x, p / "classifier_inner", cfg.hidden_size, own.bias), kind=own.activation)
    return nn.linear(p.norm(y, "classifier_norm") if own.norm else y, p / "classifier", labels, bias=True)
