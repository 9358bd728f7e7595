"""What chance alone gives: the divergence of samples whose labels were drawn anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from weft import progress as bars
from weft.transport.costs import Costs
from weft.transport.debiased import divergence_of

RELATIVE_EPSILON = 0.05  # of a plan, as a part of the mean cost, so that it fits every dimension and length of vectors
DIVERGENCE_EPSILON = 0.5  # of a divergence: wider, or in many dimensions each vector of a sample is only near itself
SOLVED = {"tolerance": 1e-4, "max_iterations": 200}


@dataclass(frozen=True)
class Verdict:
    """`p`: the part of relabellings that lie at least as far apart, the real labels counted.

    `effect`: how far the divergence is above their mean, in their standard deviations.
    """

    divergence: float
    p: float
    effect: float
    null: np.ndarray = field(repr=False)

    def drifted(self, level: float) -> bool:
        return self.p <= level


def permuted(
    a: np.ndarray,
    b: np.ndarray,
    *,
    metric: str,
    paired: bool,
    permutations: int,
    seed: int,
    epsilon: float | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Verdict:
    """The divergence of a [n, d] and b [m, d], and those of `permutations` relabellings.

    `paired`: row i of both is the same item, so that only the labels within a pair may change places.
    """
    together = np.concatenate([a, b])
    costs = Costs(together, together, metric, threads=threads).rows()
    scale = float(costs.mean())
    chosen = epsilon or max(scale * DIVERGENCE_EPSILON, 1e-12)
    n, rng = len(a), np.random.default_rng(seed)

    def apart(order: np.ndarray) -> float:
        first, second = order[:n], order[n:]
        parts = [(first, second), (first, first), (second, second)]
        matrices = [Costs(cost=costs[np.ix_(one, other)], threads=threads) for one, other in parts]
        left, right = np.full(n, 1 / n), np.full(len(b), 1 / len(b))
        return divergence_of(matrices, left, right, epsilon=chosen, **SOLVED).value

    observed = apart(np.arange(len(together)))
    null = np.empty(permutations)
    numbers = [(number, number + 1) for number in range(permutations)]
    for number, _ in bars.shown(numbers, permutations, progress, "relabelling", least=50):
        null[number] = apart(_relabelled(rng, n, len(b), paired))
    return Verdict(observed, _p_value(observed, null, scale), _effect(observed, null), null)


def _relabelled(rng: np.random.Generator, n: int, m: int, paired: bool) -> np.ndarray:
    if not paired:
        return rng.permutation(n + m)
    swapped = rng.random(n) < 0.5
    first = np.where(swapped, np.arange(n) + n, np.arange(n))
    return np.concatenate([first, (first + n) % (2 * n)])


def _p_value(observed: float, null: np.ndarray, scale: float) -> float:
    """Divergences that differ by rounding count as equal."""
    return float((1 + (null >= observed - 1e-9 * scale).sum()) / (1 + len(null)))


def _effect(observed: float, null: np.ndarray) -> float:
    spread = float(null.std(ddof=1)) if len(null) > 1 else 0.0
    return (observed - float(null.mean())) / spread if spread > 0 else 0.0
