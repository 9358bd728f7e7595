"""From hidden states to one vector per sequence: pool, dense layers, normalise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.scope import Scope
    from weft.nn.step import Step


@dataclass(frozen=True)
class DenseLayer:
    """A linear layer after pooling; `name` is its scope."""

    name: str
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class Head:
    """What stands between the last hidden state and the vector."""

    pooling: str
    dense: tuple[DenseLayer, ...] = ()
    normalise: bool = False


def pooled(x: Tensor, w: Scope, step: Step, head: Head) -> Tensor:
    """One vector per sequence.  x [T, hidden] -> [B, dim]"""
    from weft import ops
    from weft.nn.layers import linear

    y = ops.pool(x, step.segments, mode=head.pooling)
    for layer in head.dense:
        y = linear(y, w / layer.name / "linear", layer.outputs, layer.bias)
        if layer.activation != "none":
            y = ops.activate(y, kind=layer.activation)
    return ops.l2_normalise(y, eps=1e-12) if head.normalise else y
