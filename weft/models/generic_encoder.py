"""Any encoder that a description in weft.json fits; generic.py builds it.

Its own file because a file says what kind of model it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.models import generic
from weft.models.generic import GGUF, NAMES, Config

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn import Scope, Step

__all__ = ["GGUF", "KIND", "NAMES", "Config", "hidden_states"]

KIND = "encoder"


def hidden_states(w: Scope, cfg: Config, step: Step) -> Tensor:
    """The last hidden state of every token [T, hidden]."""
    return generic.final(generic.trunk(w, cfg, step), w, cfg)
