"""First values of parameters: arrays of a shape, from a seed.

A shape is [out, in] or, for a convolution, [out, height, width, in]. Without a seed the process's stream is drawn from
(weft/autograd/randomness.py).
"""

from __future__ import annotations

import math

import numpy as np

from weft.autograd.randomness import generator
from weft.errors import InputError

Shape = tuple[int, ...]

# What keeps the size of activations through a layer that is followed by this function.
GAINS = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "gelu": math.sqrt(2.0)}


def fans(shape: Shape) -> tuple[int, int]:
    """How many numbers go into one of the layer's results, and how many results one number goes into."""
    if len(shape) < 2 or not all(shape):
        raise InputError("initialise", "must be [out, in] or [out, height, width, in]", field="shape", given=shape)
    return math.prod(shape[1:]), shape[0] * math.prod(shape[1:-1])


def zeros(shape: Shape) -> np.ndarray:
    return np.zeros(shape, np.float32)


def ones(shape: Shape) -> np.ndarray:
    return np.ones(shape, np.float32)


def uniform(shape: Shape, low: float = -1.0, high: float = 1.0, *, seed: int | None = None) -> np.ndarray:
    """Every value between low and high equally likely."""
    if not low <= high:
        raise InputError("initialise", f"must be at least {low}, which low is", field="high", given=high)
    return generator(seed).uniform(low, high, shape).astype(np.float32)


def normal(shape: Shape, mean: float = 0.0, std: float = 1.0, *, seed: int | None = None) -> np.ndarray:
    """The normal distribution."""
    if std < 0:
        raise InputError("initialise", "must be at least 0", field="std", given=std)
    return (generator(seed).standard_normal(shape) * std + mean).astype(np.float32)


def xavier_uniform(shape: Shape, gain: float = 1.0, *, seed: int | None = None) -> np.ndarray:
    """Uniform, with a variance of gain² * 2 / (fan in + fan out)."""
    bound = gain * math.sqrt(6.0 / sum(fans(shape)))
    return uniform(shape, -bound, bound, seed=seed)


def xavier_normal(shape: Shape, gain: float = 1.0, *, seed: int | None = None) -> np.ndarray:
    """Normal, with a variance of gain² * 2 / (fan in + fan out)."""
    return normal(shape, std=gain * math.sqrt(2.0 / sum(fans(shape))), seed=seed)


def kaiming_uniform(shape: Shape, gain: float = math.sqrt(2.0), *, seed: int | None = None) -> np.ndarray:
    """Uniform, with a variance of gain² / fan in; the gain is relu's by default (see GAINS)."""
    bound = gain * math.sqrt(3.0 / fans(shape)[0])
    return uniform(shape, -bound, bound, seed=seed)


def kaiming_normal(shape: Shape, gain: float = math.sqrt(2.0), *, seed: int | None = None) -> np.ndarray:
    """Normal, with a variance of gain² / fan in; the gain is relu's by default (see GAINS)."""
    return normal(shape, std=gain / math.sqrt(fans(shape)[0]), seed=seed)


def orthogonal(shape: Shape, gain: float = 1.0, *, seed: int | None = None) -> np.ndarray:
    """Rows at right angles to each other, of length `gain`; of a tall matrix the columns are."""
    fans(shape)
    rows, cols = shape[0], math.prod(shape[1:])
    tall = generator(seed).standard_normal((max(rows, cols), min(rows, cols)))
    q, r = np.linalg.qr(tall)
    q *= np.where(np.diagonal(r) < 0, -1.0, 1.0)  # else the signs would not be evenly distributed
    return (gain * (q if rows >= cols else q.T)).reshape(shape).astype(np.float32)
