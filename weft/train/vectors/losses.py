"""Losses as functions of vectors, in float64: a number, and its gradient by every vector.

They are those of sentence-transformers, with its defaults. A batch's vectors may have been computed in any number of
parts: a loss sees them all, and its gradient goes back through each part on its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

Columns = Sequence["np.ndarray"]  # float64 [B, D] each: anchors, positives, negatives …
Found = tuple[float, list["np.ndarray"]]  # the loss, and a gradient of each column's shape
Loss = Callable[[Columns, Any], Found]

NAMES = ("ranking", "triplet", "cosine", "cosent", "mse")
SCALE, MARGIN = 20.0, 5.0
ROWS = 1024  # of anchors whose scores are in memory together
NORM = 1e-12  # the least that a vector is divided by


def ranking(columns: Columns, labels: Any = None, *, scale: float = SCALE) -> Found:
    """How improbable each anchor's own positive is among all texts of the other columns, whose logits are cosines times
    `scale`: the others' positives, and all negatives (MultipleNegativesRankingLoss)."""
    import numpy as np

    anchors, anchor_norms = _unit(columns[0])
    texts, text_norms = _unit(np.concatenate(columns[1:]))
    count = len(anchors)
    total, to_anchors, to_texts = 0.0, np.empty_like(anchors), np.zeros_like(texts)
    for first in range(0, count, ROWS):
        some = anchors[first : first + ROWS]
        own = np.arange(first, first + len(some))
        scores = scale * (some @ texts.T)
        highest = scores.max(axis=1, keepdims=True)
        parts = np.exp(scores - highest)
        sums = parts.sum(axis=1, keepdims=True)
        rows = np.arange(len(some))
        total += float((highest[:, 0] + np.log(sums[:, 0]) - scores[rows, own]).sum())
        parts /= sums
        parts[rows, own] -= 1.0
        parts *= scale / count
        to_anchors[first : first + ROWS] = parts @ texts
        to_texts += parts.T @ some
    found = _through_unit(to_texts, texts, text_norms)
    return total / count, [_through_unit(to_anchors, anchors, anchor_norms), *np.split(found, len(columns) - 1)]


def triplet(columns: Columns, labels: Any = None, *, margin: float = MARGIN) -> Found:
    """By how much each negative is not `margin` farther from its anchor than the positive (TripletLoss, Euclidean)."""
    import numpy as np

    anchors, positives, negatives = columns
    near, far = anchors - positives, anchors - negatives
    near_by, far_by = (np.sqrt((gap * gap).sum(axis=1, keepdims=True)) for gap in (near, far))
    losses = near_by - far_by + margin
    wrong = (losses > 0) / len(anchors)
    # Vectors that are the same have no direction to be moved in.
    to_near, to_far = (wrong * gap / np.where(by > 0, by, 1.0) for gap, by in ((near, near_by), (far, far_by)))
    return float(np.maximum(losses, 0).mean()), [to_near - to_far, -to_near, to_far]


def cosine(columns: Columns, labels: Any) -> Found:
    """The squared difference of each pair's cosine and its label (CosineSimilarityLoss)."""
    import numpy as np

    cosines, back = _cosines(*columns)
    apart = cosines - np.asarray(labels, np.float64)
    return float((apart * apart).mean()), back(2.0 * apart / len(apart))


def cosent(columns: Columns, labels: Any, *, scale: float = SCALE) -> Found:
    """How far pairs with a lower label have the higher cosine, over all couples of pairs (CoSENTLoss)."""
    import numpy as np

    cosines, back = _cosines(*columns)
    wanted = np.asarray(labels, np.float64)
    order = np.argsort(wanted, kind="stable")
    sorted_labels, scores = wanted[order], scale * cosines[order]
    middle = (scores.max() + scores.min()) / 2  # only differences count, and their exponentials are to be finite
    up, down = np.exp(scores - middle), np.exp(middle - scores)
    above = np.concatenate([np.cumsum(down[::-1])[::-1], [0.0]])  # of all from here on
    below = np.concatenate([[0.0], np.cumsum(up)])  # of all before
    higher = np.searchsorted(sorted_labels, sorted_labels, "right")
    lower = np.searchsorted(sorted_labels, sorted_labels, "left")
    lifted = up * above[higher]
    total = 1.0 + float(lifted.sum())
    by_score = np.empty_like(scores)
    by_score[order] = scale * (lifted - down * below[lower]) / total
    return float(np.log(total)), back(by_score)


def mse(columns: Columns, labels: Any) -> Found:
    """The mean squared difference of all numbers from those of the labels, vectors of a teacher (MSELoss). Labels are
    [B, D] for every column, or [B, columns, D]."""
    import numpy as np

    wanted = np.asarray(labels, np.float64)
    apart = [column - (wanted if wanted.ndim == 2 else wanted[:, at]) for at, column in enumerate(columns)]
    size = sum(part.size for part in apart)
    return float(sum((part * part).sum() for part in apart) / size), [2.0 * part / size for part in apart]


def binary(columns: Columns, labels: Any) -> Found:
    """The cross-entropy of one logit for each row, with labels of 0 to 1 (BinaryCrossEntropyLoss)."""
    import numpy as np

    logits = columns[0][:, 0]
    wanted = np.asarray(labels, np.float64)
    small = np.exp(-np.abs(logits))
    losses = np.maximum(logits, 0) - logits * wanted + np.log1p(small)
    chances = np.where(logits >= 0, 1.0, small) / (1.0 + small)
    return float(losses.mean()), [((chances - wanted) / len(logits))[:, None]]


def shortened(loss: Loss, dims: Sequence[int]) -> Loss:
    """The sum of the losses of vectors cut to each of these lengths and normalised (MatryoshkaLoss)."""

    def several(columns: Columns, labels: Any) -> Found:
        import numpy as np

        total, grads = 0.0, [np.zeros_like(column) for column in columns]
        wide = np.asarray(labels, np.float64) if loss is mse else None
        for dim in sorted(dims, reverse=True):
            cut = [_unit(column[:, :dim]) for column in columns]
            value, found = loss([unit for unit, _ in cut], labels if wide is None else wide[..., :dim])
            total += value
            for grad, part, (unit, norms) in zip(grads, found, cut):
                grad[:, :dim] += _through_unit(part, unit, norms)
        return total, grads

    return several


def loss_of(name: str, *, scale: float = SCALE, margin: float = MARGIN, dims: Sequence[int] = ()) -> Loss:
    """The loss of this name; with `dims` that of vectors of these lengths too."""
    if name not in NAMES:
        raise InputError("train", f"must be one of {', '.join(NAMES)}", field="loss", given=name)
    made: dict[str, Loss] = {
        "ranking": lambda columns, labels: ranking(columns, labels, scale=scale),
        "triplet": lambda columns, labels: triplet(columns, labels, margin=margin),
        "cosent": lambda columns, labels: cosent(columns, labels, scale=scale),
        "cosine": cosine,
        "mse": mse,
    }
    return shortened(made[name], dims) if dims else made[name]


def _unit(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of norm 1, and what they were divided by."""
    import numpy as np

    norms = np.maximum(np.sqrt((x * x).sum(axis=1, keepdims=True)), NORM)
    return x / norms, norms


def _through_unit(grad: np.ndarray, unit: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """The gradient of rows from that of `_unit` of them."""
    found: np.ndarray = (grad - unit * (grad * unit).sum(axis=1, keepdims=True)) / norms
    return found


def _cosines(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], list[np.ndarray]]]:
    """The cosine of each row of one with that of the other, and from its gradient those of both."""
    (a, a_norms), (b, b_norms) = _unit(left), _unit(right)

    def back(grad: np.ndarray) -> list[np.ndarray]:
        each = grad[:, None]
        return [_through_unit(each * b, a, a_norms), _through_unit(each * a, b, b_norms)]

    return (a * b).sum(axis=1), back
