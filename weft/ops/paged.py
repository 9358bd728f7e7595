"""Keys and values in the pages of a state: writing them, and attention over them, as attention.py means it."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.dtype import rounded_bf16
from weft.ops.attention import attend, check_dim, check_heads, check_sinks, rounded_queries
from weft.ops.packed import wide
from weft.ops.registry import Array, Cost, Integers, Sample, State, Weight, op, require
from weft.ops.samples import normal, paged, ugly
from weft.ops.spec import Spec
from weft.ops.state import KV_CODES, KV_ROTATED, PAGE, rotated
from weft.ops.tolerance import chain


def _page_of(pages: np.ndarray, sequence: int, position: int) -> tuple[int, int]:
    return int(pages[sequence, position // PAGE]), position % PAGE


def _check_table(where: str, tokens: Any, positions: Spec, segments: Spec, pages: Spec) -> None:
    require(positions.shape == (tokens,), where, f"must be [{tokens}]", field="positions", given=positions)
    fits = segments.rank == 1 and pages.rank == 2 and segments.shape[0] == pages.shape[0] + 1
    require(fits, where, f"must be [B, P] where segments is [B+1]; segments is {segments}", field="pages", given=pages)


@op(effect=True)
def kv_write(
    k: Array,
    v: Array,
    state: State,
    positions: Integers,
    segments: Integers,
    pages: Integers,
    centre: Weight | None = None,
    steady: Weight | None = None,
) -> None:
    """Store the step's keys and values in the state.  k, v [T, G, D], state [G, D], positions [T], segments [B+1],
    pages [B, P], centre [G D], steady [D]

    Token t of sequence b goes to column positions[t] % PAGE of page pages[b, positions[t] // PAGE], rounded to the
    state's type. i8, i8r and i4r have a scale per head: see `rounded` in weft/ops/state.py. `centre` * `steady` is
    subtracted from every key before it is rounded. That changes all scores of a query by the same number, and so
    none of its weights; only attention with sinks or a soft cap could tell (decision 0052).
    """
    if centre is not None and steady is not None:
        k = k - wide(centre).reshape(k.shape[1:]) * wide(steady)
    for b, (start, end) in enumerate(pairwise(segments)):
        for t in range(start, end):
            state.write(*_page_of(pages, b, int(positions[t])), k[t], v[t])


@kv_write.shape
def kv_write_shape(
    k: Spec,
    v: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    centre: Spec | None,
    steady: Spec | None,
) -> tuple[Spec, ...]:
    require(k.rank == 3 and k == v, "kv_write", f"must be [T, G, D] as k is; k is {k}", field="v", given=v)
    require(k.shape[1:] == state.shape, "kv_write", f"must be [G, D] of k {k}", field="state", given=state)
    _check_table("kv_write", k.shape[0], positions, segments, pages)
    if centre is not None or steady is not None:
        fits = centre is not None and centre.is_vector(k.shape[1] * k.shape[2])
        require(fits, "kv_write", f"must be f32[G D] of k {k}, beside steady", field="centre", given=centre)
        fits = steady is not None and steady.is_vector(k.shape[2])
        require(fits, "kv_write", f"must be f32[D] of k {k}, beside centre", field="steady", given=steady)
    return ()


@kv_write.cost
def kv_write_cost(
    k: Spec,
    v: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    centre: Spec | None,
    steady: Spec | None,
) -> Cost:
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
        ([3, 0], [65, 33], 3, 64, "i8r"),
        ([0, 31, 64], [5, 2, 1], 2, 17, "i4r"),
        ([3, 0], [65, 33], 3, 64, "i4r"),
        ([30], [5], 1, 80, "i4r"),
    ]:
        state, *table = paged(rng, starts, lengths, heads, dim, dtype)
        yield (normal(rng, sum(lengths), heads, dim), normal(rng, sum(lengths), heads, dim), state, *table), {}
    # Views; values that f16 rounds to zero, and values near the largest f16.
    for dtype in ("f16", "bf16", "i8", "i8r", "i4r"):
        state, *table = paged(rng, [30], [5], 2, 16, dtype)
        k, v = (part.transpose(1, 0, 2) for part in np.clip(ugly(rng, 2, 2, 5, 16), -6e4, 6e4))
        yield (k, v, state, *table), {}
    for dtype in ("i8", "i8r", "i4r"):  # a row of zeros, and one too small to have a scale
        state, *table = paged(rng, [30], [5], 1, 20, dtype)
        sizes = np.asarray([1e-39, 1, 0, 1e30, 1e-30], "f4")[:, None, None]
        yield (normal(rng, 5, 1, 20), normal(rng, 5, 1, 20) * sizes, state, *table), {}
    for dtype in ("i8r", "i4r"):  # whole numbers: keys less the centre are exact
        state, *table = paged(rng, [30, 0], [5, 3], 2, 20, dtype)
        k, centre = (rng.integers(-99, 100, shape).astype("f4") for shape in [(8, 2, 20), (40,)])
        steady = rng.integers(0, 2, 20).astype("f4")
        yield (k, normal(rng, 8, 2, 20), state, *table, centre, steady), {}


kv_write.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
kv_write.tolerance(f32=0.0, f16=0.0, because="stored values are copied or rounded once, to nearest even")


def _mask(positions: np.ndarray, last: np.ndarray, keys: int, window: int) -> np.ndarray:
    """0 where a query at its position sees the key, up to `last`, -inf elsewhere: [queries, keys]."""
    key = np.arange(keys)[None, :]
    hidden = (key > last[:, None]) | ((window > 0) & (positions[:, None] - key >= window))
    return np.where(hidden, -np.inf, 0.0)


def _check_reach(where: str, q: Spec, reach: Spec | None) -> None:
    if reach is not None:
        require(reach.shape == q.shape[:1], where, f"must be [T] of q {q}", field="reach", given=reach)


@op
def attention_paged(
    q: Array,
    state: State,
    positions: Integers,
    segments: Integers,
    pages: Integers,
    sinks: Weight | None = None,
    reach: Integers | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Causal attention over the state.  q [T, H, D], state [G, D], positions [T], segments [B+1], pages [B, P],
    sinks [H], reach [T] -> [T, H, D]

    Token t of sequence b sees the keys at positions up to positions[t] in the pages of b, its own included:
    kv_write runs first. With `reach` [T] it sees those up to position reach[t], which is its own or a later one that
    has been written: tokens of a picture see each other both ways. A window still begins before its own position.
    """
    out = np.zeros(q.shape)
    for b, (start, end) in enumerate(pairwise(segments)):
        if start == end:
            continue
        last = positions[start:end] if reach is None else reach[start:end]
        k, v = state.read(pages[b], int(last.max()) + 1)
        mask = _mask(positions[start:end], last, len(k), window)
        out[start:end] = attend(q[start:end], k, v, mask, scale, softcap, sinks)[0]
    return out


@attention_paged.shape
def attention_paged_shape(
    q: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    sinks: Spec | None,
    reach: Spec | None,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> Spec:
    check_heads("attention_paged", q, state.shape[0], state.shape[1], window, softcap)
    _check_table("attention_paged", q.shape[0], positions, segments, pages)
    check_sinks("attention_paged", q, sinks)
    _check_reach("attention_paged", q, reach)
    return q


@attention_paged.cost
def attention_paged_cost(
    q: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    sinks: Spec | None,
    reach: Spec | None,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> Cost:
    seen = pages.shape[1] * PAGE  # as if every page in the table were full: positions are not known here
    seen = min(seen, window) if window else seen
    read = 2 * pages.shape[0] * seen * state.size * state.dtype.size_bytes
    return Cost(flops=4 * q.size * seen, bytes=2 * q.nbytes + read + pages.nbytes)


def _reach(positions: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """The second half of each sequence's tokens is a picture."""
    reach = positions.copy()
    for start, end in pairwise(segments):
        if end - start > 1:
            reach[(start + end) // 2 : end] = positions[end - 1]
    return reach


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
        ([3, 0, 40], [65, 33, 1], 6, 3, 64, "i8r"),
        ([3, 0, 40], [65, 33, 1], 6, 3, 64, "i4r"),
        ([100, 31], [1, 2], 4, 1, 17, "i4r"),
    ]:
        state, *table = paged(rng, starts, lengths, kv_heads, dim, dtype)
        q = normal(rng, sum(lengths), heads, dim)
        for window in (0, 7):
            yield (q, state, *table), {"scale": 1 / math.sqrt(dim), "window": window}
        if dim > 1:
            yield (q, state, *table), {"scale": 1 / math.sqrt(dim), "window": 7, "softcap": 1.5}
            for window in (0, 7):
                sinks = normal(rng, heads, scale=3.0)
                yield (q, state, *table, sinks), {"scale": 1 / math.sqrt(dim), "window": window}
            reach = _reach(table[0], table[1])
            for window in (0, 7):
                yield (q, state, *table, None, reach), {"scale": 1 / math.sqrt(dim), "window": window}
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
    sinks: Weight | None = None,
    reach: Integers | None = None,
    *,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
) -> Array:
    """Causal attention over the state, in bfloat16.  q [T, H, D], state [G, D], positions [T], segments [B+1],
    pages [B, P], sinks [H], reach [T] -> [T, H, D]

    As attention_paged, with q * scale * log2(e), keys and values rounded to bfloat16. So are the weights, powers of
    two, before they multiply the values. The codes of an i8, i8r or i4r state are exact in bfloat16: scores and weights
    are multiplied with its scales. Where its rows are rotated, queries are, before they are rounded.
    """
    turned = state.dtype.name in KV_ROTATED
    queries = rotated(rounded_queries(rotated(q), scale)) if turned else rounded_queries(q, scale)
    out = np.zeros(q.shape)
    for b, (start, end) in enumerate(pairwise(segments)):
        if start == end:
            continue
        last = positions[start:end] if reach is None else reach[start:end]
        k, v = state.read(pages[b], int(last.max()) + 1)
        mask = _mask(positions[start:end], last, len(k), window)
        if state.dtype.name not in KV_CODES:
            k, v = rounded_bf16(k), rounded_bf16(v)
        out[start:end] = attend(queries[start:end], k, v, mask, math.log(2), softcap, sinks)[0]
    return out


@attention_paged_bf16.shape
def attention_paged_bf16_shape(
    q: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    sinks: Spec | None,
    reach: Spec | None,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> Spec:
    check_heads("attention_paged_bf16", q, state.shape[0], state.shape[1], window, softcap)
    _check_table("attention_paged_bf16", q.shape[0], positions, segments, pages)
    check_sinks("attention_paged_bf16", q, sinks)
    _check_reach("attention_paged_bf16", q, reach)
    check_dim("attention_paged_bf16", q)
    return q


attention_paged_bf16.cost(attention_paged_cost)


@attention_paged_bf16.samples
def attention_paged_bf16_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from attention_paged_samples(rng)
    for dtype in ("f16", "i8", "i8r", "i4r"):
        state, *table = paged(rng, [250, 0], [10, 530], 1, 33, dtype)  # more than one block of keys
        yield (normal(rng, 540, 2, 33), state, *table), {"scale": 0.2}


attention_paged_bf16.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
attention_paged_bf16.tolerance(f32=2.0**-8, because="as attention_bf16: weights are rounded to bfloat16")
