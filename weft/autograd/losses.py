"""Losses: how far predictions are from what was wanted, as a variable of one element, or one per row."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.autograd import functions
from weft.autograd.variable import Variable, as_variable, constant, take
from weft.errors import InputError, ShapeError
from weft.ops.elementwise import activate

REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Any,
    targets: Any,
    *,
    label_smoothing: float = 0.0,
    weight: Any = None,
    ignore: int | None = None,
    reduction: str = "mean",
) -> Variable:
    """-log of the softmax at the target.  logits [..., classes], targets integers [...]

    `label_smoothing` wants this share spread over all classes. `weight` [classes] is what a row of each class counts;
    rows whose target is `ignore` count nothing. The mean is over what rows count.
    """
    logits, wanted = as_variable(logits), as_variable(targets)
    classes, shape = logits.shape[-1], logits.shape[:-1] or (1,)
    if wanted.dtype.kind != "i" or wanted.shape != shape:
        what = f"must be integers {shape} for logits {logits.shape}"
        raise ShapeError("cross_entropy", what, field="targets", given=f"{wanted.dtype} {wanted.shape}")
    if not 0.0 <= label_smoothing < 1.0:
        what = "must be 0 or more and below 1"
        raise InputError("cross_entropy", what, field="label_smoothing", given=label_smoothing)
    counts = np.ones(classes) if weight is None else np.asarray(weight, np.float64)
    if counts.shape != (classes,):
        raise ShapeError("cross_entropy", f"must be [{classes}]", field="weight", given=counts.shape)
    rows = functions.log_softmax(logits.reshape(logits.size // classes, classes))
    table = np.diag(counts * (1.0 - label_smoothing)) + counts * (label_smoothing / classes)  # class -> what is wanted
    table = np.concatenate([table, np.zeros((1, classes))])  # of a row that counts nothing
    chosen = wanted.reshape(wanted.size)
    total: float = chosen.size
    if ignore is not None or weight is not None:
        chosen, total = _counted(chosen.value, counts, ignore)
    if chosen.known:
        _check_classes(chosen.value, classes, ignore)
    losses = (take(constant(-table, rows), chosen) * rows).sum(1)
    if reduction == "mean":
        return losses.sum() * (1.0 / total)
    return _reduced(losses if reduction == "sum" else losses.reshape(*shape), reduction)


def _counted(targets: np.ndarray, counts: np.ndarray, ignore: int | None) -> tuple[Variable, float]:
    """Targets with the number after the last class where they are ignored, and the sum of what rows count."""
    chosen = targets if ignore is None else np.where(targets == ignore, len(counts), targets)
    _check_classes(chosen, len(counts), ignore)
    total = float(np.append(counts, 0.0)[chosen].sum())
    if total <= 0:
        raise InputError(
            "cross_entropy", "no row counts: all are ignored, or of classes with weight 0", field="targets"
        )
    return Variable(chosen), total


def _check_classes(targets: np.ndarray, classes: int, ignore: int | None) -> None:
    most = classes if ignore is not None else classes - 1
    if targets.size and (targets.min() < 0 or targets.max() > most):
        wrong = int(targets.min() if targets.min() < 0 else targets.max())
        raise InputError("cross_entropy", f"must be classes, 0 to {classes - 1}", field="targets", given=wrong)


def mse(prediction: Any, target: Any, *, reduction: str = "mean") -> Variable:
    """The square of the difference."""
    x, wanted = _both("mse", prediction, target)
    offset = x - wanted
    return _reduced(offset * offset, reduction)


def l1(prediction: Any, target: Any, *, reduction: str = "mean") -> Variable:
    """The difference without its sign."""
    x, wanted = _both("l1", prediction, target)
    return _reduced(functions.absolute(x - wanted), reduction)


def huber(prediction: Any, target: Any, *, delta: float = 1.0, reduction: str = "mean") -> Variable:
    """Half the square of the difference up to `delta`, from there on a line."""
    if not delta > 0:
        raise InputError("huber", "must be above zero", field="delta", given=delta)
    x, wanted = _both("huber", prediction, target)
    away = functions.absolute(x - wanted)
    beyond = activate(away - delta, kind="relu")
    near = away - beyond
    return _reduced(near * near * 0.5 + beyond * delta, reduction)


def bce_with_logits(logits: Any, target: Any, *, positive_weight: float = 1.0, reduction: str = "mean") -> Variable:
    """-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) for targets from 0 to 1; the first part counts
    `positive_weight` times."""
    x, wanted = _both("bce_with_logits", logits, target)
    if positive_weight == 1.0:
        return _reduced(activate(x, kind="softplus") - x * wanted, reduction)
    positive = activate(-x, kind="softplus") * wanted * positive_weight
    return _reduced(positive + activate(x, kind="softplus") * (1.0 - wanted), reduction)


def kl_divergence(logits: Any, target: Any, *, reduction: str = "mean") -> Variable:
    """Sum of t log(t / softmax(x)) over the last axis, for probabilities t; the mean is over rows."""
    x, wanted = _both("kl_divergence", logits, target)
    values = wanted.value.astype(np.float64)
    if (values < 0).any() or not np.allclose(values.sum(axis=-1), 1.0, atol=1e-4):
        raise InputError("kl_divergence", "must be probabilities: rows of a sum of 1, none below 0", field="target")
    logs = np.log(np.where(values > 0, values, 1.0))
    gap = constant(values * logs, x) - functions.log_softmax(x) * wanted
    return _reduced(gap.sum(-1), reduction)


def hinge(prediction: Any, target: Any, *, reduction: str = "mean") -> Variable:
    """max(0, 1 - t x) for targets of -1 and 1."""
    x, wanted = _both("hinge", prediction, target)
    return _reduced(activate(1.0 - x * wanted, kind="relu"), reduction)


def cosine_distance(x: Any, y: Any, *, reduction: str = "mean") -> Variable:
    """1 - cosine of the angle between rows."""
    a, b = _both("cosine_distance", x, y)
    return _reduced(1.0 - (functions.normalised(a) * functions.normalised(b)).sum(-1), reduction)


def _both(where: str, prediction: Any, target: Any) -> tuple[Variable, Variable]:
    x = as_variable(prediction)
    wanted = as_variable(target, x)
    if wanted.dtype.kind != "f":
        wanted = constant(wanted.value, x)
    if wanted.shape != x.shape:
        raise ShapeError(where, f"must be {x.shape}, as the prediction is", field="target", given=wanted.shape)
    return x, wanted


def _reduced(losses: Variable, reduction: str) -> Variable:
    if reduction not in REDUCTIONS:
        raise InputError("loss", f"must be one of {', '.join(REDUCTIONS)}", field="reduction", given=reduction)
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()
