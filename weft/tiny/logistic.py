"""Multinomial logistic regression to convergence: one layer, without a choice of rate or epochs.

The loss is scikit-learn's: c * sum of cross-entropies + |weight|² / 2, without the bias; with two labels the penalty is
that of its one vector. It is convex, so the minimum does not depend on how it is found: here by Newton's method, whose
systems conjugate gradients solve. They do so along the principal axes of the vectors, where a diagonal is a good guess
of the curvature, and in float32: a step is only a direction, and gradients, whose zero is the minimum, are float64. No
random number is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.errors import BackendError, InputError
from weft.frozen import frozen

STEPS, SOLVES = 200, 400  # Newton steps, and conjugate gradients of each
TOLERANCE = 1e-7  # of the gradient's largest entry, of that at zero
ROUGH, PATIENCE = 1e-2, 40  # a step is cut down to this, or so many are not enough: go on in float64
FARTHEST = 8.0  # that a step moves a logit: the curvature is another one there
AXES = 2048  # the most principal axes that are worth finding: their cost grows with the cube


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


def fit_head(
    vectors: np.ndarray,
    labels: Sequence[int] | np.ndarray,
    count: int,
    *,
    c: float = 1.0,
    tolerance: float = TOLERANCE,
) -> Head:
    """The head with the least loss for vectors [n, dimension] and labels from 0 to count - 1, or the probabilities of
    labels [n, count]; `c` is the weight of the data against the penalty. It is found when no entry of the gradient is
    above `tolerance` times the largest one at the beginning."""
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
    mean = x.mean(axis=0)
    x, axes = _turned(x - mean)
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)  # the last column is the bias
    penalty = np.full((count, x.shape[1]), 2.0 if count == 2 else 1.0)
    penalty[:, -1] = 0.0
    found = _minimum(x, y, penalty, float(c), tolerance)
    weight = found[:, :-1] if axes is None else found[:, :-1] @ axes.T
    return Head(weight.astype(np.float32), (found[:, -1] - weight @ mean).astype(np.float32))


def _turned(x: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Centred vectors along their principal axes, and the axes [dimension, axes]: None where they stay as they are.
    What is orthogonal to all vectors is left out: there the penalty makes weights zero."""
    first = None
    if len(x) < x.shape[1]:
        first, upper = np.linalg.qr(x.T)
        x = upper.T
    if x.shape[1] > AXES:
        return x, first
    axes = np.linalg.eigh(x.T @ x)[1]
    return x @ axes, axes if first is None else first @ axes


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


def _minimum(x: np.ndarray, y: np.ndarray, penalty: np.ndarray, c: float, tolerance: float) -> np.ndarray:
    w, short = np.zeros(penalty.shape), x.astype(np.float32)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = x @ w.T
        z -= z.max(axis=1, keepdims=True)
        odds = np.exp(z)
        total = odds.sum(axis=1, keepdims=True)
        value = c * float((np.log(total[:, 0]) - (z * y).sum(axis=1)).sum()) + 0.5 * float((penalty * w * w).sum())
        return value, odds / total

    value, p = loss(w)
    first = begin = 0.0
    for done in range(STEPS):
        gradient = c * ((p - y).T @ x) + penalty * w
        steep = float(np.abs(gradient).max())
        norm = math.sqrt(float((gradient * gradient).sum()))
        first, begin = first or steep, begin or norm
        if steep <= tolerance * max(first, 1e-30):
            return w
        # Far from the minimum a rough step is as good as an exact one, and costs a few products instead of hundreds.
        enough = min(0.3, math.sqrt(norm / begin)) * norm
        scale = c * ((p * (1 - p)).T @ (x * x)) + penalty + 1e-12
        step = _newton(short, p.astype(short.dtype), penalty, c, gradient, scale, enough)
        slope = float((step * gradient).sum())
        size = 1.0
        while size > 1e-12:
            there, odds = loss(w + size * step)
            if there <= value + 1e-4 * size * slope + 1e-13 * abs(value):
                break
            size /= 2
        w, value, p = w + size * step, there, odds
        if size < ROUGH or done == PATIENCE:  # float32 does not point the way
            short = x
    raise BackendError("classify", f"the head has not converged in {STEPS} steps", advice="give a smaller c")


def _newton(
    x: np.ndarray,
    p: np.ndarray,
    penalty: np.ndarray,
    c: float,
    gradient: np.ndarray,
    scale: np.ndarray,
    enough: float,
) -> np.ndarray:
    """Newton's step, until the residual's norm is `enough` or a logit has moved FARTHEST: conjugate gradients, divided
    by the curvature's diagonal `scale`, with products in the type of x and p."""
    step, moved = np.zeros_like(gradient), np.zeros_like(p)
    residual = -gradient
    ready = _balanced(residual / scale)
    direction = ready.copy()
    along = float((residual * ready).sum())
    for _ in range(SOLVES):
        along_logits = x @ direction.astype(x.dtype).T
        turned = along_logits - np.einsum("ij,ij->i", p, along_logits)[:, None]
        turned *= p
        bent = c * (turned.T @ x) + penalty * direction
        curve = float((direction * bent).sum())
        if not 0 < curve < math.inf or not along > 0:
            break
        length = along / curve
        step += length * direction
        residual -= length * bent
        moved += length * along_logits
        most = float(np.abs(moved).max())
        if most > FARTHEST:
            step *= FARTHEST / most
            break
        if math.sqrt(float((residual * residual).sum())) <= enough:
            break
        ready = _balanced(residual / scale)
        after = float((residual * ready).sum())
        direction = ready + (after / along) * direction
        along = after
    return step if step.any() else -_balanced(gradient / scale)


def _balanced(w: np.ndarray) -> np.ndarray:
    """Without what all labels have in common: it changes no probability, so that rounded curvature along it would be
    noise, and the minimum has none of it."""
    return w - w.mean(axis=0)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
