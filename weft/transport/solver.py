"""Sinkhorn's iterations in the log domain: balanced and unbalanced, with ε-scaling and warm starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft import progress as bars
from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs
from weft.transport.plan import Plan
from weft.transport.results import Result
from weft.transport.sweeps import Sweeps, added
from weft.transport.weights import check_totals, logarithms, weights_of

MOST_STAGES = 10_000

# Called after every iteration with its number and the residual; true stops the solver, which then has not converged.
Watcher = Callable[[int, float], Any]


@dataclass(frozen=True)
class Scaling:
    """Epsilons from `start` (None: the largest cost of the first point) down by `factor`, `iterations` each."""

    start: float | None = None
    factor: float = 0.5
    iterations: int = 20

    def __post_init__(self) -> None:
        if self.start is not None and not (math.isfinite(self.start) and self.start > 0):
            raise InputError("transport", "must be above 0", given=self.start, field="scaling.start")
        if not 0 < self.factor < 1:
            raise InputError("transport", "must be between 0 and 1", given=self.factor, field="scaling.factor")
        if self.iterations < 1:
            raise InputError("transport", "must be at least 1", given=self.iterations, field="scaling.iterations")

    def stages(self, costs: Costs, epsilon: float) -> list[float]:
        """The epsilons before the last one, largest first."""
        start = float(costs.rows(0, 1).max()) if self.start is None else self.start
        count = math.ceil(math.log(epsilon / start) / math.log(self.factor)) if start > epsilon else 0
        if count > MOST_STAGES:
            what = f"needs {count} stages from {start:g} to {epsilon:g}; at most {MOST_STAGES}"
            raise InputError("transport", what, field="scaling.factor", given=self.factor)
        return [start * self.factor**stage for stage in range(count)]


def sinkhorn(
    x: Any = None,
    y: Any = None,
    a: Any = None,
    b: Any = None,
    *,
    cost: Any = "sqeuclidean",
    epsilon: float = 0.05,
    tolerance: float = 1e-5,
    max_iterations: int = 500,
    tau: float | tuple[float, float] | None = None,
    scaling: Scaling | bool = False,
    start: Result | tuple[Any, Any] | None = None,
    memory: int | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    watch: Watcher | None = None,
) -> Result:
    """Entropic transport from points x [n, d] with weights a to points y [m, d] with weights b.

    cost            "sqeuclidean", "cosine" (1 - cosine), or a matrix [n, m] in place of points
    tolerance       balanced: of sum_j |mass that arrives at j - b_j|; unbalanced: of the change of a potential
    tau             unbalanced: the price of KL between a marginal and its weights; a number or (source, target)
    scaling         solve for larger epsilons first: faster where epsilon is small
    start           potentials (f, g), or the Result of a similar problem, to begin with
    memory          bytes of costs and kernels that may be kept between iterations (unset: 128 MiB); 0 computes all
                    from the points in every pass
    watch           called with (iteration, residual) after every iteration; true stops

    The result says whether it converged. Its memory is linear in n + m beside `memory`.
    """
    costs = Costs(x, y, cost, memory=memory, threads=threads)
    return solve(
        costs,
        weights_of(a, costs.shape[0], "a"),
        weights_of(b, costs.shape[1], "b"),
        epsilon=epsilon,
        tolerance=tolerance,
        max_iterations=max_iterations,
        tau=tau,
        scaling=scaling,
        start=start,
        progress=progress,
        watch=watch,
    )


def solve(
    costs: Costs,
    a: np.ndarray,
    b: np.ndarray,
    *,
    epsilon: float = 0.05,
    tolerance: float = 1e-5,
    max_iterations: int = 500,
    tau: float | tuple[float, float] | None = None,
    scaling: Scaling | bool = False,
    start: Result | tuple[Any, Any] | None = None,
    progress: bool | None = None,
    watch: Watcher | None = None,
    symmetric: bool = False,
) -> Result:
    """`sinkhorn` of costs that exist already. `symmetric`: both sides are the same points with the same weights."""
    check_options(epsilon, tolerance, max_iterations)
    taus = _taus(tau)
    if tau is None:
        check_totals(a, b)
    state = _State(costs, a, b, taus, symmetric)
    state.begin(start, epsilon)
    if scaling:
        rule = Scaling() if scaling is True else scaling
        for stage in rule.stages(costs, epsilon):
            state.run(stage, 0.0, rule.iterations, progress, watch)
    state.run(epsilon, tolerance, max_iterations, progress, watch)
    return state.result(epsilon, tolerance)


def check_options(epsilon: float, tolerance: float, max_iterations: int) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError("transport", "must be above 0", given=epsilon, field="epsilon")
    if not tolerance >= 0:
        raise InputError("transport", "must not be negative", given=tolerance, field="tolerance")
    if max_iterations < 1:
        raise InputError("transport", "must be at least 1", given=max_iterations, field="max_iterations")


def _taus(tau: float | tuple[float, float] | None) -> tuple[float, float]:
    both = (math.inf, math.inf) if tau is None else (tau, tau) if not isinstance(tau, tuple) else tau
    if len(both) != 2 or not all(value > 0 for value in both):
        raise InputError("transport", "must be above 0, or a pair of such numbers", given=tau, field="tau")
    return both


class _State:
    """Potentials that are iterated upon."""

    def __init__(self, costs: Costs, a: np.ndarray, b: np.ndarray, taus: tuple[float, float], symmetric: bool) -> None:
        self.costs, self.a, self.b, self.taus, self.symmetric = costs, a, b, taus, symmetric
        self.sweeps = Sweeps(costs)
        self.arriving: np.ndarray | None = None  # log sums of columns for the present f
        self.log_a, self.log_b = logarithms(a), logarithms(b)
        self.f = np.zeros(len(a))
        self.g = np.zeros(len(b))
        self.iterations = 0
        self.residual = math.inf
        self.converged = False

    @property
    def balanced(self) -> bool:
        return self.taus == (math.inf, math.inf)

    def begin(self, start: Result | tuple[Any, Any] | None, epsilon: float) -> None:
        if start is None:  # the scalings start from 1, as in the literature: exp(f / epsilon) = 1 / a
            if self.balanced and not self.symmetric:
                self.f = np.where(self.a > 0, -epsilon * self.log_a, 0.0)
            return
        f, g = (start.f, start.g) if isinstance(start, Result) else start
        f, g = np.array(f, np.float64), np.array(g, np.float64)
        if f.shape != self.f.shape or g.shape != self.g.shape:
            wanted = f"potentials must have shapes {self.f.shape} and {self.g.shape}"
            raise ShapeError("transport", wanted, given=(f.shape, g.shape), field="start")
        if not (np.isfinite(f).all() and np.isfinite(g).all()):
            raise InputError("transport", "must be finite potentials", field="start")
        self.f, self.g = f, g

    def run(
        self, epsilon: float, tolerance: float, iterations: int, progress: bool | None, watch: Watcher | None
    ) -> None:
        """Iterate at one epsilon until the residual is at most `tolerance`."""
        self.converged = False
        self.arriving = None
        step = self._average if self.symmetric else self._alternate if self.balanced else self._relax
        for _ in _counted(iterations, self.costs.heavy, progress):
            self.residual = step(epsilon, tolerance)
            if self.symmetric and self.residual <= tolerance:  # it is that of the potentials as they were
                self.converged = True
                return
            self.iterations += 1
            self.converged = self.residual <= tolerance
            if self.converged or (watch is not None and watch(self.iterations, self.residual)):
                break
        if self.symmetric and not self.converged and tolerance > 0:
            self.residual = self._arrived(epsilon)
            self.converged = self.residual <= tolerance

    def _alternate(self, epsilon: float, tolerance: float) -> float:
        """One iteration over columns, then rows, which tells what the columns sum to now."""
        scale = 1 / epsilon
        if self.arriving is None:
            self.arriving = self.sweeps.columns(added(self.log_a, self.f * scale), self.g, scale)
        self.g = -epsilon * self.arriving
        rows, self.arriving = self.sweeps.both(self.log_b, self.g, scale, self.log_a)
        self.f = -epsilon * rows
        return _violation(self.b, self.g * scale + self.arriving)

    def _arrived(self, epsilon: float) -> float:
        scale = 1 / epsilon
        sums = self.costs.log_sums(added(self.log_a, self.f * scale), scale, turned=True)
        return _violation(self.b, self.g * scale + sums)

    def _average(self, epsilon: float, tolerance: float) -> float:
        """The mean of a potential and of what a pass makes of it: few iterations where both sides are the same."""
        scale = 1 / epsilon
        new = -epsilon * self.sweeps.rows(self.log_a, self.f, scale)
        residual = _violation(self.a, (self.f - new) * scale)
        if residual <= tolerance:
            self.g = self.f
            return residual
        self.f = self.g = (self.f + new) / 2
        return residual

    def _relax(self, epsilon: float, tolerance: float) -> float:
        scale = 1 / epsilon
        part_a, part_b = (1.0 if math.isinf(tau) else tau / (tau + epsilon) for tau in self.taus)
        rows, columns = self.sweeps.both(self.log_b, self.g, scale, self.log_a, part_a)
        f, g = -epsilon * part_a * rows, -epsilon * part_b * columns
        changed = max(float(np.abs(f - self.f)[self.a > 0].max()), float(np.abs(g - self.g)[self.b > 0].max()))
        self.f, self.g = f, g
        return changed

    def result(self, epsilon: float, tolerance: float) -> Result:
        scale = 1 / epsilon
        u, v = added(self.log_a, self.f * scale), added(self.log_b, self.g * scale)
        plan = Plan(self.costs, u, v, epsilon)
        leaves, spent = self.costs.plan_sums(u, v, scale)
        mass, product = float(leaves.sum()), float(self.a.sum()) * float(self.b.sum())
        if self.balanced:  # the dual: its error is of second order in the residual
            total = float(self.a @ self.f) + float(self.b @ self.g) - epsilon * (mass - product)
        else:
            arrives = self.costs.plan_sums(v, u, scale, turned=True)[0]
            total = float(leaves @ self.f) + float(arrives @ self.g) - epsilon * (mass - product)
            total += _penalty(self.taus[0], leaves, self.a) + _penalty(self.taus[1], arrives, self.b)
        return Result(
            cost=float(spent.sum()),
            regularised=total,
            epsilon=epsilon,
            iterations=self.iterations,
            converged=self.converged,
            residual=self.residual,
            tolerance=tolerance,
            f=self.f,
            g=self.g,
            a=self.a,
            b=self.b,
            plan=plan,
            tau=self.taus,
        )


def _violation(weights: np.ndarray, logs: np.ndarray) -> float:
    """sum |mass - weight|, where mass is weight * exp(logs)."""
    return float(np.abs(weights * np.expm1(np.minimum(logs, 700.0))).sum())


def _penalty(tau: float, mass: np.ndarray, weights: np.ndarray) -> float:
    """tau KL(mass | weights); of a balanced side nothing."""
    if math.isinf(tau):
        return 0.0
    some = mass > 0
    return tau * float((mass[some] * np.log(mass[some] / weights[some])).sum() - mass.sum() + weights.sum())


def _counted(iterations: int, heavy: bool, progress: bool | None) -> Iterator[int]:
    """0, 1, ... with a bar where it is wanted, or where the work is heavy and there is a terminal."""
    if progress is None and not heavy:
        yield from range(iterations)
        return
    batches = [(number, number + 1) for number in range(iterations)]
    for first, _ in bars.shown(batches, iterations, progress, "transport", least=1):
        yield first
