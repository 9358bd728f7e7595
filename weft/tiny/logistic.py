"""Multinomial logistic regression to convergence: one layer, without a choice of rate or epochs.

The loss is scikit-learn's: c * sum of cross-entropies + |weight|² / 2, without the bias; with two labels the penalty is
that of its one vector. It is convex, so the minimum does not depend on how it is found: here by Newton's method, whose
systems conjugate gradients solve. No random number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.errors import BackendError, InputError
from weft.frozen import frozen

STEPS, SOLVES = 200, 400  # Newton steps, and conjugate gradients of each
TOLERANCE = 1e-7  # of the gradient's largest entry, of that at zero


@frozen(eq=False)
class Head:
    """Logits of labels: weight [labels, dimension], bias [labels], float32."""

    weight: np.ndarray
    bias: np.ndarray

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """Logits of each vector, float64 [n, labels]. Row by row, so that a text's bits do not depend on the others."""
        weight, bias = self.weight.astype(np.float64), self.bias.astype(np.float64)
        rows = [weight @ row + bias for row in np.asarray(vectors, np.float64)]
        return np.stack(rows) if rows else np.empty((0, len(bias)))


def fit_head(vectors: np.ndarray, labels: Sequence[int] | np.ndarray, count: int, *, c: float = 1.0) -> Head:
    """The head with the least loss for vectors [n, dimension] and labels from 0 to count - 1, or the probabilities of
    labels [n, count]; `c` is the weight of the data against the penalty."""
    x = np.asarray(vectors, np.float64)
    soft = getattr(labels, "ndim", 1) == 2
    y = np.asarray(labels, np.float64 if soft else np.int64)
    if not (isinstance(c, (int, float)) and math.isfinite(c) and c > 0):
        raise InputError("classify", "must be a number above 0", field="c", given=c)
    if x.ndim != 2 or y.shape != ((len(x), count) if soft else (len(x),)) or not len(x):
        what = f"must have a label each: there are vectors {x.shape} and labels {y.shape}"
        raise InputError("classify", what, field="vectors")
    y = _wanted(y, count)
    if not np.isfinite(x).all():
        raise InputError("classify", "must be finite", field="vectors")
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)  # the last column is the bias
    penalty = np.full((count, x.shape[1]), 2.0 if count == 2 else 1.0)
    penalty[:, -1] = 0.0
    found = _minimum(x, y, penalty, float(c))
    return Head(found[:, :-1].astype(np.float32), found[:, -1].astype(np.float32))


def _wanted(y: np.ndarray, count: int) -> np.ndarray:
    """What is wanted of each label, [n, count], checked."""
    if y.ndim == 2:
        if count < 2 or not np.isfinite(y).all() or y.min() < 0 or not np.allclose(y.sum(axis=1), 1.0, atol=1e-6):
            raise InputError("classify", "must be probabilities: rows of a sum of 1, none below 0", field="labels")
        return y
    missing = sorted(set(range(count)) - set(y.tolist()))
    if count < 2 or missing or y.min() < 0 or y.max() >= count:
        what = f"must be at least two from 0 to {count - 1}, each with an example"
        raise InputError("classify", what, field="labels", given=f"none of {missing[:5]}" if missing else count)
    made = np.zeros((len(y), count))
    made[np.arange(len(y)), y] = 1.0
    return made


def _minimum(x: np.ndarray, y: np.ndarray, penalty: np.ndarray, c: float) -> np.ndarray:
    w = np.zeros(penalty.shape)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = x @ w.T
        z -= z.max(axis=1, keepdims=True)
        odds = np.exp(z)
        total = odds.sum(axis=1, keepdims=True)
        value = c * float((np.log(total[:, 0]) - (z * y).sum(axis=1)).sum()) + 0.5 * float((penalty * w * w).sum())
        return value, odds / total

    value, p = loss(w)
    first = begin = 0.0
    for _ in range(STEPS):
        gradient = c * ((p - y).T @ x) + penalty * w
        steep = float(np.abs(gradient).max())
        norm = math.sqrt(float((gradient * gradient).sum()))
        first, begin = first or steep, begin or norm
        if steep <= TOLERANCE * max(first, 1e-30):
            return w
        # Far from the minimum a rough step is as good as an exact one, and costs a few products instead of hundreds.
        step = _newton(x, p, penalty, c, gradient, min(0.3, math.sqrt(norm / begin)) * norm)
        slope = float((step * gradient).sum())
        size = 1.0
        while size > 1e-12:
            there, odds = loss(w + size * step)
            if there <= value + 1e-4 * size * slope + 1e-13 * abs(value):
                break
            size /= 2
        w, value, p = w + size * step, there, odds
    raise BackendError("classify", f"the head has not converged in {STEPS} steps", advice="give a smaller c")


def _newton(
    x: np.ndarray, p: np.ndarray, penalty: np.ndarray, c: float, gradient: np.ndarray, enough: float
) -> np.ndarray:
    """Newton's step, until the residual's norm is `enough`: conjugate gradients, scaled by the diagonal."""
    scale = c * ((p * (1 - p)).T @ (x * x)) + penalty + 1e-12
    step = np.zeros_like(gradient)
    residual = -gradient
    ready = residual / scale
    direction = ready.copy()
    along = float((residual * ready).sum())
    for _ in range(SOLVES):
        u = x @ direction.T
        turned = p * (u - (p * u).sum(axis=1, keepdims=True))
        bent = c * (turned.T @ x) + penalty * direction
        curve = float((direction * bent).sum())
        if curve <= 0:
            break
        length = along / curve
        step += length * direction
        residual -= length * bent
        if math.sqrt(float((residual * residual).sum())) <= enough:
            break
        ready = residual / scale
        after = float((residual * ready).sum())
        direction = ready + (after / along) * direction
        along = after
    return step if step.any() else -gradient / scale


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
