"""Metrics: numbers that say how good predictions are. Arrays in, floats or arrays out; nothing is differentiated.

Classes are integers; a prediction may also be scores [rows, classes], of which the largest counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.autograd.variable import Variable
from weft.errors import InputError, ShapeError

AVERAGES = ("macro", "micro", "weighted", "none")


def _values(given: Any) -> np.ndarray:
    return given.value if isinstance(given, Variable) else np.asarray(given)


def _classes(where: str, prediction: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    found, wanted = _values(prediction), _values(target)
    if found.ndim == wanted.ndim + 1:
        found = found.argmax(axis=-1)
    if found.shape != wanted.shape or wanted.dtype.kind not in "iub":
        what = f"must be integers of the prediction's shape {found.shape}, without an axis of scores"
        raise ShapeError(where, what, field="target", given=f"{wanted.dtype} {wanted.shape}")
    if not wanted.size:
        raise InputError(where, "must have at least one row", field="target", given=wanted.shape)
    if found.dtype.kind == "f":
        found = np.rint(found)
    found, wanted = found.reshape(-1).astype(np.int64), wanted.reshape(-1).astype(np.int64)
    if min(found.min(), wanted.min()) < 0:
        raise InputError(where, "classes count from 0", given=int(min(found.min(), wanted.min())))
    return found, wanted


def accuracy(prediction: Any, target: Any) -> float:
    """The share of rows whose class is the target."""
    found, wanted = _classes("accuracy", prediction, target)
    return float(np.mean(found == wanted))


def confusion_matrix(prediction: Any, target: Any, classes: int | None = None) -> np.ndarray:
    """How many rows of each class (down) were predicted as each class (across)."""
    found, wanted = _classes("confusion_matrix", prediction, target)
    least = int(max(found.max(), wanted.max())) + 1
    count = least if classes is None else classes
    if count < least:
        raise InputError("confusion_matrix", f"must be at least {least}", field="classes", given=classes)
    return np.bincount(wanted * count + found, minlength=count * count).reshape(count, count)


def precision(prediction: Any, target: Any, average: str = "macro") -> Any:
    """The share of rows predicted as a class that are of it; of a class that is never predicted, 0."""
    return _averaged("precision", prediction, target, average, lambda hit, found, wanted: _over(hit, found))


def recall(prediction: Any, target: Any, average: str = "macro") -> Any:
    """The share of a class's rows that are predicted as it; of a class without rows, 0."""
    return _averaged("recall", prediction, target, average, lambda hit, found, wanted: _over(hit, wanted))


def f1(prediction: Any, target: Any, average: str = "macro") -> Any:
    """The harmonic mean of precision and recall."""
    return _averaged("f1", prediction, target, average, lambda hit, found, wanted: _over(2.0 * hit, found + wanted))


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.divide(part, whole, out=np.zeros(np.shape(part)), where=np.asarray(whole) > 0)


def _averaged(where: str, prediction: Any, target: Any, average: str, rule: Any) -> Any:
    """`rule` of hits, predicted rows and rows of each class.

    "macro" is the mean of all classes that occur, "weighted" weights it by their rows, "micro" counts all classes
    together, "none" gives one number per class.
    """
    if average not in AVERAGES:
        raise InputError(where, f"must be one of {', '.join(AVERAGES)}", field="average", given=average)
    table = confusion_matrix(prediction, target).astype(np.float64)
    hit, found, wanted = np.diagonal(table), table.sum(axis=0), table.sum(axis=1)
    if average == "micro":
        return float(rule(hit.sum(), found.sum(), wanted.sum()))
    each = rule(hit, found, wanted)
    if average == "none":
        return each
    weights = wanted if average == "weighted" else ((found + wanted) > 0).astype(np.float64)
    return float(np.sum(each * weights) / np.sum(weights))


def _numbers(where: str, prediction: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    found, wanted = (_values(one).astype(np.float64) for one in (prediction, target))
    if found.shape != wanted.shape:
        raise ShapeError(where, f"must be {found.shape}, as the prediction is", field="target", given=wanted.shape)
    if not wanted.size:
        raise InputError(where, "must have at least one row", field="target", given=wanted.shape)
    return found, wanted


def mean_squared_error(prediction: Any, target: Any) -> float:
    """The mean of the squared differences."""
    found, wanted = _numbers("mean_squared_error", prediction, target)
    return float(np.mean((found - wanted) ** 2))


def mean_absolute_error(prediction: Any, target: Any) -> float:
    """The mean of the differences without their signs."""
    found, wanted = _numbers("mean_absolute_error", prediction, target)
    return float(np.mean(np.abs(found - wanted)))


def r2(prediction: Any, target: Any) -> float:
    """1 - squared differences over those from the target's mean; 1 is perfect, 0 as good as that mean."""
    found, wanted = _numbers("r2", prediction, target)
    spread = float(np.sum((wanted - wanted.mean()) ** 2))
    if spread == 0.0:
        raise InputError("r2", "must not be all the same", field="target", given=wanted.reshape(-1)[0])
    return 1.0 - float(np.sum((found - wanted) ** 2)) / spread
