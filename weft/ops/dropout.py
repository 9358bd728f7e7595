"""Dropout: a part of the numbers is left out, and the others are made larger so that their mean stays.

What is left out is a function of numbers that belong to a row and of the column alone: Philox4x32-10 (Salmon, Moraes,
Dror and Shaw, 2011) of the key of the row, its place in its sequence, the column and the site. It depends on neither
other rows nor threads, and the gradient draws it again in place of keeping it.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.ops.attention import (
    attend,
    attention,
    by_distance,
    by_head,
    check_bias,
    check_step,
    step_mask,
    table_of,
    to_groups,
)
from weft.ops.gather import check_rows
from weft.ops.reduce import softmax_slope
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import integers, normal, strided, ugly
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

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


@op
def attention_dropped(
    q: Array,
    k: Array,
    v: Array,
    segments: Integers,
    draws: Integers,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    *,
    scale: float,
    rate: float,
    site: int,
) -> Array:
    """Attention of every token to its whole sequence, a part of its weights left out.  q [T, H, D], k, v [T, G, D],
    segments [B+1], draws [T, 3] as in dropout, bias [K, H], buckets [2R+1] -> [T, H, D]

    Weights are left out after the softmax, so those of a query do not add up to one.
    """
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        here, mask = slice(start, end), step_mask(end - start, False, 0, bias, buckets)
        weights = attend(q[here], k[here], v[here], mask, scale, 0.0)[1]
        seen = weights * kept_weights(draws[here], q.shape[1], rate, site)
        out[here] = (seen @ by_head(v[here], q.shape[1])).swapaxes(0, 1)
    return out


def kept_weights(draws: np.ndarray, heads: int, rate: float, site: int) -> np.ndarray:
    """What the weights of a sequence are multiplied by: draws [n, 3] -> [heads, n, n]."""
    return np.stack([kept(draws, len(draws), rate, site, head + 1) for head in range(heads)])


@attention_dropped.shape
def attention_dropped_shape(
    q: Spec,
    k: Spec,
    v: Spec,
    segments: Spec,
    draws: Spec,
    bias: Spec | None,
    buckets: Spec | None,
    *,
    scale: float,
    rate: float,
    site: int,
) -> Spec:
    check_step("attention_dropped", q, k, v, segments)
    check_bias("attention_dropped", q, k, bias, buckets)
    check_draws("attention_dropped", q, draws, rate, site)
    return q


def check_draws(where: str, q: Spec, draws: Spec, rate: float, site: int, *, whole: bool = True) -> None:
    fits = draws.rank == 2 and draws.shape == (q.shape[0], 3)
    require(fits, where, f"must be [T, 3] for q {q}", field="draws", given=draws)
    require(whole, where, "are of attention to whole sequences only", field="draws", given=draws)
    check_rate(where, rate, site)


@attention_dropped.cost
def attention_dropped_cost(q: Spec, k: Spec, v: Spec, segments: Spec, *_: Spec | None, scale: float, **__: Any) -> Cost:
    return attention.cost_of(q, k, v, segments, causal=False, scale=scale)


@attention_dropped.samples
def attention_dropped_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, heads, groups, dim in [([1], 1, 1, 1), ([5, 1, 17], 2, 2, 32), ([33, 2], 4, 2, 17), ([140], 2, 1, 65)]:
        tokens, starts = sum(lengths), starts_of(lengths)
        q, k, v = (normal(rng, tokens, count, dim) for count in (heads, groups, groups))
        given, attrs = (q, k, v, starts, draws_of_texts(rng, starts)), {"scale": dim**-0.5, "rate": 0.25, "site": dim}
        yield given, attrs
        yield (*given, *table_of(rng, heads)), attrs
    q, k, v = (part.transpose(1, 0, 2) for part in normal(rng, 3, 2, 40, 16))  # heads before tokens
    yield (q, k, ugly(rng, 40, 2, 16), starts_of([40]), draws_of(rng, 40)), {"scale": 0.25, "rate": 0.5, "site": 0}


def draws_of_texts(rng: np.random.Generator, starts: np.ndarray) -> np.ndarray:
    """A key for each sequence, and the places of its tokens."""
    lengths = np.diff(starts)
    keys = rng.integers(-(2**31), 2**31, (len(lengths), 2))
    places = np.concatenate([np.arange(length) for length in lengths])
    return integers(np.column_stack([np.repeat(keys, lengths, axis=0), places]))


@attention_dropped.vjp
def attention_dropped_vjp(
    grad: np.ndarray,
    q: Any,
    k: Any,
    v: Any,
    segments: Any,
    draws: Any,
    bias: Any = None,
    buckets: Any = None,
    *,
    scale: float,
    rate: float,
    site: int,
) -> tuple[Any, ...]:
    to_q, to_k, to_v = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    to_bias = np.zeros(() if bias is None else bias.shape)
    for start, end in pairwise(segments):
        here, mask = slice(start, end), step_mask(end - start, False, 0, bias, buckets)
        weights = attend(q[here], k[here], v[here], mask, scale, 0.0)[1]
        factors = kept_weights(draws[here], q.shape[1], rate, site)
        queries, outward = q[here].swapaxes(0, 1), grad[here].swapaxes(0, 1)
        to_weights = outward @ by_head(v[here], q.shape[1]).swapaxes(1, 2) * factors
        to_logits = softmax_slope(weights, to_weights)
        if bias is not None:
            np.add.at(to_bias, by_distance(buckets, end - start), np.moveaxis(to_logits, 0, 2))
        to_scores = to_logits * scale
        to_q[here] = (to_scores @ by_head(k[here], q.shape[1])).swapaxes(0, 1)
        to_k[here] = to_groups(to_scores.swapaxes(1, 2) @ queries, k.shape[1])
        to_v[here] = to_groups((weights * factors).swapaxes(1, 2) @ outward, v.shape[1])
    return to_q, to_k, to_v, None, None, None if bias is None else to_bias, None


attention_dropped.tolerance(f32=chain(256), because="the error of scores enters the exponent, as in attention")
