"""Random problems, each a function of its number: the script that asks POT and the tests draw the same ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

COUNT = 200
LARGEST = 0.6  # of costs: exp(-0.6 / 1e-3) is a number, so that POT's plain solvers do not underflow


class Problem(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    a: np.ndarray
    b: np.ndarray
    epsilon: float
    tau: float
    most: int  # iterations

    @property
    def costs(self) -> np.ndarray:
        return squared(self.x, self.y)


def squared(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.maximum(0, (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T)


def size(rng: Any, number: int) -> int:
    kind = number % 20
    low, high = (500, 2001) if kind == 19 else (100, 300) if kind == 18 else (30, 100) if kind > 12 else (1, 30)
    return int(rng.integers(low, high))


def weights(rng: Any, n: int, kind: int) -> np.ndarray:
    """Uniform, random, with tiny ones, or with zeros."""
    drawn = rng.random(n) + 0.01
    if kind == 0:
        drawn[:] = 1
    if kind == 2:
        drawn[: n // 3] *= 1e-9
    if kind == 3 and n > 1:
        drawn[: n // 2] = 0
    return drawn / drawn.sum()


def problem(number: int, solver: str = "sinkhorn") -> Problem:
    rng = np.random.default_rng([number, sum(map(ord, solver))])
    n, m, d = size(rng, number), size(rng, number), int(rng.integers(1, 6))
    x, y = rng.random((n, d)), rng.random((m, d)) + 0.2 * rng.random(d)
    scale = np.sqrt(LARGEST / squared(np.concatenate([x, y]), np.concatenate([x, y])).max()) if n + m > 2 else 1.0
    epsilon = float(10 ** rng.uniform(-3, 0))
    kind = int(rng.integers(0, 3)) if epsilon < 0.03 else int(rng.integers(0, 4))
    large = max(n, m) > 300
    if large:
        epsilon = max(epsilon, 0.2)
    a, b = weights(rng, n, kind), weights(rng, m, (kind + 1) % 3 if kind < 3 else 3)
    return Problem(x * scale, y * scale, a, b, epsilon, float(10 ** rng.uniform(-1, 1)), 100 if large else 2000)


def histograms(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Costs [n, n], histograms [k, n], shares [k] and epsilon."""
    rng = np.random.default_rng([number, 77])
    n, k = max(2, min(120, size(rng, number))), int(rng.integers(1, 5))
    points = rng.random((n, 2)) * np.sqrt(LARGEST / 2)
    rows = np.stack([weights(rng, n, int(rng.integers(0, 3))) for _ in range(k)])
    shares = rng.random(k) + 0.1
    return squared(points, points), rows, shares / shares.sum(), float(10 ** rng.uniform(-2, 0))


def clouds(number: int) -> tuple[list[np.ndarray], np.ndarray, np.ndarray, float]:
    """Sets of points, the start of a free support, shares and epsilon."""
    rng = np.random.default_rng([number, 78])
    k, d = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    sets = [rng.random((int(rng.integers(1, 40)), d)) + rng.random(d) for _ in range(k)]
    shares = rng.random(k) + 0.1
    start = rng.random((int(rng.integers(1, 12)), d))
    return sets, start, shares / shares.sum(), float(10 ** rng.uniform(-1.3, 0))


def probes(number: int, length: int) -> np.ndarray:
    """Three directions in which a long result is measured, so that three numbers stand for it."""
    return np.random.default_rng([number, 79]).standard_normal((3, length))
