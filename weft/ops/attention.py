"""Attention over a ragged batch, within the step's own tokens; over the pages of a state: paged.py.

Both have one meaning: a token sees keys of its own sequence, those up to itself when causal, and with a window W > 0
only those less than W away. Query head h reads key/value head h // (H / G). With a softcap C > 0 a score
s becomes C tanh(s / C) before the mask. Two things are optional: a sink per query head, which is one more score, of no
value; and biases by distance: bias[buckets[d + R], h] is added to a score of head h, after the cap, where the key is d
after the query. Distances beyond R have the bias of R.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.dtype import rounded_bf16
from weft.errors import ShapeError
from weft.ops.elementwise import capped
from weft.ops.matmul import round_rows
from weft.ops.packed import pack, wide
from weft.ops.reduce import softmax, softmax_slope
from weft.ops.registry import Array, Cost, Integers, Rows, Sample, Values, Weight, op, require
from weft.ops.samples import normal, ugly, weight
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

BIASES = 16_384  # query heads of a key head times distances: what a worker's scratch has room for


def mask_of(queries: np.ndarray, keys: int, causal: bool, window: int) -> np.ndarray:
    """0 where a query at its position sees the key, -inf elsewhere: [queries, keys]."""
    ahead = np.arange(keys)[None, :] - queries[:, None]  # key position minus query position
    hidden = (causal & (ahead > 0)) | ((window > 0) & (np.abs(ahead) >= window))
    return np.where(hidden, -np.inf, 0.0)


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    mask: np.ndarray,
    scale: float,
    cap: float,
    sinks: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One sequence: q [n, H, D], k, v [m, G, D], mask [n, m] or with biases [H, n, m] -> result [n, H, D], weights and
    scores [H, n, m]; with sinks [H] each row has one weight more, the sink's."""
    queries, keys, values = q.swapaxes(0, 1), by_head(k, q.shape[1]), by_head(v, q.shape[1])
    scores = queries @ keys.swapaxes(1, 2) * scale
    if cap:
        scores = capped(scores, cap)
    logits = scores + mask
    if sinks is not None:
        last = np.broadcast_to(sinks[:, None, None], (*logits.shape[:2], 1))
        logits = np.concatenate([logits, last], axis=2)
    weights = softmax.reference(logits)
    return (weights[..., : len(k)] @ values).swapaxes(0, 1), weights, scores


def step_mask(tokens: int, causal: bool, window: int, bias: Any = None, buckets: Any = None) -> np.ndarray:
    """The mask of a whole sequence, [tokens, tokens]; with biases [H, tokens, tokens], these added."""
    mask = mask_of(np.arange(tokens), tokens, causal, window)
    return mask if bias is None else mask + _biases(bias, buckets, tokens)


def _biases(bias: Any, buckets: np.ndarray, tokens: int) -> np.ndarray:
    """What is added to the scores of a sequence: bias [K, H], buckets [2R+1] -> [H, tokens, tokens]."""
    return np.moveaxis(wide(bias)[by_distance(buckets, tokens)], 2, 0)


def by_distance(buckets: np.ndarray, tokens: int) -> np.ndarray:
    """The row of the table for every query and key of a sequence: [tokens, tokens]."""
    reach = len(buckets) // 2
    ahead = np.arange(tokens)[None, :] - np.arange(tokens)[:, None]
    rows: np.ndarray = buckets[np.clip(ahead, -reach, reach) + reach].astype(int)
    return rows


def by_head(x: np.ndarray, heads: int) -> np.ndarray:
    """Keys or values [m, G, D] as every query head sees them: [H, m, D]."""
    return np.repeat(x, heads // x.shape[1], axis=1).swapaxes(0, 1)


def check_heads(where: str, q: Spec, heads: Any, dim: Any, window: int, softcap: float) -> None:
    require(q.rank == 3, where, "must be [T, H, D]", field="q", given=q)
    fits = q.shape[2] == dim and q.shape[1] % heads == 0
    what = f"must have heads of {dim} channels, a multiple of the {heads} key heads"
    require(fits, where, what, field="q", given=q)
    require(window >= 0, where, "must be 0 (none) or a number of tokens", field="window", given=window)
    require(softcap >= 0, where, "must be 0 (none) or the largest score", field="softcap", given=softcap)


def check_sinks(where: str, q: Spec, sinks: Spec | None) -> None:
    fits = sinks is None or sinks.is_vector(q.shape[1])
    require(fits, where, f"must be one number for each head of q {q}", field="sinks", given=sinks)


def check_bias(where: str, q: Spec, k: Spec, bias: Spec | None, buckets: Spec | None) -> None:
    if bias is None and buckets is None:
        return
    if bias is None or buckets is None:
        raise ShapeError(where, "come together, bias [K, H] and buckets [2R+1]", field="bias, buckets")
    fits = bias.rank == 2 and bias.shape[1] == q.shape[1] and not bias.dtype.quantised
    require(fits, where, f"must be floats [K, H] for q {q}", field="bias", given=bias)
    fits = buckets.rank == 1 and buckets.is_vector(buckets.shape[0]) and buckets.shape[0] % 2 == 1
    require(fits, where, "must be [2R+1]", field="buckets", given=buckets)
    few = q.shape[1] // k.shape[1] * (buckets.shape[0] + 31) <= BIASES
    require(few, where, f"must be less than {BIASES} for the heads of a key head", field="buckets", given=buckets)


def check_step(where: str, q: Spec, k: Spec, v: Spec, segments: Spec, window: int = 0, softcap: float = 0.0) -> None:
    """Raise ShapeError unless queries, keys and values belong to the tokens of one step."""
    require(k.rank == 3 and k == v, where, f"must be [T, G, D] as k is; k is {k}", field="v", given=v)
    check_heads(where, q, k.shape[1], k.shape[2], window, softcap)
    require(k.shape[0] == q.shape[0], where, f"must have the tokens of q {q}", field="k", given=k)
    require(segments.rank == 1, where, "must be [B+1]", field="segments", given=segments)


@op
def attention(
    q: Array,
    k: Array,
    v: Array,
    segments: Integers,
    sinks: Weight | None = None,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Softmax(q kᵀ * scale) v within each sequence.  q [T, H, D], k, v [T, G, D], segments [B+1], sinks [H],
    bias [K, H], buckets [2R+1] -> [T, H, D]
    """
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        mask = step_mask(end - start, causal, window, bias, buckets)
        out[start:end] = attend(q[start:end], k[start:end], v[start:end], mask, scale, softcap, sinks)[0]
    return out


@attention.shape
def attention_shape(
    q: Spec,
    k: Spec,
    v: Spec,
    segments: Spec,
    sinks: Spec | None,
    bias: Spec | None,
    buckets: Spec | None,
    *,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
) -> Spec:
    check_step("attention", q, k, v, segments, window, softcap)
    check_sinks("attention", q, sinks)
    check_bias("attention", q, k, bias, buckets)
    return q


@attention.cost
def attention_cost(
    q: Spec, k: Spec, v: Spec, segments: Spec, *_: Spec | None, causal: bool, scale: float, window: int, softcap: float
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
        sinks, table = normal(rng, heads, scale=3.0), table_of(rng, heads)
        yield (q, k, v, starts_of(lengths), sinks), {"causal": True, "scale": scale, "window": 4}
        yield (q, k, v, starts_of(lengths), sinks, *table), {"causal": True, "scale": scale, "softcap": 1.5}
        yield (q, k, v, starts_of(lengths), None, *table), {"causal": False, "scale": scale}
    packed = (weight(rng, "f16", 5, 2), table_of(rng, 2)[1])
    q, k, v = normal(rng, 50, 2, 16), normal(rng, 50, 1, 16), normal(rng, 50, 1, 16)
    yield (q, k, v, starts_of([50]), None, *packed), {"causal": False, "scale": 0.25, "window": 30}
    view = normal(rng, 3, 2, 40, 16)  # heads before tokens, as a transposed view
    q, k, v = (part.transpose(1, 0, 2) for part in view)
    yield (q, k, v, starts_of([40])), {"causal": True, "scale": 0.25}
    q, k, v = normal(rng, 50, 2, 16, scale=3.0), normal(rng, 50, 1, 16, scale=3.0), ugly(rng, 50, 1, 16)
    yield (q, k, v, starts_of([50])), {"causal": False, "scale": 0.25}


def table_of(rng: np.random.Generator, heads: int) -> tuple[np.ndarray, np.ndarray]:
    """Biases of five buckets, and the buckets of distances up to 20 either way."""
    return normal(rng, 5, heads), rng.integers(0, 5, 41).astype(np.float32)


@attention.vjp
def attention_vjp(
    grad: np.ndarray,
    q: Any,
    k: Any,
    v: Any,
    segments: Any,
    sinks: Any = None,
    bias: Any = None,
    buckets: Any = None,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> tuple[Any, ...]:
    to_q, to_k, to_v = np.zeros(q.shape), np.zeros(k.shape), np.zeros(v.shape)
    to_sinks, to_bias = np.zeros(q.shape[1]), np.zeros(() if bias is None else bias.shape)
    for start, end in pairwise(segments):
        here = slice(start, end)
        tokens = end - start
        mask = step_mask(tokens, causal, window, bias, buckets)
        _, weights, scores = attend(q[here], k[here], v[here], mask, scale, softcap, sinks)  # [H, n, m]
        queries, outward = q[here].swapaxes(0, 1), grad[here].swapaxes(0, 1)
        to_weights = outward @ by_head(v[here], q.shape[1]).swapaxes(1, 2)
        if sinks is not None:
            to_weights = np.concatenate([to_weights, np.zeros((*to_weights.shape[:2], 1))], axis=2)  # it has no value
        to_logits = softmax_slope(weights, to_weights)
        if sinks is not None:
            to_sinks += to_logits[..., -1].sum(axis=1)
        weights, to_logits = weights[..., :tokens], to_logits[..., :tokens]
        if bias is not None:
            np.add.at(to_bias, by_distance(buckets, tokens), np.moveaxis(to_logits, 0, 2))
        to_scores = to_logits * scale
        if softcap:
            to_scores = to_scores * (1.0 - (scores / softcap) ** 2)  # tanh's slope, from its value
        to_q[here] = (to_scores @ by_head(k[here], q.shape[1])).swapaxes(0, 1)
        to_k[here] = to_groups(to_scores.swapaxes(1, 2) @ queries, k.shape[1])
        to_v[here] = to_groups(weights.swapaxes(1, 2) @ outward, v.shape[1])
    extras = (None if sinks is None else to_sinks, None if bias is None else to_bias, None)
    return to_q, to_k, to_v, None, *extras


def to_groups(x: np.ndarray, groups: int) -> np.ndarray:
    """Gradients [H, m, D] added up over the query heads that share a key head: [m, G, D]."""
    return x.reshape(groups, -1, *x.shape[1:]).sum(axis=1).swapaxes(0, 1)


attention.tolerance(f32=chain(256), because="the error of scores up to 30, an f32 chain, enters the exponent")

BF16_DIM = 128  # the longest head that the ops in bfloat16 and half precision take


@op
def attention_bf16(
    q: Values,
    k: Values,
    v: Values,
    segments: Integers,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    *,
    scale: float,
    rounded: bool = False,
) -> Array | Rows:
    """Attention of every token to its whole sequence, in bfloat16.  q [T, H, D], k, v [T, G, D], segments [B+1],
    bias [K, H], buckets [2R+1] -> [T, H, D]

    q * scale * log2(e), k and v are rounded to bfloat16. So are the weights, powers of two, before they multiply v.
    q, k and v have one type, f32 or bf16. The result is f32, or with `rounded` bf16 as round_rows would make it.
    """
    queries, keys, values = rounded_queries(wide(q), scale), rounded_bf16(wide(k)), rounded_bf16(wide(v))
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        here, mask = slice(start, end), step_mask(end - start, False, 0, bias, buckets)
        out[here] = attend(queries[here], keys[here], values[here], mask, math.log(2), 0.0)[0]
    return pack(rounded_bf16(out), "bf16") if rounded else out


def rounded_queries(q: np.ndarray, scale: float) -> np.ndarray:
    """q * scale * log2(e), rounded to bfloat16: their products with keys times ln 2 are scores."""
    by = np.float32(np.float32(scale) * np.float32(math.log2(math.e)))
    return rounded_bf16(q.astype(np.float32) * by)


@attention_bf16.shape
def attention_bf16_shape(
    q: Spec,
    k: Spec,
    v: Spec,
    segments: Spec,
    bias: Spec | None,
    buckets: Spec | None,
    *,
    scale: float,
    rounded: bool,
) -> Spec:
    check_step("attention_bf16", q, k, v, segments)
    check_bias("attention_bf16", q, k, bias, buckets)
    check_dim("attention_bf16", q)
    require(q.dtype == k.dtype, "attention_bf16", f"must have the type of q {q}", field="k", given=k)
    return q.like(*q.shape, dtype="bf16" if rounded else "f32")


def check_dim(where: str, q: Spec) -> None:
    fits = isinstance(q.shape[2], int) and q.shape[2] <= BF16_DIM
    plain = where.rpartition("_")[0]
    require(fits, where, f"must have heads of at most {BF16_DIM}", field="q", given=q, advice=f"use {plain}")


def _whole_cost(q: Spec, k: Spec, v: Spec, segments: Spec) -> Cost:
    tokens, sequences = q.shape[0], segments.shape[0] - 1
    seen = -(-tokens // max(sequences, 1))  # as for attention: sequences of one length
    return Cost(flops=4 * q.size * seen, bytes=2 * q.nbytes + k.nbytes + v.nbytes + segments.nbytes)


@attention_bf16.cost
def attention_bf16_cost(
    q: Spec, k: Spec, v: Spec, segments: Spec, *_: Spec | None, scale: float, rounded: bool
) -> Cost:
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
        yield (q, k, v, starts_of(lengths), *table_of(rng, heads)), {"scale": 1 / math.sqrt(dim)}
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
def attention_half(
    q: Array,
    k: Array,
    v: Array,
    segments: Integers,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    *,
    scale: float,
) -> Array:
    """Attention of every token to its whole sequence, in half precision or better.  q [T, H, D], k, v [T, G, D],
    segments [B+1], bias [K, H], buckets [2R+1] -> [T, H, D]

    Levels with half-precision arithmetic use it, for short sums too: scores beyond 65,504 / log2(e) overflow there.
    Other levels compute as `attention` does.
    """
    out = np.zeros(q.shape)
    for start, end in pairwise(segments):
        here, mask = slice(start, end), step_mask(end - start, False, 0, bias, buckets)
        out[here] = attend(q[here], k[here], v[here], mask, scale, 0.0)[0]
    return out


@attention_half.shape
def attention_half_shape(
    q: Spec, k: Spec, v: Spec, segments: Spec, bias: Spec | None, buckets: Spec | None, *, scale: float
) -> Spec:
    check_step("attention_half", q, k, v, segments)
    check_bias("attention_half", q, k, bias, buckets)
    check_dim("attention_half", q)
    return q


@attention_half.cost
def attention_half_cost(q: Spec, k: Spec, v: Spec, segments: Spec, *_: Spec | None, scale: float) -> Cost:
    return _whole_cost(q, k, v, segments)


@attention_half.samples
def attention_half_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _whole_samples(rng)


attention_half.no_gradient("half precision is for inference; training runs with f32 activations")
attention_half.tolerance(
    f32=2.0**-8, because="scores of up to 12 are halves: 2^-9 of error in the exponent, and more in sums"
)
