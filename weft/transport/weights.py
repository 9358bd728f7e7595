"""Weights that were checked, and their logarithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError

NO_WEIGHT = -1e300  # the core's logarithm of a weight of zero: differences of it are numbers
SAME_TOTAL = 1e-6  # relative difference of the totals of two weightings that may be transported into each other


def weights_of(given: Any, count: int, name: str) -> np.ndarray:
    """`given` as float64 [count], uniform weights of total 1 if None. Refuses negative weights and a total of zero."""
    if given is None:
        return np.full(count, 1.0 / count)
    weights = np.array(given, np.float64)
    if weights.shape != (count,):
        raise ShapeError("transport", f"must have one weight per point, [{count}]", given=weights.shape, field=name)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            "transport", "must be finite and not negative", given=float(weights[at]), field=f"{name}[{at}]"
        )
    if not weights.sum() > 0:
        raise InputError("transport", "must have a total above zero", given=float(weights.sum()), field=name)
    return weights


def check_totals(a: np.ndarray, b: np.ndarray) -> None:
    """Refuse weightings of different totals: only unbalanced transport takes those."""
    first, second = float(a.sum()), float(b.sum())
    if abs(first - second) > SAME_TOTAL * max(first, second):
        advice = "divide each by its total, or give tau= for unbalanced transport"
        raise InputError("transport", f"weights have totals of {first:g} and {second:g}", advice=advice)


def logarithms(weights: np.ndarray) -> np.ndarray:
    """Logarithms, NO_WEIGHT for weights of zero."""
    with np.errstate(divide="ignore"):
        return np.maximum(np.log(weights), NO_WEIGHT)
