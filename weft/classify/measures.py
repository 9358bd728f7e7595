"""How good a classifier is on texts it has not learnt: accuracy, confusions, calibration, and when to abstain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

BINS = 15  # of the calibration error


@frozen
class Measures:
    """`confusion[i][j]` counts texts of label i that got label j. `calibration` is the expected calibration error: how
    far probabilities are from the share that is right. `answered` is the share of texts not abstained from, and
    `answered_accuracy` the share of these that is right."""

    rows: int
    accuracy: float
    macro_f1: float
    loss: float
    calibration: float
    answered: float
    answered_accuracy: float
    confusion: list[list[int]]

    def confused(self, labels: Sequence[str], most: int = 10) -> list[tuple[str, str, int]]:
        """The pairs that are taken for each other most often: right label, given label, count."""
        pairs = [
            (labels[i], labels[j], count)
            for i, row in enumerate(self.confusion)
            for j, count in enumerate(row)
            if i != j and count
        ]
        return sorted(pairs, key=lambda pair: (-pair[2], pair[0], pair[1]))[:most]


def measured(probabilities: np.ndarray, labels: np.ndarray, threshold: float) -> Measures:
    """Measures of probabilities [n, labels] for texts with these labels."""
    import numpy as np

    count = probabilities.shape[1]
    given = probabilities.argmax(axis=1)
    sure = probabilities[np.arange(len(given)), given]
    right = given == labels
    confusion = np.zeros((count, count), np.int64)
    np.add.at(confusion, (labels, given), 1)
    hits = np.diag(confusion)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = np.divide(2 * hits, both, out=np.zeros(count), where=both > 0)
    answered = sure >= threshold
    return Measures(
        rows=len(labels),
        accuracy=float(right.mean()),
        macro_f1=float(f1[confusion.sum(axis=1) > 0].mean()),
        loss=float(-np.log(np.maximum(probabilities[np.arange(len(labels)), labels], 1e-300)).mean()),
        calibration=calibration_error(sure, right),
        answered=float(answered.mean()),
        answered_accuracy=float(right[answered].mean()) if answered.any() else 0.0,
        confusion=confusion.tolist(),
    )


def calibration_error(sure: np.ndarray, right: np.ndarray) -> float:
    """The mean distance of confidence and accuracy, over BINS bins of equal width, weighted by their texts."""
    import numpy as np

    place = np.minimum((sure * BINS).astype(np.int64), BINS - 1)
    gaps = [abs(float((sure[place == i] - right[place == i]).sum())) for i in range(BINS)]
    return sum(gaps) / len(sure)


def threshold_for(probabilities: np.ndarray, labels: np.ndarray, precision: float) -> float | None:
    """The lowest probability from which on at least this share of answers is right; None if there is none."""
    import numpy as np

    given = probabilities.argmax(axis=1)
    sure = probabilities[np.arange(len(given)), given]
    order = np.argsort(-sure, kind="stable")
    share = np.cumsum(given[order] == labels[order]) / np.arange(1, len(order) + 1)
    last = np.append(sure[order][1:] != sure[order][:-1], True)  # texts of one probability are answered together
    good = np.flatnonzero((share >= precision) & last)
    return float(sure[order][good[-1]]) if len(good) else None
