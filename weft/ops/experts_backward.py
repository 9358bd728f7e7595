"""Gradients of mixtures of experts, said with ops. The choice of experts has no slope: gradients go through the weights
of those that were chosen, and through their results."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.elementwise import gated_clamped, gated_clamped_samples
from weft.ops.experts import combine, combine_samples, route, route_samples, route_slope
from weft.ops.registry import Array, Cost, Integers, Sample, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

SECOND = "second derivatives are not computed"


@op
def route_back(
    grad: Array,
    scores: Array,
    chosen: Integers,
    *,
    sigmoid: bool = False,
    normalise: bool = False,
    scale: float = 1.0,
    eps: float = 0.0,
) -> Array:
    """The gradient at the scores of route.  grad [T, top], scores [T, E], chosen i32 [T, top], as route gives it
    -> [T, E]"""
    return route_slope(grad, scores, chosen, sigmoid, normalise, scale, eps)


@route_back.shape
def route_back_shape(
    grad: Spec, scores: Spec, chosen: Spec, *, sigmoid: bool, normalise: bool, scale: float, eps: float
) -> Spec:
    require(scores.rank == 2, "route_back", "must be [T, E]", field="scores", given=scores)
    fits = chosen.rank == 2 and chosen.shape[0] == scores.shape[0]
    require(fits, "route_back", f"must be [T, top] for scores {scores}", field="chosen", given=chosen)
    require(
        grad.shape == chosen.shape, "route_back", f"must be [T, top] like chosen {chosen}", field="grad", given=grad
    )
    return scores


@route_back.cost
def route_back_cost(
    grad: Spec, scores: Spec, chosen: Spec, *, sigmoid: bool, normalise: bool, scale: float, eps: float
) -> Cost:
    return Cost(flops=20 * scores.size, bytes=2 * scores.nbytes + 2 * grad.nbytes)


@route_back.samples
def route_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (scores, bias), attrs in route_samples(rng):
        if not np.abs(scores).max() < 100:  # softmax of one expert alone has no slope
            continue
        chosen, weights = route(scores, bias, **attrs)
        rest = {name: value for name, value in attrs.items() if name != "top"}
        if scores.shape[1] > 1:  # the softmax of one is one
            yield (normal(rng, *weights.shape), scores, chosen), rest
    yield (normal(rng, 1, 1), normal(rng, 1, 1), np.zeros((1, 1), np.int32)), {"sigmoid": True}
    chosen = route(strided(rng, 5, 33), None, top=4)[0]
    yield (ugly(rng, 5, 4), strided(rng, 5, 33), chosen), {"scale": 2.0}


route_back.no_gradient(SECOND)
route_back.tolerance(f32=chain(64), because="as softmax_back, after a division; a difference of like numbers")


@route.back
def back_of_route(grads: Any, scores: Any, bias: Any = None, *, top: int, **attrs: Any) -> tuple[Any, ...]:
    chosen = route(scores, bias, top=top, **attrs)[0]
    return route_back(grads[1], scores, chosen, **attrs), None


@op
def combine_back(grad: Array, x: Array, places: Integers, weights: Array) -> tuple[Array, Array]:
    """The gradients at x and weights of combine.  grad [T, D], x [R, D], places i32 [T, top], weights [T, top]
    -> [R, D], [T, top]"""
    to_x, _, to_weights, *_ = combine.gradient(grad, x, places, weights)
    return to_x, to_weights


@combine_back.shape
def combine_back_shape(grad: Spec, x: Spec, places: Spec, weights: Spec) -> tuple[Spec, Spec]:
    wanted = combine.infer((x, places, weights, None, None), {})[0]
    require(grad == wanted, "combine_back", f"must be {wanted}", field="grad", given=grad)
    return x, weights


@combine_back.cost
def combine_back_cost(grad: Spec, x: Spec, places: Spec, weights: Spec) -> Cost:
    return Cost(flops=4 * places.shape[1] * grad.size, bytes=2 * grad.nbytes + 2 * x.nbytes + 3 * weights.nbytes)


@combine_back.samples
def combine_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (x, places, weights, *_), _ in combine_samples(rng):
        yield (normal(rng, places.shape[0], x.shape[1]), x, places, weights), {}
    x, places, weights = normal(rng, 6, 33), np.asarray([[5, 0], [1, 2], [4, 3]], np.int32), normal(rng, 3, 2)
    yield (strided(rng, 3, 33), x, places, weights), {}
    yield (ugly(rng, 3, 33), x, places, weights), {}


combine_back.no_gradient(SECOND)
combine_back.tolerance(f32=chain(64), because="a product, and one sum over a row")


@op
def share_back(grad: Array, shared: Array, share: Array) -> tuple[Array, Array]:
    """The gradients at `shared` and `share` of combine.  grad, shared [T, D], share [T, 1] -> [T, D], [T, 1]"""
    return grad * share, np.sum(grad * shared, axis=1, keepdims=True)


@share_back.shape
def share_back_shape(grad: Spec, shared: Spec, share: Spec) -> tuple[Spec, Spec]:
    require(grad == shared, "share_back", f"must be {shared}, as shared is", field="grad", given=grad)
    fits = share.shape == (shared.shape[0], 1)
    require(fits, "share_back", f"must be [T, 1] for shared {shared}", field="share", given=share)
    return shared, share


@share_back.cost
def share_back_cost(grad: Spec, shared: Spec, share: Spec) -> Cost:
    return Cost(flops=3 * grad.size, bytes=3 * grad.nbytes + 2 * share.nbytes)


@share_back.samples
def share_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, dim in [(1, 1), (3, 65), (17, 64)]:
        yield (normal(rng, tokens, dim), normal(rng, tokens, dim), normal(rng, tokens, 1)), {}
    yield (strided(rng, 5, 33), strided(rng, 5, 33), normal(rng, 5, 1)), {}
    yield (ugly(rng, 5, 33), normal(rng, 5, 33), normal(rng, 5, 1)), {}


share_back.no_gradient(SECOND)
share_back.tolerance(f32=chain(64), because="a product, and one sum over a row")


@combine.back
def back_of_combine(
    grad: Any, x: Any, places: Any, weights: Any, shared: Any = None, share: Any = None
) -> tuple[Any, ...]:
    to_x, to_weights = combine_back(grad, x, places, weights)
    rest = (None, None) if shared is None else tuple(share_back(grad, shared, share))
    return to_x, None, to_weights, *rest


@op(in_place=(("gate", "grad"), ("up",)))
def gated_clamped_back(grad: Array, gate: Array, up: Array, *, limit: float, alpha: float) -> tuple[Array, Array]:
    """The gradients at gate and up of gated_clamped.  grad, gate, up [...] -> [...], [...]"""
    to_gate, to_up = gated_clamped.gradient(grad, gate, up, limit=limit, alpha=alpha)
    return to_gate, to_up


@gated_clamped_back.shape
def gated_clamped_back_shape(grad: Spec, gate: Spec, up: Spec, *, limit: float, alpha: float) -> tuple[Spec, Spec]:
    for field, spec in (("gate", gate), ("up", up)):
        require(spec == grad, "gated_clamped_back", f"must be {grad}, as grad is", field=field, given=spec)
    return grad, grad


@gated_clamped_back.cost
def gated_clamped_back_cost(grad: Spec, gate: Spec, up: Spec, *, limit: float, alpha: float) -> Cost:
    return Cost(flops=30 * gate.size, bytes=5 * gate.nbytes)


@gated_clamped_back.samples
def gated_clamped_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (gate, up), attrs in gated_clamped_samples(rng):
        yield (normal(rng, *gate.shape), gate, up), attrs


gated_clamped_back.no_gradient(SECOND)
gated_clamped_back.tolerance(because="a sigmoid, good to a few units in the last place, and some products")


@gated_clamped.back
def back_of_gated_clamped(grad: Any, gate: Any, up: Any, *, limit: float, alpha: float) -> tuple[Any, ...]:
    return tuple(gated_clamped_back(grad, gate, up, limit=limit, alpha=alpha))
