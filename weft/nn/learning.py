"""Dropout while a model learns: where models say so, and only in a trace that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor

DRAWS = "draws"  # an input: the key of each token's sequence, and its place in it


def dropout(x: Tensor, rate: float) -> Tensor:
    """x [T, C] of tokens or [L, C] of the step's rows, a part of it left out where the trace says so; `rate` is the
    model's own part."""
    trace = x.trace
    chosen = rate if trace.dropout is None else trace.dropout
    if not chosen:
        return x
    from weft.ops.dropout import dropout as leave_out
    from weft.ops.spec import L, T

    trace.sites += 1
    rows = trace.input("rows", (L,), "i32") if x.shape[0] == L else None
    return leave_out(x, trace.input(DRAWS, (T, 3), "i32"), rows, rate=chosen, site=trace.sites)
