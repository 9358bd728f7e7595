"""Dropout: a part of the numbers is left out, and the others are made larger so that their mean stays.

What is left out is a function of numbers that belong to a row and of the column alone: Philox4x32-10 (Salmon, Moraes,
Dror and Shaw, 2011) of the key of the row, its place in its sequence, the column and the site. It depends on neither
other rows nor threads, and the gradient draws it again in place of keeping it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.gather import check_rows
from weft.ops.registry import Array, Cost, Integers, Sample, op, require
from weft.ops.samples import integers, normal, strided, ugly
from weft.ops.spec import Spec

COLUMNS = 8  # numbers of 16 bits that one turn of the generator gives
STEPS = 1 << 16  # a rate is so many parts of this
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)


def philox(counter: Any, key: Any) -> np.ndarray:
    """Philox4x32-10: counter [..., 4] and key [..., 2] of 32-bit numbers -> [..., 4]."""
    c = [np.asarray(part, np.uint64) & _LOW for part in np.moveaxis(np.asarray(counter), -1, 0)]
    k = [np.asarray(part, np.uint64) & _LOW for part in np.moveaxis(np.asarray(key), -1, 0)]
    for _ in range(10):
        first, second = c[0] * np.uint64(_MULTIPLIERS[0]), c[2] * np.uint64(_MULTIPLIERS[1])
        high = np.uint64(32)
        c = [(second >> high) ^ c[1] ^ k[0], second & _LOW, (first >> high) ^ c[3] ^ k[1], first & _LOW]
        k = [(part + np.uint64(step)) & _LOW for part, step in zip(k, _WEYL)]
    return np.stack(np.broadcast_arrays(*c), axis=-1).astype(np.uint32)


def left_out(rate: float) -> int:
    """How many of the 65,536 values of a number leave an element out."""
    return round(rate * STEPS)


def kept(draws: np.ndarray, cols: int, rate: float, site: int, head: int = 0) -> np.ndarray:
    """What rows are multiplied by: draws [R, 3] -> float64 [R, cols], each 0 or 1 / (1 - rate)."""
    turns = np.arange(-(-cols // COLUMNS))[None, :]
    own = draws.astype(np.int64)[:, None, :]
    counter = np.stack(np.broadcast_arrays(turns, own[..., 2], site, head), axis=-1)
    words = philox(counter, own[..., :2])  # [R, turns, 4]
    numbers = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1)  # the low half of a word first
    limit = left_out(rate)
    mask = numbers.reshape(len(draws), -1)[:, :cols] >= limit
    return mask * (STEPS / (STEPS - limit))


@op(in_place=(("x",),))
def dropout(x: Array, draws: Integers, rows: Integers | None = None, *, rate: float, site: int) -> Array:
    """x with a part `rate` of its numbers zero and the others divided by 1 - rate.  x [R, C], draws [R, 3] -> [R, C]

    draws[r] are both halves of the key of row r's sequence, and the row's place in it. With rows [R] row r is row
    rows[r] of draws [T, 3]. `site` tells places of a model apart. The rate is rounded to a 65,536th.
    """
    if rows is not None:
        check_rows("dropout", "rows", rows, len(draws))
        draws = draws[rows]
    return x * kept(draws, x.shape[1], rate, site)


@dropout.shape
def dropout_shape(x: Spec, draws: Spec, rows: Spec | None, *, rate: float, site: int) -> Spec:
    require(x.rank == 2, "dropout", "must be [R, C]", field="x", given=x)
    require(draws.rank == 2 and draws.shape[1] == 3, "dropout", "must be [R, 3]", field="draws", given=draws)
    owners = draws if rows is None else rows
    require(owners.shape[0] == x.shape[0], "dropout", f"must have a row for each of x {x}", field="draws", given=owners)
    check_rate("dropout", rate, site)
    return x


def check_rate(where: str, rate: float, site: int) -> None:
    right = 0 <= rate < 1 and left_out(rate) < STEPS
    require(right, where, "must be 0 or more, and below 1", field="rate", given=rate)
    require(site >= 0, where, "must be 0 or more", field="site", given=site)


@dropout.cost
def dropout_cost(x: Spec, draws: Spec, rows: Spec | None, *, rate: float, site: int) -> Cost:
    return Cost(flops=8 * x.size, bytes=2 * x.nbytes + draws.nbytes)  # 8: ten rounds of Philox for eight numbers


@dropout.samples
def dropout_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, cols, rate in [(1, 1, 0.5), (3, 65, 0.1), (5, 64, 0.0), (40, 17, 0.9), (2, 700, 0.1)]:
        yield (normal(rng, rows, cols), draws_of(rng, rows)), {"rate": rate, "site": rows}
    yield (strided(rng, 7, 19), draws_of(rng, 9), integers([8, 0, 3, 4, 5, 5, 1])), {"rate": 0.25, "site": 0}
    yield (ugly(rng, 9, 65), draws_of(rng, 9)), {"rate": 0.5, "site": 2_000_000_000}


def draws_of(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Keys of any bits; places 0 and more."""
    keys = rng.integers(-(2**31), 2**31, (rows, 2))
    return integers(np.concatenate([keys, rng.integers(0, 512, (rows, 1))], axis=1))


@dropout.vjp
def dropout_vjp(
    grad: np.ndarray, x: np.ndarray, draws: np.ndarray, rows: Any = None, *, rate: float, site: int
) -> tuple[Any, ...]:
    return grad * kept(draws if rows is None else draws[rows], x.shape[1], rate, site), None, None


dropout.tolerance(because="the factor and the product are rounded once each")


@dropout.back
def back_of_dropout(grad: Any, x: Any, draws: Any, rows: Any = None, *, rate: float, site: int) -> tuple[Any, ...]:
    return dropout(grad, draws, rows, rate=rate, site=site), None, None
