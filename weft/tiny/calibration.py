"""The temperature that makes probabilities mean what they say, and rows held out to find it.

Each part of the rows is asked of a head that learnt the others. Every class is dealt out to the folds by itself: folds
drawn without regard to classes take half of a class away where it has eight texts, and a temperature found with such
heads is that of much worse ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from hashlib import sha256

import numpy as np

from weft.errors import InputError
from weft.tiny.logistic import Head, fit_head, log_softmax

MANY, FEW = 5, 8  # folds where classes have many rows, and where they have few
FEW_ROWS = 50  # of a class, in the mean
COLDEST, HOTTEST = 0.02, 50.0
ENOUGH = 2000  # held-out rows tell two values of c apart
RATIO, LEAST_C, MOST_C = math.sqrt(10), 0.01, 1000.0  # of values of c that are tried
BETTER = 0.002  # part by which the loss must fall for another c, and half of it in nats
ROUGHLY = 1e-4  # tolerance of heads that only measure
STEPS = 60  # of golden section: the interval of logarithms shrinks from 8 to 1e-12


def fit_temperature(logits: np.ndarray, wanted: np.ndarray) -> float:
    """By what held-out logits [n, classes] are divided for the least cross entropy with `wanted`: the number of each
    row's class [n], or the share of each class [n, classes].

    The cross entropy is convex in 1 / temperature, so that golden section over its logarithm finds the least.
    """
    x, rows = logits.astype(np.float64), np.arange(len(logits))

    def loss(logarithm: float) -> float:
        logs = log_softmax(x / math.exp(logarithm))
        return -float(logs[rows, wanted].mean() if wanted.ndim == 1 else (wanted * logs).sum() / len(x))

    low, high = math.log(COLDEST), math.log(HOTTEST)
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = loss(left), loss(right)
    for _ in range(STEPS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return math.exp((low + high) / 2)


def smoothed(wanted: np.ndarray, count: int) -> np.ndarray:
    """Labels [n] as shares of the classes [n, count], a little of each on the others: of n + 2 rows one would be wrong
    (Platt). Where few held-out rows are all right, probabilities of 1 would not be deserved."""
    wrong = 1 / (len(wanted) + 2)
    made = np.full((len(wanted), count), wrong / (count - 1))
    made[np.arange(len(wanted)), wanted] = 1 - wrong
    return made


def folds_of(texts: Sequence[str], y: np.ndarray) -> np.ndarray:
    """The fold of each text with the class y [n]: 0, 1, … in the order of the digests of a class's texts. The order of
    rows does not matter, and equal texts of a class are in one fold."""
    count = FEW if len(y) < FEW_ROWS * len(np.unique(y)) else MANY
    digests = [int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big") for text in texts]
    keys, found = np.asarray(digests, np.uint64), np.zeros(len(y), np.int64)
    for label in np.unique(y).tolist():
        rows = np.flatnonzero(y == label)
        _, places = np.unique(keys[rows], return_inverse=True)
        found[rows] = (places + label) % count  # classes of one text are in different folds
    return found


def choose_c(texts: Sequence[str], vectors: np.ndarray, wanted: np.ndarray, count: int) -> float:
    """The weight of the data for which held-out rows have the least cross entropy. Arguments are those of
    `out_of_fold`; of many rows only as many folds are asked as make ENOUGH rows."""
    return best_c(lambda c: out_of_fold(texts, vectors, wanted, count, c, rows=ENOUGH)[:2])


def best_c(held_out: Callable[[float], tuple[np.ndarray, np.ndarray]]) -> float:
    """The weight of the data for which logits and labels that `held_out` gives have the least cross entropy, each at
    its best temperature: 10, or from there up or down in half decades as long as it falls."""

    def loss(c: float) -> float:
        logits, labels = held_out(c)
        logs = log_softmax(logits / fit_temperature(logits, labels))
        return -float(logs[np.arange(len(labels)), labels].mean())

    best, least = 10.0, loss(10.0)
    for ratio in (RATIO, 1 / RATIO):
        while LEAST_C < best * ratio < MOST_C * RATIO:
            found = loss(best * ratio)
            if found > least * (1 - BETTER) - BETTER / 2:
                break
            best, least = best * ratio, found
        if best > 10:
            break
    return float(f"{best:.2g}")


def out_of_fold(
    texts: Sequence[str], vectors: np.ndarray, wanted: np.ndarray, count: int, c: float, *, rows: int | None = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Logits of each row by a head that has not learnt it, its label, and how many folds there were. `wanted` has the
    number of each row's label [n], or the probabilities of labels [n, count], of which the likeliest counts. A row that
    is the only one of its label cannot be left out: it is not measured. With `rows` no more folds are asked as soon as
    so many rows have been."""
    chances, y = (wanted, wanted.argmax(axis=1)) if wanted.ndim == 2 else (None, wanted)
    folds = folds_of(texts, y)
    logits: list[np.ndarray] = []
    labels: list[np.ndarray] = []
    for fold in np.unique(folds):
        if rows is not None and sum(len(some) for some in labels) >= rows:
            break
        inside = folds != fold
        if chances is not None:
            if inside.any():
                head = fit_head(vectors[inside], chances[inside], count, c=c, tolerance=ROUGHLY)
                logits.append(head.logits(vectors[~inside]))
                labels.append(y[~inside])
            continue
        known = np.unique(y[inside])
        asked = np.flatnonzero(~inside & np.isin(y, known))
        if not len(asked) or len(known) < 2:
            continue
        head = fit_head(vectors[inside], np.searchsorted(known, y[inside]), len(known), c=c, tolerance=ROUGHLY)
        weight = np.zeros((count, vectors.shape[1]), np.float32)
        bias = np.full(count, -1e4, np.float32)  # labels that this head has not met are impossible to it
        weight[known], bias[known] = head.weight, head.bias
        logits.append(Head(weight, bias).logits(vectors[asked]))
        labels.append(y[asked])
    if not logits:
        advice = "give more rows, or rows to measure with"
        raise InputError("classify", "are too few to measure with a part of them", field="data", advice=advice)
    return np.concatenate(logits), np.concatenate(labels), len(logits)
