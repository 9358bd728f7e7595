"""Ops over an axis: softmax over channels, pooling over the tokens of each sequence."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.ops.registry import Array, Cost, Integers, PoolMode, Sample, get_args, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Spec
from weft.ops.tolerance import chain


@op
def softmax(x: Array) -> Array:
    """exp(x - max) / sum over the last axis.  x [..., D] -> [..., D]"""
    raised = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return raised / np.sum(raised, axis=-1, keepdims=True)


@softmax.shape
def softmax_shape(x: Spec) -> Spec:
    require(x.rank >= 1, "softmax", "must have an axis", field="x", given=x)
    return x


@softmax.cost
def softmax_cost(x: Spec) -> Cost:
    return Cost(flops=20 * x.size, bytes=2 * x.nbytes)


@softmax.samples
def softmax_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 1), (3, 65), (5, 17), (2, 1000)]:
        yield (normal(rng, rows, dim, scale=3.0),), {}
    yield (strided(rng, 5, 33),), {}
    yield (ugly(rng, 9, 65),), {}


@softmax.vjp
def softmax_vjp(grad: np.ndarray, x: np.ndarray) -> tuple[Any, ...]:
    return (softmax_slope(softmax.reference(x), grad),)


def softmax_slope(y: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The gradient at x for a gradient at y = softmax(x)."""
    return y * (grad - np.sum(grad * y, axis=-1, keepdims=True))


softmax.tolerance(f32=chain(64), because="exp of a rounded difference of a few tens, and a sum")


@op
def pool(x: Array, segments: Integers, *, mode: PoolMode) -> Array:
    """One row per sequence: the mean, first, last or largest of its tokens.  x [T, D], segments [B+1] -> [B, D]

    "mean_sqrt_len" is the sum over the root of the number of tokens, "weightedmean" a mean with weights 1, 2, 3 and so
    on. Sequences are not empty.
    """
    return np.stack([_pooled(x[start:end], mode) for start, end in pairwise(segments)])


def _pooled(rows: np.ndarray, mode: str) -> np.ndarray:
    if mode in ("first", "last"):
        return rows[0 if mode == "first" else -1]
    return rows.max(axis=0) if mode == "max" else (_shares(len(rows), mode)[:, None] * rows).sum(axis=0)


def _shares(tokens: int, mode: str) -> np.ndarray:
    """The factor of each token in the sum over a sequence: [tokens]."""
    if mode == "weightedmean":
        return np.arange(1, tokens + 1) / (tokens * (tokens + 1) / 2)
    return np.full(tokens, 1 / tokens if mode == "mean" else 1 / np.sqrt(tokens))


@pool.shape
def pool_shape(x: Spec, segments: Spec, *, mode: str) -> Spec:
    require(x.rank == 2, "pool", "must be [T, D]", field="x", given=x)
    require(segments.rank == 1, "pool", "must be [B+1]", field="segments", given=segments)
    return x.like(segments.shape[0] - 1, x.shape[1])


@pool.cost
def pool_cost(x: Spec, segments: Spec, *, mode: str) -> Cost:
    return Cost(flops=x.size, bytes=x.nbytes + segments.nbytes + 4 * (segments.shape[0] - 1) * x.shape[1])


@pool.samples
def pool_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in get_args(PoolMode):
        for lengths, dim in [([1], 1), ([5, 1, 17], 65), ([2, 2], 64)]:
            yield (normal(rng, sum(lengths), dim), starts_of(lengths)), {"mode": mode}
        yield (strided(rng, 9, 33), starts_of([4, 5])), {"mode": mode}
        yield (ugly(rng, 40, 17), starts_of([1, 38, 1])), {"mode": mode}


@pool.vjp
def pool_vjp(grad: np.ndarray, x: np.ndarray, segments: np.ndarray, *, mode: str) -> tuple[Any, ...]:
    to_x = np.zeros(x.shape)
    for row, start, end in zip(grad, segments[:-1], segments[1:]):
        if mode == "max":
            to_x[start + np.argmax(x[start:end], axis=0), np.arange(x.shape[1])] = row  # the first of equals
        elif mode in ("first", "last"):
            to_x[start if mode == "first" else end - 1] = row
        else:
            to_x[start:end] = _shares(end - start, mode)[:, None] * row
    return to_x, None


pool.tolerance(f32=chain(64), because="a sum of up to a few thousand rows that mostly do not cancel")
