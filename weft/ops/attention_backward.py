"""The gradient of attention, in two ops: by query rows, and by key rows.

Each sums in an order of its own, which no other sequence and no number of threads changes. The first finds what the
second needs of every query's softmax: the logarithm of its sum, and the mean of the gradient at its weights.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.ops.attention import attend, attention, by_head, check_bias, check_sinks, check_step, step_mask, to_groups
from weft.ops.backward import SECOND
from weft.ops.dropout import attention_dropped, check_draws, draws_of_texts, kept_weights
from weft.ops.packed import wide
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import normal, ugly, weight
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Spec
from weft.ops.tolerance import chain


@op
def attention_back_q(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    segments: Integers,
    sinks: Weight | None = None,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    draws: Integers | None = None,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rate: float = 0.0,
    site: int = 0,
) -> tuple[Array, Array, Array]:
    """The gradient at q of attention, and two numbers of each query's softmax.  grad, q [T, H, D], k, v [T, G, D],
    segments [B+1], sinks [H], bias [K, H] and buckets [2R+1] as in attention -> [T, H, D], [T, H], [T, H]

    The first number is log(sum of e^score), with the sink's; the second the gradient at the weights, weighted by them.
    With draws [T, 3] it is the gradient of attention_dropped.
    """
    to_q, sums, means = np.zeros(q.shape), np.zeros(q.shape[:2]), np.zeros(q.shape[:2])
    for start, end in pairwise(segments):
        here = slice(start, end)
        mask = step_mask(end - start, causal, window, bias, buckets)
        _, weights, scores = attend(q[here], k[here], v[here], mask, scale, softcap, sinks)  # [H, n, m]
        weights = weights[..., : end - start]  # without the sink's, which has no value
        to_weights = grad[here].swapaxes(0, 1) @ by_head(v[here], q.shape[1]).swapaxes(1, 2)
        if draws is not None:
            to_weights = to_weights * kept_weights(draws[here], q.shape[1], rate, site)
        mean = np.sum(weights * to_weights, axis=-1)  # [H, n]
        to_scores = weights * (to_weights - mean[..., None]) * _slope(scores, scale, softcap)
        to_q[here] = (to_scores @ by_head(k[here], q.shape[1])).swapaxes(0, 1)
        logits = scores + mask
        if sinks is not None:
            logits = np.concatenate(
                [logits, np.broadcast_to(wide(sinks)[:, None, None], (*logits.shape[:2], 1))], axis=2
            )
        highest = np.max(logits, axis=-1)
        sums[here] = (highest + np.log(np.sum(np.exp(logits - highest[..., None]), axis=-1))).T
        means[here] = mean.T
    return to_q, sums, means


def _slope(scores: np.ndarray, scale: float, softcap: float) -> Any:
    """What a product of query and key changes its score by: the scale, times tanh's slope where scores are capped."""
    return scale * (1.0 - (scores / softcap) ** 2) if softcap else scale


@attention_back_q.shape
def attention_back_q_shape(
    grad: Spec,
    q: Spec,
    k: Spec,
    v: Spec,
    segments: Spec,
    sinks: Spec | None,
    bias: Spec | None,
    buckets: Spec | None,
    draws: Spec | None,
    *,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
    rate: float,
    site: int,
) -> tuple[Spec, Spec, Spec]:
    check_step("attention_back_q", q, k, v, segments, window, softcap)
    check_sinks("attention_back_q", q, sinks)
    check_bias("attention_back_q", q, k, bias, buckets)
    if draws is not None:
        check_draws("attention_back_q", q, draws, rate, site, whole=not causal and not window and sinks is None)
    require(grad == q, "attention_back_q", f"must be {q}, as q is", field="grad", given=grad)
    return q, q.like(*q.shape[:2]), q.like(*q.shape[:2])


@attention_back_q.cost
def attention_back_q_cost(
    grad: Spec,
    q: Spec,
    k: Spec,
    v: Spec,
    segments: Spec,
    sinks: Spec | None,
    bias: Spec | None,
    buckets: Spec | None,
    draws: Spec | None,
    *,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
    rate: float,
    site: int,
) -> Cost:
    one = attention.cost_of(q, k, v, segments, causal=causal, scale=scale, window=window, softcap=softcap)
    return Cost(flops=one.flops * 3 // 2, bytes=one.bytes + grad.nbytes)  # three products in place of two


def _operands(rng: np.random.Generator, lengths: list[int], heads: int, groups: int, dim: int) -> tuple[Any, ...]:
    tokens = sum(lengths)
    grad, q = normal(rng, tokens, heads, dim), normal(rng, tokens, heads, dim)
    return grad, q, normal(rng, tokens, groups, dim), normal(rng, tokens, groups, dim), starts_of(lengths)


def _cases(rng: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for lengths, heads, groups, dim in [
        ([2], 1, 1, 1),
        ([5, 1, 17], 2, 2, 32),
        ([33, 2], 4, 2, 17),
        ([31, 32, 65], 6, 2, 64),
    ]:
        given, scale = _operands(rng, lengths, heads, groups, dim), 1 / math.sqrt(dim)
        for causal in (False, True):
            yield given, {"causal": causal, "scale": scale}
            yield given, {"causal": causal, "scale": scale, "window": 4}
        yield given, {"causal": True, "scale": scale, "softcap": 1.5}
    q, k, v = (part.transpose(1, 0, 2) for part in normal(rng, 3, 2, 40, 16))  # heads before tokens
    yield (ugly(rng, 40, 2, 16), q, k, v, starts_of([40])), {"causal": True, "scale": 0.25}


def _with_draws(rng: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for (*given, sinks, table, buckets), scale in ((case[0], case[1]["scale"]) for case in _with_biases(rng)):
        own = draws_of_texts(rng, given[-1])
        attrs = {"causal": False, "scale": scale, "rate": 0.25, "site": 3}
        yield (*given, sinks, table, buckets, own), attrs
        yield (*given, None, None, None, own), attrs


def _with_sinks(rng: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for window in (0, 4):
        sinks = normal(rng, 4, scale=3.0)
        yield (*_operands(rng, [33, 1, 2], 4, 2, 17), sinks), {"causal": True, "scale": 0.25, "window": window}


def _with_biases(rng: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Texts beyond the reach and within it; a table of halves too."""
    for lengths, reach, dtype in [([33, 1, 2], 4, "f32"), ([70, 31], 40, "f16"), ([20], 1, "bf16")]:
        buckets = rng.integers(0, 5, 2 * reach + 1).astype(np.float32)
        table = normal(rng, 5, 4, scale=2.0) if dtype == "f32" else weight(rng, dtype, 5, 4)
        given = (*_operands(rng, lengths, 4, 2, 17), None, table, buckets)
        yield given, {"causal": False, "scale": 0.25}
        yield given, {"causal": True, "scale": 0.25, "window": 9, "softcap": 2.0}


@attention_back_q.samples
def attention_back_q_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield from _cases(rng)
    yield from _with_sinks(rng)
    yield from _with_biases(rng)
    yield from _with_draws(rng)


attention_back_q.no_gradient(SECOND)
attention_back_q.tolerance(
    f32=chain(1024), because="the error of scores enters the exponent, and products of weights cancel"
)


@op
def attention_back_kv(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    sums: Array,
    means: Array,
    segments: Integers,
    bias: Weight | None = None,
    buckets: Weight | None = None,
    draws: Integers | None = None,
    *,
    causal: bool,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    rate: float = 0.0,
    site: int = 0,
) -> tuple[Array, Array]:
    """The gradients at k and v of attention.  grad, q [T, H, D], k, v [T, G, D], sums, means [T, H] as
    attention_back_q gives them, segments [B+1], bias [K, H] and buckets [2R+1] as in attention -> [T, G, D], [T, G, D]

    With draws [T, 3] they are those of attention_dropped.
    """
    to_k, to_v = np.zeros(k.shape), np.zeros(v.shape)
    for start, end in pairwise(segments):
        here = slice(start, end)
        mask = step_mask(end - start, causal, window, bias, buckets)
        scores = attend(q[here], k[here], v[here], mask, scale, softcap)[2]
        weights = np.exp(scores + mask - sums[here].T[..., None])
        queries, outward = q[here].swapaxes(0, 1), grad[here].swapaxes(0, 1)
        to_weights = outward @ by_head(v[here], q.shape[1]).swapaxes(1, 2)
        seen = weights
        if draws is not None:
            factors = kept_weights(draws[here], q.shape[1], rate, site)
            to_weights, seen = to_weights * factors, weights * factors
        to_scores = weights * (to_weights - means[here].T[..., None]) * _slope(scores, scale, softcap)
        to_k[here] = to_groups(to_scores.swapaxes(1, 2) @ queries, k.shape[1])
        to_v[here] = to_groups(seen.swapaxes(1, 2) @ outward, v.shape[1])
    return to_k, to_v


@attention_back_kv.shape
def attention_back_kv_shape(
    grad: Spec,
    q: Spec,
    k: Spec,
    v: Spec,
    sums: Spec,
    means: Spec,
    segments: Spec,
    bias: Spec | None,
    buckets: Spec | None,
    draws: Spec | None,
    *,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
    rate: float,
    site: int,
) -> tuple[Spec, Spec]:
    check_step("attention_back_kv", q, k, v, segments, window, softcap)
    check_bias("attention_back_kv", q, k, bias, buckets)
    if draws is not None:
        check_draws("attention_back_kv", q, draws, rate, site, whole=not causal and not window)
    require(grad == q, "attention_back_kv", f"must be {q}, as q is", field="grad", given=grad)
    for field, spec in (("sums", sums), ("means", means)):
        fits = spec == q.like(*q.shape[:2])
        require(fits, "attention_back_kv", f"must be [T, H] of q {q}", field=field, given=spec)
    return k, v


@attention_back_kv.cost
def attention_back_kv_cost(
    grad: Spec,
    q: Spec,
    k: Spec,
    v: Spec,
    sums: Spec,
    means: Spec,
    segments: Spec,
    bias: Spec | None,
    buckets: Spec | None,
    draws: Spec | None,
    *,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
    rate: float,
    site: int,
) -> Cost:
    one = attention.cost_of(q, k, v, segments, causal=causal, scale=scale, window=window, softcap=softcap)
    return Cost(flops=one.flops * 2, bytes=one.bytes + grad.nbytes + k.nbytes)  # four products in place of two


def _every(rng: np.random.Generator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    for cases in (_cases, _with_sinks, _with_biases, _with_draws):
        yield from cases(rng)


@attention_back_kv.samples
def attention_back_kv_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (grad, q, k, v, segments, *more), attrs in _every(rng):
        _, sums, means = attention_back_q(grad, q, k, v, segments, *more, **attrs)
        yield (grad, q, k, v, sums, means, segments, *more[1:]), attrs


attention_back_kv.no_gradient(SECOND)
attention_back_kv.tolerance(
    f32=chain(1024), because="the error of scores enters the exponent, and products of weights cancel"
)


@attention.back
def attention_back(
    grad: Any, q: Any, k: Any, v: Any, segments: Any, sinks: Any, bias: Any, buckets: Any, **attrs: Any
) -> tuple[Any, ...]:
    to_q, sums, means = attention_back_q(grad, q, k, v, segments, sinks, bias, buckets, **attrs)
    to_kv = attention_back_kv(grad, q, k, v, sums, means, segments, bias, buckets, **attrs)
    return to_q, *to_kv, None, None, None, None


@attention_dropped.back
def attention_dropped_back(
    grad: Any, q: Any, k: Any, v: Any, segments: Any, draws: Any, bias: Any, buckets: Any, **attrs: Any
) -> tuple[Any, ...]:
    attrs = {**attrs, "causal": False}
    to_q, sums, means = attention_back_q(grad, q, k, v, segments, None, bias, buckets, draws, **attrs)
    to_kv = attention_back_kv(grad, q, k, v, sums, means, segments, bias, buckets, draws, **attrs)
    return to_q, *to_kv, None, None, None, None
