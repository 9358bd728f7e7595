"""Gradients of the recurrent layers of whole texts, said with ops: nothing is kept between steps, so there is no state
before a text. Weights are frozen: those of the convolution, and the decay and skip of Mamba2's heads."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import UnsupportedError
from weft.ops.packed import wide
from weft.ops.recurrent import causal_conv, causal_conv_samples, delta_rule, delta_rule_samples, mamba2, mamba2_samples
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

SECOND = "second derivatives are not computed"
MAX_STATE = 512  # rows of a head's state: a worker's scratch holds 16 columns of many states


@op
def causal_conv_back(grad: Array, weight: Weight, segments: Integers) -> Array:
    """The gradient at x of causal_conv, of whole texts.  grad [T, C], weight [C, W] or [C, 1, W], segments [B+1]
    -> [T, C]"""
    taps = wide(weight).reshape(weight.shape[0], -1)
    return causal_conv.gradient(grad, np.zeros(grad.shape), taps, None, None, segments)[0]


@causal_conv_back.shape
def causal_conv_back_shape(grad: Spec, weight: Spec, segments: Spec) -> Spec:
    return causal_conv.infer((grad, weight, None, None, segments, None), {})[0]


@causal_conv_back.cost
def causal_conv_back_cost(grad: Spec, weight: Spec, segments: Spec) -> Cost:
    return Cost(flops=2 * grad.size * weight.shape[-1], bytes=2 * grad.nbytes + weight.nbytes)


@causal_conv_back.samples
def causal_conv_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for operands, _ in causal_conv_samples(rng):
        if operands[2] is None:
            x, taps, _, _, starts = operands[:5]
            yield (normal(rng, *x.shape), taps, starts), {}
    starts = np.asarray([0, 3, 9], np.int32)
    yield (strided(rng, 9, 33), normal(rng, 33, 1, 4), starts), {}
    yield (ugly(rng, 9, 20), normal(rng, 20, 3), starts), {}


causal_conv_back.no_gradient(SECOND)
causal_conv_back.tolerance(because="a sum of up to 16 products in f32")


@op
def delta_rule_back(
    grad: Array,
    q: Array,
    k: Array,
    v: Array,
    decay: Array,
    beta: Array,
    segments: Integers,
    *,
    scale: float,
    tiled: bool = False,
) -> tuple[Array, Array, Array, Array, Array]:
    """The gradients at q, k, v, decay and beta of delta_rule, of whole texts.  grad, v [T, H, V], q, k [T, G, K],
    decay, beta [T, H], segments [B+1] -> [T, G, K], [T, G, K], [T, H, V], [T, H], [T, H]"""
    return delta_rule.gradient(grad, q, k, v, decay, beta, None, None, segments, scale=scale, tiled=tiled)[:5]


@delta_rule_back.shape
def delta_rule_back_shape(
    grad: Spec, q: Spec, k: Spec, v: Spec, decay: Spec, beta: Spec, segments: Spec, *, scale: float, tiled: bool
) -> tuple[Spec, ...]:
    delta_rule.infer((q, k, v, decay, beta, None, None, segments), {"scale": scale, "tiled": tiled})
    require(grad == v, "delta_rule_back", f"must be {v}, as v is", field="grad", given=grad)
    short = q.shape[2] <= MAX_STATE
    require(short, "delta_rule_back", f"must have heads of at most {MAX_STATE}", field="q", given=q)
    return q, k, v, decay, beta


@delta_rule_back.cost
def delta_rule_back_cost(
    grad: Spec, q: Spec, k: Spec, v: Spec, decay: Spec, beta: Spec, segments: Spec, *, scale: float, tiled: bool
) -> Cost:
    return Cost(flops=30 * v.size * q.shape[2], bytes=4 * q.nbytes + 3 * v.nbytes + 4 * decay.nbytes)


@delta_rule_back.samples
def delta_rule_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for operands, attrs in delta_rule_samples(rng):
        if operands[5] is None:
            yield (normal(rng, *operands[2].shape), *operands[:5], operands[7]), attrs
    q, k, v, decay, beta = operands[:5]
    across = normal(rng, 20, 9, 2).transpose(1, 2, 0)  # channels before tokens
    yield (across, q, k, ugly(rng, *v.shape), decay, beta, np.asarray([0, 4, 9], np.int32)), {"scale": 1.0}
    long = [normal(rng, 300, 1, 4) / 2, normal(rng, 300, 1, 4) / 2, normal(rng, 300, 1, 3)]
    rates = -np.abs(normal(rng, 300, 1)), np.abs(normal(rng, 300, 1, scale=0.3))
    yield (normal(rng, 300, 1, 3), *long, *rates, np.asarray([0, 300], np.int32)), {"scale": 0.5}


delta_rule_back.no_gradient(SECOND)
delta_rule_back.tolerance(f32=chain(1024), because="errors of states forwards, and of their gradients backwards")


@delta_rule.back
def back_of_delta_rule(
    grad: Any,
    q: Any,
    k: Any,
    v: Any,
    decay: Any,
    beta: Any,
    state: Any = None,
    slots: Any = None,
    segments: Any = None,
    **attrs: Any,
) -> tuple[Any, ...]:
    _whole_texts("delta_rule", state)
    return *delta_rule_back(grad, q, k, v, decay, beta, segments, **attrs), None, None, None


def _whole_texts(name: str, state: Any) -> None:
    if state is not None:
        raise UnsupportedError("differentiate", f"{name} has a state: its gradient is of whole texts")


@causal_conv.back
def back_of_causal_conv(
    grad: Any, x: Any, weight: Any, state: Any = None, slots: Any = None, segments: Any = None, bias: Any = None
) -> tuple[Any, ...]:
    _whole_texts("causal_conv", state)
    return causal_conv_back(grad, weight, segments), None, None, None, None, None


@op
def mamba2_back(
    grad: Array, x: Array, b: Array, c: Array, rate: Array, decay: Array, skip: Array, segments: Integers
) -> tuple[Array, Array, Array, Array]:
    """The gradients at x, b, c and rate of mamba2, of whole texts.  grad, x [T, H, P], b, c [T, G, N], rate [T, H],
    decay, skip [H], segments [B+1] -> [T, H, P], [T, G, N], [T, G, N], [T, H]"""
    return mamba2.gradient(grad, x, b, c, rate, decay, skip, None, None, segments)[:4]


@mamba2_back.shape
def mamba2_back_shape(
    grad: Spec, x: Spec, b: Spec, c: Spec, rate: Spec, decay: Spec, skip: Spec, segments: Spec
) -> tuple[Spec, ...]:
    mamba2.infer((x, b, c, rate, decay, skip, None, None, segments), {})
    require(grad == x, "mamba2_back", f"must be {x}, as x is", field="grad", given=grad)
    require(b.shape[2] <= MAX_STATE, "mamba2_back", f"must have states of at most {MAX_STATE}", field="b", given=b)
    return x, b, c, rate


@mamba2_back.cost
def mamba2_back_cost(
    grad: Spec, x: Spec, b: Spec, c: Spec, rate: Spec, decay: Spec, skip: Spec, segments: Spec
) -> Cost:
    return Cost(flops=20 * x.size * b.shape[2], bytes=3 * x.nbytes + 4 * b.nbytes + 2 * rate.nbytes)


@mamba2_back.samples
def mamba2_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for operands, _ in mamba2_samples(rng):
        if operands[6] is None:
            yield (normal(rng, *operands[0].shape), *operands[:6], operands[8]), {}
    x, b, c, rate, decay, skip = operands[:6]
    across = normal(rng, x.shape[2], x.shape[1], x.shape[0]).transpose(2, 1, 0)  # channels before tokens
    yield (across, x, b, c, rate, decay, skip, operands[8]), {}
    long = normal(rng, 300, 1, 3), normal(rng, 300, 1, 4), normal(rng, 300, 1, 4)
    rates = np.abs(normal(rng, 300, 1)), np.asarray([-0.1], np.float32), np.ones(1, np.float32)
    yield (normal(rng, 300, 1, 3), *long, *rates, np.asarray([0, 300], np.int32)), {}


mamba2_back.no_gradient(SECOND)
mamba2_back.tolerance(f32=chain(1024), because="errors of states forwards, and of their gradients backwards")


@mamba2.back
def back_of_mamba2(
    grad: Any,
    x: Any,
    b: Any,
    c: Any,
    rate: Any,
    decay: Any,
    skip: Any,
    state: Any = None,
    slots: Any = None,
    segments: Any = None,
) -> tuple[Any, ...]:
    _whole_texts("mamba2", state)
    return *mamba2_back(grad, x, b, c, rate, decay, skip, segments), None, None, None, None, None
