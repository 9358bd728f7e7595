"""Transport between millions of points, estimated from mini-batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft import progress as bars
from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs, points_of
from weft.transport.debiased import divergence_of
from weft.transport.solver import check_options, solve
from weft.transport.weights import weights_of


@dataclass(frozen=True)
class Estimate:
    """The mean over batches and its standard error. `converged`: whether every batch did.

    A batch sees fewer points than there are, so the mean is above the cost or divergence of all points: by less, the
    larger the batches.
    """

    mean: float
    error: float
    batches: int
    converged: bool
    values: np.ndarray = field(repr=False)

    def __str__(self) -> str:
        text = f"{self.mean:.6g} ± {self.error:.2g} over {self.batches} batches"
        return text if self.converged else f"not converged in every batch: {text}"


def estimate(
    x: Any,
    y: Any,
    a: Any = None,
    b: Any = None,
    *,
    what: str = "cost",
    cost: str = "sqeuclidean",
    batch: int = 1024,
    batches: int = 16,
    seed: int = 0,
    epsilon: float = 0.05,
    tolerance: float = 1e-5,
    max_iterations: int = 500,
    threads: int | None = None,
    progress: bool | None = None,
) -> Estimate:
    """The mean "cost" or "divergence" of random batches of x [n, d] and y [m, d], drawn by their weights.

    Points are read batch by batch: x and y may be memory-mapped arrays larger than memory.
    """
    check_options(epsilon, tolerance, max_iterations)
    if what not in ("cost", "divergence"):
        raise InputError("transport", 'must be "cost" or "divergence"', given=what, field="what")
    if batch < 1 or batches < 1:
        raise InputError("transport", "must be at least 1", given=(batch, batches), field="batch, batches")
    x, y = np.asanyarray(x), np.asanyarray(y)
    for points, name in ((x, "x"), (y, "y")):
        if points.ndim != 2 or not points.size:
            raise ShapeError("transport", "must be points [n, d]", given=points.shape, field=name)
    options: dict[str, Any] = {"epsilon": epsilon, "tolerance": tolerance, "max_iterations": max_iterations}
    left = None if a is None else weights_of(a, len(x), "a")
    right = None if b is None else weights_of(b, len(y), "b")
    rng = np.random.default_rng(seed)
    values, converged = [], True
    for _ in bars.shown([(k, k + 1) for k in range(batches)], batches, progress, "transport", least=8):
        some_x, some_y = _drawn(rng, x, left, batch), _drawn(rng, y, right, batch)
        value, good = _solved(points_of(some_x, "x"), points_of(some_y, "y"), what, cost, threads, options)
        values.append(value)
        converged = converged and good
    found = np.array(values)
    error = float(found.std(ddof=1) / np.sqrt(batches)) if batches > 1 else float("nan")
    return Estimate(float(found.mean()), error, batches, converged, found)


def _solved(
    x: np.ndarray, y: np.ndarray, what: str, cost: str, threads: int | None, options: dict[str, Any]
) -> tuple[float, bool]:
    sides = [(x, y)] if what == "cost" else [(x, y), (x, x), (y, y)]
    costs = [Costs(one, other, cost, threads=threads) for one, other in sides]
    a, b = weights_of(None, len(x), "a"), weights_of(None, len(y), "b")
    if what == "cost":
        result = solve(costs[0], a, b, **options)
        return result.cost, result.converged
    found = divergence_of(costs, a, b, **options)
    return found.value, found.converged


def _drawn(rng: np.random.Generator, points: np.ndarray, weights: np.ndarray | None, batch: int) -> np.ndarray:
    """A batch: without repeats where weights are uniform, else each point drawn by its weight."""
    if weights is None:
        return points[np.sort(rng.choice(len(points), min(batch, len(points)), replace=False))]
    ends = np.cumsum(weights)
    return points[np.sort(np.searchsorted(ends, rng.random(batch) * ends[-1], side="right").clip(0, len(points) - 1))]
