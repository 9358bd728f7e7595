"""The temperature that makes probabilities mean what they say."""

from __future__ import annotations

import math

import numpy as np

COLDEST, HOTTEST = 0.05, 20.0
STEPS = 60  # of golden section: the interval of logarithms shrinks from 6 to 1e-12


def temperature(logits: np.ndarray, wanted: np.ndarray) -> float:
    """By what logits [n, classes] are divided for the least cross entropy with `wanted` [n, classes].

    The cross entropy is convex in 1 / temperature, so that golden section over its logarithm finds the least.
    """
    x, shares = logits.astype(np.float64), wanted.astype(np.float64)

    def loss(logarithm: float) -> float:
        scaled = x / math.exp(logarithm)
        scaled = scaled - scaled.max(axis=1, keepdims=True)
        logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
        return -float((shares * logs).sum()) / len(x)

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
