"""A mixture of experts: every token goes through a few of many feed-forward parts, whose results are added up."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from weft import ops
from weft.nn.scope import EACH

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.scope import Scope


def mixture(
    x: Tensor,
    scores: Tensor,
    w: Scope,
    *,
    top: int,
    inner: int,
    kind: str = "silu",
    gate: Callable[[Tensor, Tensor], Tensor] | None = None,
    biased: bool = False,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    bias: Tensor | None = None,
    shared: Tensor | None = None,
    share: Tensor | None = None,
    **route: Any,
) -> Tensor:
    """The weighted sum of the results of each token's `top` experts.  x [T, hidden], scores [T, E] -> [T, hidden]

    An expert is down(kind(gate(x)) * up(x)), `inner` wide; `gate` makes another product of the two. `biased`: all three
    matrices have biases. `w` has the experts below their numbers, or all of them in
    gate_up_proj [E, 2 inner, hidden] and down_proj [E, hidden, inner]. `bias` and `route` are of ops.route,
    `shared` and `share` of ops.combine.
    """
    count, hidden = cast(int, scores.shape[1]), cast(int, x.shape[1])
    chosen, weights = ops.route(scores, bias, top=top, **route)
    rows, starts, places = ops.group(chosen, experts=count)
    picked = ops.take_rows(x, rows)
    fused, sizes = "gate_up_proj" in w, (inner, inner, hidden)
    biases = [(w / EACH / name).weight("bias", count * size) if biased else None for name, size in zip(names, sizes)]
    inside = (
        ops.matmul(picked, _inner_matrices(w, name, half, count, inner, hidden, fused), biases[half], starts)
        for half, name in enumerate(names[:2])
    )
    down = w.weight("down_proj", count, hidden, inner) if fused else _each(w, names[2], count, hidden, inner)
    y = ops.matmul(gate(*inside) if gate else ops.gated(*inside, kind=kind), down, biases[2], starts)
    return cast("Tensor", ops.combine(y, places, weights, shared, share))


def _inner_matrices(w: Scope, name: str, half: int, count: int, inner: int, hidden: int, fused: bool) -> Tensor:
    if fused:
        return w.weight("gate_up_proj", count, inner, hidden, part=(half * inner, 2 * inner))
    return _each(w, name, count, inner, hidden)


def _each(w: Scope, name: str, count: int, rows: int, cols: int) -> Tensor:
    return (w / EACH / name).weight("weight", count, rows, cols)
