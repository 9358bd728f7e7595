"""Barycentres: weights on a fixed support, or points that move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs, points_of
from weft.transport.solver import check_options, sinkhorn
from weft.transport.weights import check_totals, logarithms, weights_of


@dataclass(frozen=True)
class Barycentre:
    """`weights` on the support, and for a free support its `points`; `residual` is what the last iteration changed.

    For a fixed support it is the largest sum of differences between a marginal and the barycentre; for a free one the
    sum of squared moves of its points.
    """

    weights: np.ndarray = field(repr=False)
    points: np.ndarray | None = field(repr=False)
    iterations: int
    converged: bool
    residual: float

    def __str__(self) -> str:
        text = (
            f"barycentre of {len(self.weights)} points after {self.iterations} iterations, residual {self.residual:.2g}"
        )
        return text if self.converged else f"not converged: {text}; raise max_iterations"


def barycentre(
    histograms: Any,
    *,
    points: Any = None,
    cost: Any = "sqeuclidean",
    shares: Any = None,
    epsilon: float = 0.05,
    tolerance: float = 1e-5,
    max_iterations: int = 1000,
    memory: int | None = None,
    threads: int | None = None,
) -> Barycentre:
    """The barycentre of k histograms [k, n] over the same n points, or over a matrix of costs [n, n].

    Iterated Bregman projections in the log domain. `shares` are the histograms' parts of the barycentre.
    """
    check_options(epsilon, tolerance, max_iterations)
    costs = Costs(points, points, cost, memory=memory, threads=threads)
    tall = np.atleast_2d(np.asarray(histograms, np.float64))
    if costs.shape[0] != costs.shape[1] or tall.shape[1] != costs.shape[0]:
        what = f"must be [k, n] over n points or an [n, n] cost; the cost is {costs.shape}"
        raise ShapeError("transport", what, given=tall.shape, field="histograms")
    rows = [weights_of(row, costs.shape[0], f"histograms[{number}]") for number, row in enumerate(tall)]
    for row in rows[1:]:
        check_totals(rows[0], row)
    parts = weights_of(shares, len(rows), "shares")
    parts = parts / parts.sum()
    logs, scale = [logarithms(row) for row in rows], 1 / epsilon
    u = [np.zeros(costs.shape[1]) for _ in rows]
    mean, residual, iterations = u[0], np.inf, 0
    while residual > tolerance and iterations < max_iterations:
        iterations += 1
        back = []
        for one, log in zip(u, logs, strict=True):
            v = np.maximum(log - costs.log_sums(one, scale), -1e300)
            back.append(costs.log_sums(v, scale, turned=True))
        marginals = [one + other for one, other in zip(u, back, strict=True)]
        mean = np.add.reduce([part * marginal for part, marginal in zip(parts, marginals, strict=True)])
        residual = max(float(np.abs(np.exp(marginal) - np.exp(mean)).sum()) for marginal in marginals)
        u = [mean - other for other in back]
    return Barycentre(np.exp(mean), costs.x, iterations, residual <= tolerance, residual)


def free_barycentre(
    measures: Sequence[Any],
    start: Any,
    *,
    weights: Sequence[Any] | None = None,
    support_weights: Any = None,
    shares: Any = None,
    epsilon: float = 0.05,
    tolerance: float = 1e-4,
    max_iterations: int = 10,
    solver_iterations: int = 1000,
    solver_tolerance: float = 1e-7,
    memory: int | None = None,
    threads: int | None = None,
) -> Barycentre:
    """Points, begun at `start` [k, d], that move to the barycentre of `measures`, each points [n, d].

    For squared distances. Each iteration moves every point to the mean of where its mass goes: a local optimum, which
    depends on `start`.
    """
    check_options(epsilon, tolerance, max_iterations)
    if not len(measures):
        raise InputError("transport", "must have at least one set of points", field="measures")
    support = points_of(start, "start").astype(np.float64)
    own = weights_of(support_weights, len(support), "support_weights")
    if not (own > 0).all():
        raise InputError("transport", "must be above zero", field="support_weights")
    parts = weights_of(shares, len(measures), "shares")
    parts = parts / parts.sum()
    clouds = [points_of(cloud, f"measures[{number}]").astype(np.float64) for number, cloud in enumerate(measures)]
    given = [None] * len(clouds) if weights is None else list(weights)
    if len(given) != len(clouds):
        raise ShapeError("transport", f"must be {len(clouds)} weightings", given=len(given), field="weights")
    moved, solved, iterations = np.inf, True, 0
    while moved > tolerance and iterations < max_iterations:
        iterations += 1
        target, solved = np.zeros_like(support), True
        for part, cloud, weight in zip(parts, clouds, given, strict=True):
            found = sinkhorn(
                support,
                cloud,
                own,
                weight,
                epsilon=epsilon,
                tolerance=solver_tolerance,
                max_iterations=solver_iterations,
                memory=memory,
                threads=threads,
            )
            target += part * found.plan.apply(cloud) / own[:, None]
            solved = solved and found.converged
        moved = float(((target - support) ** 2).sum())
        support = target
    return Barycentre(own, support, iterations, solved and moved <= tolerance, moved)
