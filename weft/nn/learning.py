"""Dropout while a model learns: where models say so, and only in a trace that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step

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


def attend_dropped(
    q: Tensor, k: Tensor, v: Tensor, step: Step, bias: tuple[Tensor | None, Tensor | None], scale: float, rate: float
) -> Tensor:
    """Attention to whole texts with a part of its weights left out; operands as those of `attend`."""
    from weft.ops.dropout import attention_dropped
    from weft.ops.spec import T

    trace = q.trace
    trace.sites += 1
    draws = trace.input(DRAWS, (T, 3), "i32")
    return attention_dropped(q, k, v, step.segments, draws, *bias, scale=scale, rate=rate, site=trace.sites)
