"""The temperature that makes probabilities mean what they say."""

from __future__ import annotations

import math

import numpy as np

from weft.tiny.logistic import log_softmax

COLDEST, HOTTEST = 0.02, 50.0
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
