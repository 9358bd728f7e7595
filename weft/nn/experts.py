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
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj"),
    bias: Tensor | None = None,
    shared: Tensor | None = None,
    share: Tensor | None = None,
    **route: Any,
) -> Tensor:
    """The weighted sum of the results of each token's `top` experts.  x [T, hidden], scores [T, E] -> [T, hidden]

    An expert is down(kind(gate(x)) * up(x)), `inner` wide; `gate` makes another product of the two. With two `names` it
    has no gate: down(kind(up(x))). `biased`: all matrices have biases. `w` has the experts below their numbers, or all
    of them in gate_up_proj [E, 2 inner, hidden], or up_proj [E, inner, hidden], and down_proj [E, hidden, inner].
    `bias` and `route` are of ops.route, `shared` and `share` of ops.combine.
    """
    count, hidden = cast(int, scores.shape[1]), cast(int, x.shape[1])
    chosen, weights = ops.route(scores, bias, top=top, **route)
    rows, starts, places = ops.group(chosen, experts=count)
    picked = ops.take_rows(x, rows)
    fused, last = "down_proj" in w, len(names) - 1
    biases = [
        (w / EACH / name).weight("bias", count * (hidden if place == last else inner)) if biased else None
        for place, name in enumerate(names)
    ]
    down = w.weight("down_proj", count, hidden, inner) if fused else _each(w, names[last], count, hidden, inner)
    inside = [
        ops.matmul(picked, _inner_matrices(w, names, place, count, inner, hidden, fused), biases[place], starts)
        for place in range(last)
    ]
    if last == 1:
        y = ops.activate(*inside, kind=kind)
    else:
        y = gate(*inside) if gate else ops.gated(*inside, kind=kind)
    return cast("Tensor", ops.combine(ops.matmul(y, down, biases[last], starts), places, weights, shared, share))


def _inner_matrices(
    w: Scope, names: tuple[str, ...], place: int, count: int, inner: int, hidden: int, fused: bool
) -> Tensor:
    if not fused:
        return _each(w, names[place], count, inner, hidden)
    if len(names) == 2:
        return w.weight("up_proj", count, inner, hidden)
    return w.weight("gate_up_proj", count, inner, hidden, part=(place * inner, 2 * inner))


def _each(w: Scope, name: str, count: int, rows: int, cols: int) -> Tensor:
    return (w / EACH / name).weight("weight", count, rows, cols)
