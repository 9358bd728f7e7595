"""Ops that move elements and compute nothing: look-ups, row selection, reshape."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from weft.errors import InputError
from weft.ops.packed import Packed, wide
from weft.ops.registry import Array, Cost, Integers, Sample, Values, Weight, op, require
from weft.ops.samples import SCALES, integers, normal, strided, ugly, weight
from weft.ops.spec import Shape, Spec


def check_rows(where: str, field: str, rows: np.ndarray, count: int) -> None:
    """Raise InputError unless all are rows of a table of `count`."""
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        outside = int(rows.min() if rows.min() < 0 else rows.max())
        raise InputError(where, f"must be 0 to {count - 1}", field=field, given=outside)


@op
def embedding(ids: Integers, weight: Weight) -> Array:
    """Row ids[t] of weight, widened.  ids [T], weight [V, D] of any type -> f32 [T, D]"""
    check_rows("embedding", "ids", ids, weight.shape[0])
    return wide(weight.take(ids) if isinstance(weight, Packed) else weight[ids])


@embedding.shape
def embedding_shape(ids: Spec, weight: Spec) -> Spec:
    require(ids.rank == 1, "embedding", "must be [T]", field="ids", given=ids)
    require(weight.rank == 2, "embedding", "must be [V, D]", field="weight", given=weight)
    return weight.like(ids.shape[0], weight.shape[1], dtype="f64" if weight.dtype.name == "f64" else "f32")


@embedding.cost
def embedding_cost(ids: Spec, weight: Spec) -> Cost:
    row = weight.nbytes // weight.shape[0]
    return Cost(flops=0, bytes=ids.nbytes + ids.size * (row + 4 * weight.shape[1]))


@embedding.samples
def embedding_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, vocab, dim in [(1, 1, 1), (3, 10, 65), (17, 40, 64)]:
        yield (integers(rng.integers(0, vocab, tokens)), normal(rng, vocab, dim)), {}
    yield (integers([6, 0, 6]), strided(rng, 7, 33)), {}
    yield (integers([1, 4]), ugly(rng, 5, 65)), {}
    for dtype in ("f16", "bf16"):
        yield (integers([3, 1, 3]), weight(rng, dtype, 5, 65)), {}
    for dtype in SCALES:
        yield (integers([6, 0, 5, 6]), weight(rng, dtype, 7, 512)), {}


@embedding.vjp
def embedding_vjp(grad: np.ndarray, ids: np.ndarray, weight: Any) -> tuple[Any, ...]:
    if isinstance(weight, Packed):
        return None, None  # packed weights are frozen
    to_weight = np.zeros(weight.shape)
    np.add.at(to_weight, ids, grad)
    return None, to_weight


embedding.tolerance(
    f32=2 * 2.0**-24, because="widening is exact; a block format's scale times code may round once or twice"
)


@op
def take_rows(x: Array, rows: Integers) -> Array:
    """Row rows[l] of x.  x [T, D], rows [L] -> [L, D]"""
    check_rows("take_rows", "rows", rows, x.shape[0])
    return x[rows]


@take_rows.shape
def take_rows_shape(x: Spec, rows: Spec) -> Spec:
    require(x.rank == 2, "take_rows", "must be [T, D]", field="x", given=x)
    require(rows.rank == 1, "take_rows", "must be [L]", field="rows", given=rows)
    return x.like(rows.shape[0], x.shape[1])


@take_rows.cost
def take_rows_cost(x: Spec, rows: Spec) -> Cost:
    return Cost(flops=0, bytes=rows.nbytes + 8 * rows.size * x.shape[1])


@take_rows.samples
def take_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, dim, count in [(1, 1, 1), (5, 65, 3), (17, 64, 17)]:
        yield (normal(rng, tokens, dim), integers(rng.integers(0, tokens, count))), {}
    yield (strided(rng, 6, 33), integers([5, 0])), {}
    yield (ugly(rng, 6, 65), integers([3, 3, 1])), {}


@take_rows.vjp
def take_rows_vjp(grad: np.ndarray, x: np.ndarray, rows: np.ndarray) -> tuple[Any, ...]:
    to_x = np.zeros(x.shape)
    np.add.at(to_x, rows, grad)
    return to_x, None


take_rows.tolerance(f32=0.0, because="elements are copied")


@op
def reshape(x: Values, *, shape: Shape) -> Values:
    """The same elements in the same order, in the same memory, under another shape.  x [...] -> shape"""
    if isinstance(x, Packed):
        return replace(x, shape=cast(tuple[int, ...], shape))
    return np.ascontiguousarray(x).reshape(shape)


@reshape.shape
def reshape_shape(x: Spec, *, shape: Shape) -> Spec:
    fits = x.size == math.prod(shape)
    require(fits, "reshape", f"must have the {x.size} elements of {x}", field="shape", given=shape)
    return x.like(*shape)


@reshape.cost
def reshape_cost(x: Spec, *, shape: Shape) -> Cost:
    return Cost(flops=0, bytes=0)


@reshape.samples
def reshape_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield (normal(rng, 1, 1),), {"shape": (1,)}
    yield (normal(rng, 3, 65),), {"shape": (3, 5, 13)}
    yield (strided(rng, 4, 34),), {"shape": (8, 17)}
    yield (ugly(rng, 2, 3, 4),), {"shape": (6, 4)}


@reshape.vjp
def reshape_vjp(grad: np.ndarray, x: np.ndarray, *, shape: Shape) -> tuple[Any, ...]:
    return (grad.reshape(x.shape),)


reshape.tolerance(f32=0.0, because="elements are copied")
