"""Attention over a ragged batch: within the step's own tokens, and over the pages of a key/value state.

Both have one meaning: a token sees keys of its own sequence, those up to itself when causal, and with a window W > 0
only those less than W away. Query head h reads key/value head h // (H / G). With a softcap C > 0 a score
s becomes C tanh(s / C) before the mask.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.dtype import rounded_bf16
from weft.ops.elementwise import capped
from weft.ops.matmul import round_rows
from weft.ops.packed import pack, wide
from weft.ops.reduce import softmax, softmax_slope
from weft.ops.registry import Array, Cost, Integers, Rows, Sample, State, Values, op, require
from weft.ops.samples import normal, paged, ugly
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Spec
from weft.ops.state import PAGE
from weft.ops.tolerance import chain


def mask_of(queries: np.ndarray, keys: int, causal: bool, window: int) -> np.ndarray:
    """0 where a query at its position sees the key, -inf elsewhere: [queries, keys]."""
    ahead = np.arange(keys)[None, :] - queries[:, None]  # key position minus query position
    hidden = (causal & (ahead > 0)) | ((window > 0) & (np.abs(ahead) >= window))
    return np.where(hidden, -np.inf, 0.0)


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, scale: float, cap: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sequence: q [n, H, D], k, v [m, G, D], mask [n, m] -> result [n, H, D], weights and scores [H, n, m]."""
    queries, keys, values = q.swapaxes(0, 1), by_head(k, q.shape[1]), by_head(v, q.shape[1])
    scores = queries @ keys.swapaxes(1, 2) * scale
    if cap:
        scores = capped(scores, cap)
    weights = softmax.reference(scores + mask)
    return (weights @ values).swapaxes(0, 1), weights, scores


def by_head(x: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [m, G, D] as every query head sees them: [H, m, D]."""
    return np.repeat(x, heads // x.shape[1], axis=1).swapaxes(0, 1)


def _check(where: str, q: Spec, heads: Any, dim: Any, window: int, softcap: float) -> None:
    require(q.rank == 3, where, "must be [T, H, D]", field="q", given=q)
    fits = q.shape[2] == dim and q.shape[1] % heads == 0
    what = f"must have heads of {dim} channels, a multiple of the {heads} key heads"
    require(fits, where, what, field="q", given=q)
    require(window >= 0, where, "must be 0 (none) or a number of tokens", field="window", given=window)
    require(softcap >= 0, where, "must be 0 (none) or the largest score", field="softcap", given=softcap)


def check_step(where: str, q: Spec, k: Spec, v: Spec, segments: Spec, window: int = 0, softcap: float = 0.0) -> None:
    """Raise ShapeError unless queries, keys and values belong to the tokens of one step."""
    require(k.rank == 3 and k == v, where, f"must be [T, G, D] as k is; k is {k}", field="v", given=v)
    _check(where, q, k.shape[1], k.shape[2], window, softcap)
    require(k.shape[0] == q.shape[0], where, f"must have the tokens of q {q}", field="k", given=k)
    require(segments.rank == 1, where, "must be [B+1]", field="segments", given=segments)


@op
def attention(
    q: Array,
    k: Array,
    v: Array,
    segments: Integers,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Softmax(q kᵀ * scale) v within each sequence.  q [T, H, D], k, v [T, G, D], segments [B+1] -> [T, H, D]"""
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        mask = mask_of(np.arange(end - start), end - start, causal, window)
        out[start:end] = attend(q[start:end], k[start:end], v[start:end], mask, scale, softcap)[0]
    return out


@attention.shape
def attention_shape(
    q: Spec, k: Spec, v: Spec, segments: Spec, *, causal: bool, scale: float, window: int, softcap: float
) -> Spec:
    check_step("attention", q, k, v, segments, window, softcap)
    return q


@attention.cost
def attention_cost(
    q: Spec, k: Spec, v: Spec, segments: Spec, *, causal: bool, scale: float, window: int, softcap: float
) -> Cost:
    tokens, sequences = q.shape[0], segments.shape[0] - 1
    seen = -(-tokens // max(sequences, 1))  # sequences of one length: the segments' values are not known here
    seen = min(seen, window if causal else 2 * window - 1) if window else seen
    flops = 4 * q.size * seen // (2 if causal else 1)
    return Cost(flops=flops, bytes=2 * q.nbytes + k.nbytes + v.nbytes + segments.nbytes)


@attention.samples
def attention_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for lengths, heads, kv_heads, dim in [
        ([1], 1, 1, 1),
        ([5, 1, 17], 2, 2, 32),
        ([33, 2], 4, 2, 17),
        ([31, 32, 65], 6, 2, 64),
    ]:
        tokens, scale = sum(lengths), 1 / math.sqrt(dim)
        q = normal(rng, tokens, heads, dim)
        k, v = normal(rng, tokens, kv_heads, dim), normal(rng, tokens, kv_heads, dim)
        for causal in (False, True):
            yield (q, k, v, starts_of(lengths)), {"causal": causal, "scale": scale}
        for causal in (False, True):
            yield (q, k, v, starts_of(lengths)), {"causal": causal, "scale": scale, "window": 4}
        yield (q, k, v, starts_of(lengths)), {"causal": True, "scale": scale, "softcap": 1.5}
    view = normal(rng, 3, 2, 40, 16)  # heads before tokens, as a transposed view
    q, k, v = (part.transpose(1, 0, 2) for part in view)
    yield (q, k, v, starts_of([40])), {"causal": True, "scale": 0.25}
    q, k, v = normal(rng, 50, 2, 16, scale=3.0), normal(rng, 50, 1, 16, scale=3.0), ugly(rng, 50, 1, 16)
    yield (q, k, v, starts_of([50])), {"causal": False, "scale": 0.25}


@attention.vjp
def attention_vjp(
    grad: np.ndarray,
    q: Any,
    k: Any,
    v: Any,
    segments: Any,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Any, ...]:
    to_q, to_k, to_v = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    for start, end in pairwise(segments):
        here = slice(start, end)
        mask = mask_of(np.arange(end - start), end - start, causal, window)
        _, weights, scores = attend(q[here], k[here], v[here], mask, scale, softcap)  # [H, n, m]
        queries, outward = q[here].swapaxes(0, 1), grad[here].swapaxes(0, 1)
        to_weights = outward @ by_head(v[here], q.shape[1]).swapaxes(1, 2)
        to_scores = softmax_slope(weights, to_weights) * scale
        if softcap:
            to_scores = to_scores * (1.0 - (scores / softcap) ** 2)  # tanh's slope, from its value
        to_q[here] = (to_scores @ by_head(k[here], q.shape[1])).swapaxes(0, 1)
        to_k[here] = to_groups(to_scores.swapaxes(1, 2) @ queries, k.shape[1])
        to_v[here] = to_groups(weights.swapaxes(1, 2) @ outward, v.shape[1])
    return to_q, to_k, to_v, None


def to_groups(x: np.ndarray, groups: int) -> np.ndarray:
    """Gradients [H, m, D] added up over the query heads that share a key head: [m, G, D]."""
    return x.reshape(groups, -1, *x.shape[1:]).sum(axis=1).swapaxes(0, 1)


attention.tolerance(f32=chain(256), because="the error of scores up to 30, an f32 chain, enters the exponent")

BF16_DIM = 128  # the longest head that the ops in bfloat16 and half precision take


@op
def attention_bf16(
    q: Values, k: Values, v: Values, segments: Integers, *, scale: float, rounded: bool = False
) -> Array | Rows:
    """Attention of every token to its whole sequence, in bfloat16.  q [T, H, D], k, v [T, G, D], segments [B+1]
    -> [T, H, D]

    q * scale * log2(e), k and v are rounded to bfloat16. So are the weights, powers of two, before they multiply v.
    q, k and v have one type, f32 or bf16. The result is f32, or with `rounded` bf16 as round_rows would make it.
    """
    queries, keys, values = _rounded_queries(wide(q), scale), rounded_bf16(wide(k)), rounded_bf16(wide(v))
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        here = slice(start, end)
        mask = np.zeros((end - start, end - start))
        out[here] = attend(queries[here], keys[here], values[here], mask, math.log(2), 0.0)[0]
    return pack(rounded_bf16(out), "bf16") if rounded else out


def _rounded_queries(q: np.ndarray, scale: float) -> np.ndarray:
    """q * scale * log2(e), rounded to bfloat16: their products with keys times ln 2 are scores."""
    by = np.float32(np.float32(scale) * np.float32(math.log2(math.e)))
    return rounded_bf16(q.astype(np.float32) * by)


@attention_bf16.shape
def attention_bf16_shape(q: Spec, k: Spec, v: Spec, segments: Spec, *, scale: float, rounded: bool) -> Spec:
    check_step("attention_bf16", q, k, v, segments)
    _check_dim("attention_bf16", q)
    require(q.dtype == k.dtype, "attention_bf16", f"must have the type of q {q}", field="k", given=k)
    return q.like(*q.shape, dtype="bf16" if rounded else "f32")


def _check_dim(where: str, q: Spec) -> None:
    fits = isinstance(q.shape[2], int) and q.shape[2] <= BF16_DIM
    plain = where.rpartition("_")[0]
    require(fits, where, f"must have heads of at most {BF16_DIM}", field="q", given=q, advice=f"use {plain}")


def _whole_cost(q: Spec, k: Spec, v: Spec, segments: Spec) -> Cost:
    tokens, sequences = q.shape[0], segments.shape[0] - 1
    seen = -(-tokens // max(sequences, 1))  # as for attention: sequences of one length
    return Cost(flops=4 * q.size * seen, bytes=2 * q.nbytes + k.nbytes + v.nbytes + segments.nbytes)


@attention_bf16.cost
def attention_bf16_cost(q: Spec, k: Spec, v: Spec, segments: Spec, *, scale: float, rounded: bool) -> Cost:
    return _whole_cost(q, k, v, segments)


def _whole_samples(rng: np.random.Generator) -> Iterator[Sample]:
    """Samples in which every token sees its whole sequence."""
    for lengths, heads, kv_heads, dim in [
        ([1], 1, 1, 1),
        ([5, 1, 17], 2, 2, 32),
        ([33, 2], 4, 2, 17),
        ([31, 32, 65], 6, 2, 64),
        ([3, 530], 2, 1, 33),
    ]:
        tokens = sum(lengths)
        q = normal(rng, tokens, heads, dim)
        k, v = normal(rng, tokens, kv_heads, dim), normal(rng, tokens, kv_heads, dim)
        yield (q, k, v, starts_of(lengths)), {"scale": 1 / math.sqrt(dim)}
    q, k, v = (part.transpose(1, 0, 2) for part in normal(rng, 3, 2, 40, 16))
    yield (q, k, v, starts_of([40])), {"scale": 0.25}
    q, k, v = normal(rng, 50, 2, 16, scale=3.0), normal(rng, 50, 1, 16, scale=3.0), ugly(rng, 50, 1, 16)
    yield (q, k, v, starts_of([50])), {"scale": 0.25}


@attention_bf16.samples
def attention_bf16_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _whole_samples(rng)
    q, k, v = (round_rows(normal(rng, 35, heads, 32)) for heads in (4, 2, 2))
    yield (q, k, v, starts_of([33, 2])), {"scale": 0.25}
    same = round_rows(normal(rng, 1, 2, 32)).dense()  # the mean of equal values is exact, and so is its rounding
    q, k = (round_rows(normal(rng, 9, 2, 32)) for _ in range(2))
    yield (q, k, pack(np.repeat(same, 9, axis=0), "bf16"), starts_of([9])), {"scale": 0.25, "rounded": True}


attention_bf16.no_gradient("its operands are rounded; training runs with f32 activations")
attention_bf16.tolerance(
    f32=2.0**-8, bf16=2.0**-8, because="weights are rounded to bfloat16: 2^-9 each, in one direction at worst"
)


@op
def attention_half(q: Array, k: Array, v: Array, segments: Integers, *, scale: float) -> Array:
    """Attention of every token to its whole sequence, in half precision or better.  q [T, H, D], k, v [T, G, D],
    segments [B+1] -> [T, H, D]

    Levels with half-precision arithmetic use it, for short sums too: scores beyond 65,504 / log2(e) overflow there.
    Other levels compute as `attention` does.
    """
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        here = slice(start, end)
        out[here] = attend(q[here], k[here], v[here], np.zeros((end - start, end - start)), scale, 0.0)[0]
    return out


@attention_half.shape
def attention_half_shape(q: Spec, k: Spec, v: Spec, segments: Spec, *, scale: float) -> Spec:
    check_step("attention_half", q, k, v, segments)
    _check_dim("attention_half", q)
    return q


@attention_half.cost
def attention_half_cost(q: Spec, k: Spec, v: Spec, segments: Spec, *, scale: float) -> Cost:
    return _whole_cost(q, k, v, segments)


@attention_half.samples
def attention_half_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _whole_samples(rng)


attention_half.no_gradient("half precision is for inference; training runs with f32 activations")
attention_half.tolerance(
    f32=2.0**-8, because="scores of up to 12 are halves: 2^-9 of error in the exponent, and more in sums"
)


def _page_of(pages: np.ndarray, sequence: int, position: int) -> tuple[int, int]:
    return int(pages[sequence, position // PAGE]), position % PAGE


def _check_table(where: str, tokens: Any, positions: Spec, segments: Spec, pages: Spec) -> None:
    require(positions.shape == (tokens,), where, f"must be [{tokens}]", field="positions", given=positions)
    fits = segments.rank == 1 and pages.rank == 2 and segments.shape[0] == pages.shape[0] + 1
    require(fits, where, f"must be [B, P] where segments is [B+1]; segments is {segments}", field="pages", given=pages)


@op(effect=True)
def kv_write(k: Array, v: Array, state: State, positions: Integers, segments: Integers, pages: Integers) -> None:
    """Store the step's keys and values in the state.  k, v [T, G, D], state [G, D], positions [T], segments [B+1],
    pages [B, P]

    Token t of sequence b goes to column positions[t] % PAGE of page pages[b, positions[t] // PAGE], rounded to the
    state's type. An i8 state has a scale per head: see `rounded` in weft/ops/state.py.
    """
    for b, (start, end) in enumerate(pairwise(segments)):
        for t in range(start, end):
            state.write(*_page_of(pages, b, int(positions[t])), k[t], v[t])


@kv_write.shape
def kv_write_shape(k: Spec, v: Spec, state: Spec, positions: Spec, segments: Spec, pages: Spec) -> tuple[Spec, ...]:
    require(k.rank == 3 and k == v, "kv_write", f"must be [T, G, D] as k is; k is {k}", field="v", given=v)
    require(k.shape[1:] == state.shape, "kv_write", f"must be [G, D] of k {k}", field="state", given=state)
    _check_table("kv_write", k.shape[0], positions, segments, pages)
    return ()


@kv_write.cost
def kv_write_cost(k: Spec, v: Spec, state: Spec, positions: Spec, segments: Spec, pages: Spec) -> Cost:
    return Cost(flops=0, bytes=2 * k.nbytes + 2 * k.size * state.dtype.size_bytes + positions.nbytes)


@kv_write.samples
def kv_write_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for starts, lengths, heads, dim, dtype in [
        ([0], [1], 1, 1, "f32"),
        ([0, 31, 64], [5, 2, 1], 2, 17, "f32"),
        ([3, 0], [65, 33], 3, 64, "f16"),
        ([3, 0], [65, 33], 3, 64, "bf16"),
        ([0, 31, 64], [5, 2, 1], 2, 17, "i8"),
        ([3, 0], [65, 33], 3, 64, "i8"),
    ]:
        state, *table = paged(rng, starts, lengths, heads, dim, dtype)
        yield (normal(rng, sum(lengths), heads, dim), normal(rng, sum(lengths), heads, dim), state, *table), {}
    for dtype in ("f16", "bf16", "i8"):  # views; values that f16 rounds to zero, and values near the largest f16
        state, *table = paged(rng, [30], [5], 2, 16, dtype)
        k, v = (part.transpose(1, 0, 2) for part in np.clip(ugly(rng, 2, 2, 5, 16), -6e4, 6e4))
        yield (k, v, state, *table), {}
    state, *table = paged(rng, [30], [5], 1, 20, "i8")  # a row of zeros, and one too small to have a scale
    k, v = normal(rng, 5, 1, 20), normal(rng, 5, 1, 20) * np.asarray([1e-39, 1, 0, 1e30, 1e-30], "f4")[:, None, None]
    yield (k, v, state, *table), {}


kv_write.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
kv_write.tolerance(f32=0.0, f16=0.0, because="stored values are copied or rounded once, to nearest even")


@op
def attention_paged(
    q: Array,
    state: State,
    positions: Integers,
    segments: Integers,
    pages: Integers,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Causal attention over the state.  q [T, H, D], state [G, D], positions [T], segments [B+1], pages [B, P]
    -> [T, H, D]

    Token t of sequence b sees the keys at positions up to positions[t] in the pages of b, its own included:
    kv_write runs first.
    """
    out = np.zeros(q.shape)
    for b, (start, end) in enumerate(pairwise(segments)):
        if start == end:
            continue
        k, v = state.read(pages[b], int(positions[start:end].max()) + 1)
        mask = mask_of(positions[start:end], len(k), True, window)
        out[start:end] = attend(q[start:end], k, v, mask, scale, softcap)[0]
    return out


@attention_paged.shape
def attention_paged_shape(
    q: Spec, state: Spec, positions: Spec, segments: Spec, pages: Spec, *, scale: float, window: int, softcap: float
) -> Spec:
    _check("attention_paged", q, state.shape[0], state.shape[1], window, softcap)
    _check_table("attention_paged", q.shape[0], positions, segments, pages)
    return q


@attention_paged.cost
def attention_paged_cost(
    q: Spec, state: Spec, positions: Spec, segments: Spec, pages: Spec, *, scale: float, window: int, softcap: float
) -> Cost:
    seen = pages.shape[1] * PAGE  # as if every page in the table were full: positions are not known here
    seen = min(seen, window) if window else seen
    read = 2 * pages.shape[0] * seen * state.size * state.dtype.size_bytes
    return Cost(flops=4 * q.size * seen, bytes=2 * q.nbytes + read + pages.nbytes)


@attention_paged.samples
def attention_paged_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for starts, lengths, heads, kv_heads, dim, dtype in [
        ([0], [1], 1, 1, 1, "f32"),
        ([0, 31, 64], [5, 2, 1], 2, 2, 17, "f32"),
        ([3, 0, 40], [65, 33, 1], 6, 3, 64, "f16"),
        ([100], [1], 4, 1, 32, "f32"),
        ([3, 0, 40], [65, 33, 1], 6, 3, 64, "bf16"),
        ([3, 0, 40], [65, 33, 1], 6, 3, 64, "i8"),
        ([100, 31], [1, 2], 4, 1, 17, "i8"),
    ]:
        state, *table = paged(rng, starts, lengths, kv_heads, dim, dtype)
        q = normal(rng, sum(lengths), heads, dim)
        for window in (0, 7):
            yield (q, state, *table), {"scale": 1 / math.sqrt(dim), "window": window}
        if dim > 1:
            yield (q, state, *table), {"scale": 1 / math.sqrt(dim), "window": 7, "softcap": 1.5}
    state, *table = paged(rng, [30], [40], 1, 16, "f32")
    state.value[...] = ugly(rng, *state.value.shape)
    yield (normal(rng, 2, 40, 16, scale=3.0).transpose(1, 0, 2), state, *table), {"scale": 0.25}


attention_paged.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
attention_paged.tolerance(f32=chain(256), because="as attention: the keys are the same, wherever they lie")


@op
def attention_paged_bf16(
    q: Array,
    state: State,
    positions: Integers,
    segments: Integers,
    pages: Integers,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Causal attention over the state, in bfloat16.  q [T, H, D], state [G, D], positions [T], segments [B+1],
    pages [B, P] -> [T, H, D]

    As attention_paged, with q * scale * log2(e), keys and values rounded to bfloat16. So are the weights, powers of
    two, before they multiply the values. The codes of an i8 state are exact in bfloat16: scores and weights are
    multiplied with its scales.
    """
    queries = _rounded_queries(q, scale)
    out = np.zeros(q.shape)
    for b, (start, end) in enumerate(pairwise(segments)):
        if start == end:
            continue
        k, v = state.read(pages[b], int(positions[start:end].max()) + 1)
        mask = mask_of(positions[start:end], len(k), True, window)
        if state.dtype.name != "i8":
            k, v = rounded_bf16(k), rounded_bf16(v)
        out[start:end] = attend(queries[start:end], k, v, mask, math.log(2), softcap)[0]
    return out


@attention_paged_bf16.shape
def attention_paged_bf16_shape(
    q: Spec, state: Spec, positions: Spec, segments: Spec, pages: Spec, *, scale: float, window: int, softcap: float
) -> Spec:
    _check("attention_paged_bf16", q, state.shape[0], state.shape[1], window, softcap)
    _check_table("attention_paged_bf16", q.shape[0], positions, segments, pages)
    _check_dim("attention_paged_bf16", q)
    return q


attention_paged_bf16.cost(attention_paged_cost)


@attention_paged_bf16.samples
def attention_paged_bf16_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from attention_paged_samples(rng)
    for dtype in ("f16", "i8"):
        state, *table = paged(rng, [250, 0], [10, 530], 1, 33, dtype)  # more than one block of keys
        yield (normal(rng, 540, 2, 33), state, *table), {"scale": 0.2}


attention_paged_bf16.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
attention_paged_bf16.tolerance(f32=2.0**-8, because="as attention_bf16: weights are rounded to bfloat16")
