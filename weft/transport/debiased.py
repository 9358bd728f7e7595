"""The debiased divergence OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2: zero where both sides are the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.transport.costs import Costs
from weft.transport.results import Gradients, Result
from weft.transport.solver import Scaling, Watcher, solve
from weft.transport.weights import weights_of


@dataclass(frozen=True)
class Divergence:
    """`value` of the regularised costs, `linear` of the plans' costs; the three problems behind them."""

    value: float
    linear: float
    converged: bool
    between: Result = field(repr=False)
    first: Result = field(repr=False)
    second: Result = field(repr=False)

    @property
    def residual(self) -> float:
        return max(part.residual for part in (self.between, self.first, self.second))

    @property
    def iterations(self) -> int:
        return self.between.iterations + self.first.iterations + self.second.iterations

    def __str__(self) -> str:
        text = f"divergence {self.value:.6g}, residual {self.residual:.2g}"
        return text if self.converged else f"not converged: {text}; raise max_iterations or epsilon"

    def gradients(self) -> Gradients:
        """Of `value`, with respect to the points and the weights."""
        both, own, other = self.between.gradients(), self.first.gradients(), self.second.gradients()
        # Both sides of a problem with itself move: half of two equal gradients.
        x = None if both.x is None or own.x is None else both.x - own.x
        y = None if both.y is None or other.y is None else both.y - other.y
        return Gradients(x, y, both.a - own.a, both.b - other.a)


def divergence(
    x: Any = None,
    y: Any = None,
    a: Any = None,
    b: Any = None,
    *,
    cost: Any = "sqeuclidean",
    epsilon: float = 0.05,
    tolerance: float = 1e-5,
    max_iterations: int = 500,
    scaling: Scaling | bool = False,
    memory: int | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    watch: Watcher | None = None,
) -> Divergence:
    """The divergence of points x [n, d] with weights a and points y [m, d] with weights b.

    `cost` may be three matrices (between, within x, within y) in place of points. The rest is as in `sinkhorn`.
    """
    if isinstance(cost, str):
        sides: list[dict[str, Any]] = [{"x": x, "y": y}, {"x": x, "y": x}, {"x": y, "y": y}]
        costs = [Costs(**side, cost=cost, memory=memory, threads=threads) for side in sides]
    else:
        between, within_x, within_y = cost
        costs = [Costs(x, y, matrix, threads=threads) for matrix in (between, within_x, within_y)]
    n, m = costs[0].shape
    return divergence_of(
        costs,
        weights_of(a, n, "a"),
        weights_of(b, m, "b"),
        epsilon=epsilon,
        tolerance=tolerance,
        max_iterations=max_iterations,
        scaling=scaling,
        progress=progress,
        watch=watch,
    )


def divergence_of(costs: list[Costs], a: np.ndarray, b: np.ndarray, **options: Any) -> Divergence:
    """`divergence` of three costs that exist already: between, within the first, within the second."""
    between = solve(costs[0], a, b, **options)
    first = solve(costs[1], a, a, symmetric=True, **options)
    second = solve(costs[2], b, b, symmetric=True, **options)
    parts = (between, first, second)
    return Divergence(
        value=between.regularised - (first.regularised + second.regularised) / 2,
        linear=between.cost - (first.cost + second.cost) / 2,
        converged=all(part.converged for part in parts),
        between=between,
        first=first,
        second=second,
    )
