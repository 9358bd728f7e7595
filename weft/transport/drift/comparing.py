"""Two sets of vectors, compared: how far apart they are, which items moved, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs, points_of
from weft.transport.drift.nulls import RELATIVE_EPSILON, Verdict, permuted
from weft.transport.results import Result
from weft.transport.solver import solve
from weft.transport.weights import weights_of

OUTLIER_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Item:
    """One row of the first set: how far it moved, and for sets that are not paired where most of it went."""

    id: str
    distance: float
    target: str
    outlier: bool


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `distance` is that of the plan; displacements are per item of the first set."""

    rows: tuple[int, int]
    sampled: tuple[int, int]
    dimension: int
    metric: str
    paired: bool
    epsilon: float
    level: float
    permutations: int
    distance: float
    cost: float
    regularised: float
    converged: bool
    verdict: Verdict
    items: list[Item] = field(repr=False)
    points: np.ndarray = field(repr=False)  # [rows of both samples, 2], for a map
    explained: tuple[float, float] = (0.0, 0.0)

    @property
    def drifted(self) -> bool:
        return self.verdict.drifted(self.level)

    @property
    def summary(self) -> dict[str, float]:
        """Of the displacements."""
        moved = np.array([item.distance for item in self.items])
        return {
            "mean": float(moved.mean()),
            "median": float(np.median(moved)),
            "max": float(moved.max()),
            "deviation": float(moved.std()),
            "outliers": float(sum(item.outlier for item in self.items)),
        }

    def worst(self, count: int = 10) -> list[Item]:
        return sorted(self.items, key=lambda item: -item.distance)[:count]

    def as_dict(self, worst: int = 10) -> dict[str, Any]:
        """For JSON."""
        return {
            "drifted": self.drifted,
            "p": self.verdict.p,
            "effect": self.verdict.effect,
            "level": self.level,
            "permutations": self.permutations,
            "divergence": self.verdict.divergence,
            "distance": self.distance,
            "cost": self.cost,
            "regularised": self.regularised,
            "converged": self.converged,
            "displacement": self.summary,
            "worst": [vars(item) for item in self.worst(worst)],
            "rows": list(self.rows),
            "sampled": list(self.sampled),
            "dimension": self.dimension,
            "metric": self.metric,
            "paired": self.paired,
            "epsilon": self.epsilon,
        }


def compare(
    a: Any,
    b: Any,
    *,
    paired: bool = False,
    ids: tuple[Sequence[str], Sequence[str]] | None = None,
    metric: str = "sqeuclidean",
    level: float = 0.01,
    permutations: int = 199,
    sample: int = 200,
    most: int = 2000,
    epsilon: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Compare vectors a [n, d] with b [m, d].

    paired          row i of both is the same item, embedded twice
    level           the p-value from which on the verdict is drift: how often chance alone may give it
    permutations    relabellings that the verdict compares with
    sample          rows of each set that are relabelled, drawn at random
    most            rows of each set that are transported; those beyond it are left out at random
    epsilon         of the transport (None: a twentieth of the mean cost)
    """
    first, second = points_of(a, "a"), points_of(b, "b")
    _check(first, second, paired, level, permutations, sample, most)
    rng = np.random.default_rng(seed)
    left = _chosen(rng, len(first), most)
    right = left if paired else _chosen(rng, len(second), most)
    x, y = first[left], second[right]
    names = _names(ids, left, right, len(first), len(second))
    costs = Costs(x, y, metric, threads=threads)
    chosen = epsilon or max(RELATIVE_EPSILON * float(costs.rows(0, min(64, len(x))).mean()), 1e-12)
    a_weights, b_weights = weights_of(None, len(x), "a"), weights_of(None, len(y), "b")
    result = solve(costs, a_weights, b_weights, epsilon=chosen, tolerance=1e-4)
    some = _chosen(rng, len(x), sample)
    others = some if paired else _chosen(rng, len(y), sample)
    options: dict[str, Any] = {"permutations": permutations, "seed": seed, "threads": threads, "progress": progress}
    verdict = permuted(x[some], y[others], metric=metric, paired=paired, **options)
    items = _paired_items(x, y, metric, names) if paired else _moved_items(result, metric, names)
    points, explained = principal(np.concatenate([x, y]))
    return Comparison(
        rows=(len(first), len(second)),
        sampled=(len(x), len(y)),
        dimension=int(x.shape[1]),
        metric=metric,
        paired=paired,
        epsilon=chosen,
        level=level,
        permutations=permutations,
        distance=result.distance,
        cost=result.cost,
        regularised=result.regularised,
        converged=result.converged,
        verdict=verdict,
        items=items,
        points=points,
        explained=explained,
    )


def principal(vectors: np.ndarray) -> tuple[np.ndarray, tuple[float, float]]:
    """The first two principal coordinates [n, 2] of vectors [n, d], and the parts of the variance they explain."""
    centred = vectors.astype(np.float64) - vectors.mean(0, dtype=np.float64)
    wide = centred.shape[1] > centred.shape[0]
    values, axes = np.linalg.eigh(centred @ centred.T if wide else centred.T @ centred)
    top = axes[:, ::-1][:, :2]
    sizes = np.maximum(values[::-1], 0)
    points = top * np.sqrt(sizes[:2]) if wide else centred @ top
    if points.shape[1] < 2:
        points = np.pad(points, ((0, 0), (0, 2 - points.shape[1])))
    total = float(sizes.sum()) or 1.0
    parts = [float(size) / total for size in sizes[:2]] + [0.0, 0.0]
    return points, (parts[0], parts[1])


def _check(a: np.ndarray, b: np.ndarray, paired: bool, level: float, permutations: int, sample: int, most: int) -> None:
    if a.shape[1] != b.shape[1]:
        what = f"vectors of {a.shape[1]} and {b.shape[1]} dimensions lie in different spaces"
        raise ShapeError("drift", what, advice="map one onto the other first: weft drift align")
    if paired and len(a) != len(b):
        raise ShapeError("drift", f"paired sets must have as many rows: {len(a)} and {len(b)}")
    if min(len(a), len(b)) < 2:
        raise InputError("drift", "needs at least two vectors on both sides", given=(len(a), len(b)))
    if not 0 < level < 1:
        raise InputError("drift", "must be between 0 and 1", given=level, field="level")
    if 1 / (1 + permutations) > level:
        advice = f"use at least {int(np.ceil(1 / level)) - 1}"
        what = f"cannot give a p-value of {level:g}"
        raise InputError("drift", what, given=permutations, field="permutations", advice=advice)
    if sample < 2 or most < 2:
        raise InputError("drift", "must be at least 2", given=min(sample, most), field="sample")


def _chosen(rng: np.random.Generator, count: int, most: int) -> np.ndarray:
    return np.arange(count) if count <= most else np.sort(rng.choice(count, most, replace=False))


def _names(
    ids: tuple[Sequence[str], Sequence[str]] | None, left: np.ndarray, right: np.ndarray, n: int, m: int
) -> tuple[list[str], list[str]]:
    given = ids or ([str(row) for row in range(n)], [str(row) for row in range(m)])
    if (len(given[0]), len(given[1])) != (n, m):
        raise ShapeError("drift", f"must be {n} and {m} names", given=(len(given[0]), len(given[1])), field="ids")
    return [str(given[0][row]) for row in left], [str(given[1][row]) for row in right]


def _items(distances: np.ndarray, names: list[str], targets: list[str]) -> list[Item]:
    limit = float(distances.mean() + OUTLIER_DEVIATIONS * distances.std())
    return [
        Item(name, float(distance), target, bool(distance > limit))
        for name, distance, target in zip(names, distances, targets, strict=True)
    ]


def _paired_items(x: np.ndarray, y: np.ndarray, metric: str, names: tuple[list[str], list[str]]) -> list[Item]:
    """How far each item is from itself."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    if metric == "sqeuclidean":
        distances = np.linalg.norm(x - y, axis=1)
    else:
        distances = 1 - (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return _items(distances, names[0], names[1])


def _moved_items(result: Result, metric: str, names: tuple[list[str], list[str]]) -> list[Item]:
    """The expected distance of each item under the plan, and the target of most of its mass."""
    plan = result.plan
    mass, spent = plan.costs.plan_sums(plan.u, plan.v, 1 / plan.epsilon)
    expected = spent / np.maximum(mass, 1e-300)
    targets = [int(np.argmax(plan.rows(row)[0])) for row in range(len(mass))]
    distances = np.sqrt(np.maximum(expected, 0)) if metric == "sqeuclidean" else expected
    return _items(distances, names[0], [names[1][target] for target in targets])
