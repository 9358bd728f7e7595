"""What a solver found, and its gradients."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from weft.transport.plan import Plan


class Gradients(NamedTuple):
    """Of the regularised cost, with respect to points and weights; those of balanced weights up to a constant."""

    x: np.ndarray | None
    y: np.ndarray | None
    a: np.ndarray
    b: np.ndarray


@dataclass(frozen=True)
class Result:
    """What a solver found.

    cost          of the plan, sum P_ij C_ij
    regularised   cost + epsilon KL(P | a b), and for unbalanced transport tau times the KL of both marginals
    residual      balanced: sum_j |mass that arrives at j - b_j|; unbalanced: the last change of a potential
    converged     whether residual is at most tolerance
    f, g          potentials in units of cost: P_ij = a_i b_j exp((f_i + g_j - C_ij) / epsilon)
    """

    cost: float
    regularised: float
    epsilon: float
    iterations: int
    converged: bool
    residual: float
    tolerance: float
    f: np.ndarray = field(repr=False)
    g: np.ndarray = field(repr=False)
    a: np.ndarray = field(repr=False)
    b: np.ndarray = field(repr=False)
    plan: Plan = field(repr=False)
    tau: tuple[float, float] = (np.inf, np.inf)

    @property
    def distance(self) -> float:
        """The square root of the cost of a squared distance, else the cost."""
        return float(np.sqrt(max(0.0, self.cost))) if self.plan.costs.metric == "sqeuclidean" else self.cost

    def __str__(self) -> str:
        tail = f"{self.iterations} iterations at epsilon {self.epsilon:g}, residual {self.residual:.2g}"
        if self.converged:
            return f"cost {self.cost:.6g} after {tail}"
        wanted = f"wanted {self.tolerance:g}; raise max_iterations or epsilon"
        return f"not converged: cost {self.cost:.6g} after {tail}, {wanted}"

    def gradients(self) -> Gradients:
        """Gradients of `regularised` by the envelope theorem: the plan is optimal, so only C and the weights count."""
        costs = self.plan.costs
        x = y = None
        if costs.x is not None and costs.y is not None:
            x = _of_points(self.plan, costs.x, costs.y, False)
            y = _of_points(self.plan, costs.y, costs.x, True)
        total_a, total_b = float(self.a.sum()), float(self.b.sum())
        return Gradients(
            x,
            y,
            _of_weights(self.f, self.epsilon, self.tau[0], total_b),
            _of_weights(self.g, self.epsilon, self.tau[1], total_a),
        )


def _of_points(plan: Plan, ours: np.ndarray, theirs: np.ndarray, turned: bool) -> np.ndarray:
    """sum_j P_ij dC_ij / dx_i."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    if plan.costs.metric == "sqeuclidean":
        mass = plan.apply(np.ones(len(theirs)), turned=turned)
        return 2 * (mass[:, None] * ours - plan.apply(theirs, turned=turned))
    norms = np.linalg.norm(ours, axis=1, keepdims=True)
    unit = ours / norms
    pull = plan.apply(theirs / np.linalg.norm(theirs, axis=1, keepdims=True), turned=turned)
    return -(pull - (pull * unit).sum(1, keepdims=True) * unit) / norms


def _of_weights(potential: np.ndarray, epsilon: float, tau: float, other: float) -> np.ndarray:
    if not np.isfinite(tau):
        return potential + epsilon * (other - 1)
    kept = np.exp(-potential / tau)  # mass that leaves a point, as a part of its weight
    return epsilon * (other - kept) + tau * (1 - kept)
