"""Mixtures of experts: which experts a token goes to, its rows grouped by expert, and the weighted sum of the results.

Between `group` and `combine` a mixture is made of ordinary ops: `take_rows` brings the rows of each expert together,
and `matmul` with `starts` multiplies each expert's rows with its own matrix.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.ops.reduce import softmax_slope
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import integers, normal, strided, ugly
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

MOST_EXPERTS = 2**16  # a worker keeps a token's scores in its scratch memory


@op
def route(
    scores: Array,
    bias: Weight | None = None,
    *,
    top: int,
    sigmoid: bool = False,
    normalise: bool = False,
    scale: float = 1.0,
    eps: float = 0.0,
) -> tuple[Integers, Array]:
    """The `top` experts of each token, best first, and their weights.  scores [T, E], bias [E] or absent ->
    chosen i32 [T, top], weights [T, top]

    Weights are the softmax of all of a token's scores, or the sigmoid of each. Experts are ranked by score, or where
    there is a bias by weight plus bias; of equals the first comes first. `normalise` divides a token's weights by their
    sum plus `eps`; then all are multiplied by `scale`.
    """
    shares = shares_of(scores, sigmoid)
    ranks = scores if bias is None else shares + bias
    chosen = np.argsort(-ranks, axis=1, kind="stable")[:, :top].astype(np.int32)
    weights = np.take_along_axis(shares, chosen, axis=1)
    if normalise:
        weights = weights / (weights.sum(axis=1, keepdims=True) + eps)
    return chosen, weights * scale


def shares_of(scores: np.ndarray, sigmoid: bool) -> np.ndarray:
    """The sigmoid of each score, or the softmax of each row."""
    if sigmoid:
        return 1 / (1 + np.exp(-scores))
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@route.shape
def route_shape(
    scores: Spec, bias: Spec | None, *, top: int, sigmoid: bool, normalise: bool, scale: float, eps: float
) -> tuple[Spec, Spec]:
    fits = scores.rank == 2 and isinstance(scores.shape[1], int) and scores.shape[1] <= MOST_EXPERTS
    require(fits, "route", f"must be [T, E], at most {MOST_EXPERTS} experts", field="scores", given=scores)
    experts = scores.shape[1]
    require(0 < top <= experts, "route", f"must be 1 to {experts}", field="top", given=top)
    if bias is not None:
        require(bias.is_vector(experts), "route", f"must be f32[{experts}]", field="bias", given=bias)
    return scores.like(scores.shape[0], top, dtype="i32"), scores.like(scores.shape[0], top)


@route.cost
def route_cost(
    scores: Spec, bias: Spec | None, *, top: int, sigmoid: bool, normalise: bool, scale: float, eps: float
) -> Cost:
    return Cost(flops=(20 + top) * scores.size, bytes=scores.nbytes + 8 * top * scores.shape[0])


@route.samples
def route_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, experts, top in [(1, 1, 1), (3, 8, 2), (17, 65, 8), (5, 128, 8)]:
        for sigmoid in (False, True):
            scores, bias = normal(rng, tokens, experts, scale=2.0), normal(rng, experts, scale=0.3)
            yield (scores, None), {"top": top, "sigmoid": sigmoid}
            eps = 1e-6 if experts > 1 else 0.25  # of one expert alone nothing else has a slope
            yield (scores, bias), {"top": top, "sigmoid": sigmoid, "normalise": True, "scale": 2.5, "eps": eps}
    yield (strided(rng, 5, 33), None), {"top": 4, "normalise": True}
    yield (ugly(rng, 5, 33), None), {"top": 4}
    yield (np.zeros((2, 20), np.float32), None), {"top": 3}  # of equals the first


@route.vjp
def route_vjp(
    grads: Any,
    scores: np.ndarray,
    bias: Any = None,
    *,
    top: int,
    sigmoid: bool = False,
    normalise: bool = False,
    scale: float = 1.0,
    eps: float = 0.0,
) -> tuple[Any, ...]:
    """Where a step changes no choice; the bias decides nothing else."""
    chosen = route.reference(scores, bias, top=top, sigmoid=sigmoid)[0]
    to_scores = route_slope(grads[1], scores, chosen, sigmoid, normalise, scale, eps)
    return to_scores, None if bias is None else np.zeros(bias.shape)


def route_slope(
    grad: np.ndarray, scores: np.ndarray, chosen: np.ndarray, sigmoid: bool, normalise: bool, scale: float, eps: float
) -> np.ndarray:
    """The gradient at the scores [T, E] from that at the weights of the chosen experts [T, top]."""
    shares = shares_of(scores, sigmoid)
    to_weights, picked = grad * scale, np.take_along_axis(shares, chosen, axis=1)
    if normalise:
        total = picked.sum(axis=1, keepdims=True) + eps
        to_weights = (to_weights - np.sum(to_weights * picked, axis=1, keepdims=True) / total) / total
    to_shares = np.zeros(shares.shape)
    np.put_along_axis(to_shares, chosen, to_weights, axis=1)
    return shares * (1 - shares) * to_shares if sigmoid else softmax_slope(shares, to_shares)


route.tolerance(f32=chain(64), because="as softmax, then one division")


@op
def group(chosen: Integers, *, experts: int) -> tuple[Integers, Integers, Integers]:
    """The choices of all tokens, sorted by expert.  chosen i32 [T, top] -> rows i32 [T * top], starts i32 [E+1],
    places i32 [T, top]

    rows[p] is the token of the p-th choice; those of expert e are starts[e] to starts[e + 1], in the order of tokens.
    places[t, k] is where the k-th choice of token t went.
    """
    if chosen.size and (chosen.min() < 0 or chosen.max() >= experts):
        raise InputError("group", f"must be 0 to {experts - 1}", field="chosen", given=int(chosen.max()))
    order = np.argsort(chosen.reshape(-1), kind="stable")
    places = np.empty(chosen.size, np.int32)
    places[order] = np.arange(chosen.size, dtype=np.int32)
    starts = np.concatenate([[0], np.cumsum(np.bincount(chosen.reshape(-1), minlength=experts))])
    return integers(order // chosen.shape[1]), integers(starts), places.reshape(chosen.shape)


@group.shape
def group_shape(chosen: Spec, *, experts: int) -> tuple[Spec, Spec, Spec]:
    fits = chosen.rank == 2 and isinstance(chosen.shape[1], int)
    require(fits, "group", "must be [T, top]", field="chosen", given=chosen)
    require(0 < experts <= MOST_EXPERTS, "group", f"must be 1 to {MOST_EXPERTS}", field="experts", given=experts)
    return chosen.like(chosen.shape[0] * chosen.shape[1]), chosen.like(experts + 1), chosen


@group.cost
def group_cost(chosen: Spec, *, experts: int) -> Cost:
    return Cost(flops=3 * chosen.size, bytes=3 * chosen.nbytes + 4 * experts)


@group.samples
def group_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, experts, top in [(1, 1, 1), (3, 8, 2), (17, 65, 8), (200, 4, 2)]:
        chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top]
        yield (integers(chosen),), {"experts": experts}
    yield (integers(np.full((9, 1), 3)),), {"experts": 5}  # all to one expert


group.no_gradient("its operands and results are integers")
group.tolerance(f32=0.0, because="integers, which are counted")


@op
def combine(
    x: Array, places: Integers, weights: Array, shared: Array | None = None, share: Array | None = None
) -> Array:
    """The weighted sum of the rows of each token.  x [R, D], places [T, top], weights [T, top], shared [T, D] and share
    [T, 1], or neither -> [T, D]

    `shared` is a result that all tokens have, times `share`. The sum is in the order of the choices, with the shared
    result last, so it does not depend on the other tokens of the step.
    """
    total = (x[places] * weights[:, :, None]).sum(axis=1)
    return total if shared is None or share is None else total + shared * share


@combine.shape
def combine_shape(x: Spec, places: Spec, weights: Spec, shared: Spec | None, share: Spec | None) -> Spec:
    require(x.rank == 2, "combine", "must be [R, D]", field="x", given=x)
    fits = places.rank == 2 and places.shape == weights.shape
    require(fits, "combine", f"must be [T, top], like places {places}", field="weights", given=weights)
    result = x.like(places.shape[0], x.shape[1])
    if shared is not None or share is not None:
        fits = shared is not None and shared.shape == result.shape
        require(fits, "combine", f"must be [T, D], like the result {result}", field="shared", given=shared)
        fits = share is not None and share.shape == (places.shape[0], 1)
        require(fits, "combine", f"must be [T, 1] for the result {result}", field="share", given=share)
    return result


@combine.cost
def combine_cost(x: Spec, places: Spec, weights: Spec, shared: Spec | None, share: Spec | None) -> Cost:
    out, more = places.shape[0] * x.shape[1], 0 if shared is None else 1
    flops = 2 * (places.shape[1] + more) * out
    return Cost(flops=flops, bytes=x.nbytes + 4 * (1 + more) * out + places.nbytes + weights.nbytes)


@combine.samples
def combine_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, top, dim in [(1, 1, 1), (3, 2, 65), (17, 8, 64)]:
        places = integers(rng.permutation(tokens * top).reshape(tokens, top))
        x, weights = normal(rng, tokens * top, dim), normal(rng, tokens, top)
        yield (x, places, weights), {}
        yield (x, places, weights, normal(rng, tokens, dim), normal(rng, tokens, 1)), {}
    yield (ugly(rng, 4, 65), integers(np.array([[3], [0]])), normal(rng, 2, 1)), {}
    yield (strided(rng, 6, 33), integers(np.array([[5, 0], [1, 1]])), normal(rng, 2, 2)), {}


@combine.vjp
def combine_vjp(
    grad: np.ndarray, x: np.ndarray, places: Any, weights: Any, shared: Any = None, share: Any = None
) -> tuple[Any, ...]:
    to_x = np.zeros(x.shape)
    np.add.at(to_x, places, weights[:, :, None] * grad[:, None, :])
    to_weights = np.einsum("tkd,td->tk", x[places], grad)
    if shared is None:
        return to_x, None, to_weights, None, None
    return to_x, None, to_weights, grad * share, np.sum(grad * shared, axis=1, keepdims=True)


combine.tolerance(f32=chain(16), because="one chain over the choices")
