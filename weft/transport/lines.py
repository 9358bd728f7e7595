"""Exact distances on a line, and distances in space from many lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.transport.costs import points_of, products
from weft.transport.weights import check_totals, weights_of

LINES_TOGETHER = 16  # projections that are held at a time


def on_a_line(x: Any, y: Any, a: Any = None, b: Any = None, *, p: float = 1.0) -> float:
    """The exact cost of transport between numbers x [n] and y [m]: the mean of |difference|^p."""
    first, second = _numbers(x, "x"), _numbers(y, "y")
    _check_power(p)
    left, right = weights_of(a, len(first), "a"), weights_of(b, len(second), "b")
    check_totals(left, right)
    return _quantiles(first, second, left, right, p)


@dataclass(frozen=True)
class Sliced:
    """`distance`: the p-th root of the mean of `costs`, one per line; `error`: its standard error."""

    distance: float
    error: float
    costs: np.ndarray = field(repr=False)


def sliced(
    x: Any,
    y: Any,
    a: Any = None,
    b: Any = None,
    *,
    lines: int | Any = 64,
    p: float = 2.0,
    seed: int = 0,
    threads: int | None = None,
) -> Sliced:
    """The sliced distance of points x [n, d] and y [m, d], over random `lines` or given directions [lines, d]."""
    first, second = points_of(x, "x"), points_of(y, "y")
    if first.shape[1] != second.shape[1]:
        raise ShapeError("transport", f"points of {first.shape[1]} and {second.shape[1]} dimensions have no distance")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("transport", "points must be finite")
    _check_power(p)
    left, right = weights_of(a, len(first), "a"), weights_of(b, len(second), "b")
    check_totals(left, right)
    directions = _directions(lines, first.shape[1], seed)
    if first.dtype != second.dtype:
        first, second = first.astype(np.float64), second.astype(np.float64)
    costs = []
    for at in range(0, len(directions), LINES_TOGETHER):
        some = np.ascontiguousarray(directions[at : at + LINES_TOGETHER].astype(first.dtype))
        ours, theirs = products(some, first, threads), products(some, second, threads)
        costs += [_quantiles(u, v, left, right, p) for u, v in zip(ours, theirs, strict=True)]
    all_costs = np.array(costs)
    mean = float(all_costs.mean())
    distance = mean ** (1 / p)
    spread = float(all_costs.std(ddof=1)) / np.sqrt(len(all_costs)) if len(all_costs) > 1 else float("nan")
    return Sliced(distance, float(spread * distance / (p * mean)) if mean > 0 else 0.0, all_costs)


def _directions(lines: int | Any, dim: int, seed: int) -> np.ndarray:
    if isinstance(lines, (int, np.integer)):
        if lines < 1:
            raise InputError("transport", "must be at least 1", given=lines, field="lines")
        drawn = np.random.default_rng(seed).standard_normal((int(lines), dim))
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    directions = np.asarray(lines, np.float64)
    if directions.ndim != 2 or directions.shape[1] != dim or not len(directions):
        raise ShapeError("transport", f"must be directions [lines, {dim}]", given=directions.shape, field="lines")
    return directions


def _quantiles(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray, p: float) -> float:
    """The integral of |difference of the quantile functions|^p over the mass."""
    by_x, by_y = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x, y = x[by_x], y[by_y]
    if len(x) == len(y) and (a == a[0]).all() and (b == a[0]).all():
        return float((np.abs(x - y) ** p).sum() * a[0])
    ends_x, ends_y = np.cumsum(a[by_x]), np.cumsum(b[by_y])
    ends = np.sort(np.concatenate([ends_x, ends_y]))
    at_x = np.minimum(np.searchsorted(ends_x, ends), len(x) - 1)
    at_y = np.minimum(np.searchsorted(ends_y, ends), len(y) - 1)
    mass = np.diff(ends, prepend=0.0)
    return float((mass * np.abs(x[at_x] - y[at_y]) ** p).sum())


def _numbers(given: Any, name: str) -> np.ndarray:
    numbers = np.asarray(given, np.float64)
    if numbers.ndim != 1 or not numbers.size:
        raise ShapeError("transport", "must be numbers [n], at least one", given=numbers.shape, field=name)
    if not np.isfinite(numbers).all():
        raise InputError("transport", "must be finite", field=name)
    return numbers


def _check_power(p: float) -> None:
    if not (np.isfinite(p) and p >= 1):
        raise InputError("transport", "must be at least 1", given=p, field="p")
