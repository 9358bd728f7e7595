"""From hidden states to one row per sequence: which are pooled, how, and the layers after pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.scope import Scope
    from weft.nn.step import Step

SINGLE = ("first", "last")  # poolings that take one token of a sequence


@frozen
class DenseLayer:
    """A linear layer after pooling; `name` is its scope."""

    name: str
    outputs: int
    bias: bool
    activation: str


@frozen
class Head:
    """What comes between the last hidden state and the result.

    With `labels`, the model's own classifier with so many outputs; with `odds`, the logit of the first of two tokens
    minus that of the second; else any number of dense layers, and normalisation. `skips`: sequences may begin with
    tokens of a prompt that are not pooled.
    """

    pooling: str
    dense: tuple[DenseLayer, ...] = ()
    normalise: bool = False
    skips: bool = False
    labels: int = 0
    odds: tuple[int, int] | None = None

    def outputs(self, hidden: int) -> int:
        """How many numbers a result has."""
        if self.labels or self.odds:
            return self.labels or 1
        return self.dense[-1].outputs if self.dense else hidden


def pooled(x: Tensor, step: Step, mode: str) -> Tensor:
    """One row per sequence.  x [T, hidden], or the rows of the step [L, hidden] where it asks for some -> [B, hidden]

    A step with `spans` pools the rows of each sequence; poolings that take one token get exactly those rows.
    """
    from weft import ops

    if mode in SINGLE:
        return x
    return ops.pool(x, step.segments if step.spans is None else step.spans, mode=mode)


def vectors(y: Tensor, w: Scope, head: Head) -> Tensor:
    """Dense layers and normalisation.  y [B, hidden] -> [B, dim]"""
    from weft import ops
    from weft.nn.layers import linear

    for layer in head.dense:
        y = linear(y, w / layer.name / "linear", layer.outputs, layer.bias)
        if layer.activation != "none":
            y = ops.activate(y, kind=layer.activation)
    return ops.l2_normalise(y, eps=1e-12) if head.normalise else y
