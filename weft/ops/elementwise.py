"""Elementwise ops: a result's element depends only on the operands' elements at its index, so it may overwrite them."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.registry import Activation, Array, Cost, Sample, get_args, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.spec import Spec

QUICK_GELU = 1.702  # x sigmoid(1.702 x), which CLIP has for gelu
GELU_TANH = math.sqrt(2 / math.pi), 0.044715  # gelu's tanh form: 0.5 x (1 + tanh(a (x + b x^3)))


def _erf(x: np.ndarray) -> np.ndarray:
    """numpy has no erf; this one is float64 throughout."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))  # never overflows
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def activation(kind: str, x: np.ndarray) -> np.ndarray:
    """The activation `kind` of float64 x; "none" is x."""
    if kind == "gelu":
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2)))
    if kind == "gelu_tanh":
        a, b = GELU_TANH
        return 0.5 * x * (1.0 + np.tanh(a * (x + b * x**3)))
    if kind == "silu":
        return x * _sigmoid(x)
    if kind == "tanh":
        return np.tanh(x)
    if kind == "sigmoid":
        return _sigmoid(x)
    if kind == "softplus":
        return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))
    if kind == "relu2":
        return np.maximum(x, 0.0) ** 2
    if kind == "quick_gelu":
        return x * _sigmoid(QUICK_GELU * x)
    return np.maximum(x, 0.0) if kind == "relu" else x


def activation_slope(kind: str, x: np.ndarray) -> np.ndarray:
    """The derivative of `activation` at x; relu's at 0 is 0."""
    if kind == "gelu":
        return 0.5 * (1.0 + _erf(x / math.sqrt(2))) + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    if kind == "gelu_tanh":
        a, b = GELU_TANH
        t = np.tanh(a * (x + b * x**3))
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * a * (1.0 + 3.0 * b * x * x)
    if kind == "quick_gelu":
        s = _sigmoid(QUICK_GELU * x)
        return s + QUICK_GELU * x * s * (1.0 - s)
    s = _sigmoid(x)
    if kind == "silu":
        return s + x * s * (1.0 - s)
    return {"none": np.ones_like(x), "relu": (x > 0).astype(np.float64), "tanh": 1.0 - np.tanh(x) ** 2,
            "sigmoid": s * (1.0 - s), "softplus": s, "relu2": 2.0 * np.maximum(x, 0.0)}[kind]  # fmt: skip


def capped(x: np.ndarray, cap: float) -> np.ndarray:
    """cap tanh(x / cap): close to x where x is much smaller than the cap, and never beyond the cap."""
    return cap * np.tanh(x / cap)


def fold_to(grad: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sum a gradient over the leading axes that broadcasting added."""
    return grad.sum(axis=tuple(range(grad.ndim - len(shape))))


def _broadcast_shape(where: str, x: Spec, y: Spec) -> Spec:
    require(x.rank >= 1, where, "must have an axis", field="x", given=x)
    fits = y.shape in (x.shape, x.shape[-1:]) and y.dtype == x.dtype
    require(fits, where, f"must have the shape of x {x}, or of one row of it", field="y", given=y)
    return x


def _pair_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 1), (3, 65), (5, 64)]:
        yield (normal(rng, rows, dim), normal(rng, rows, dim)), {}
    yield (normal(rng, 4, 17), normal(rng, 17)), {}
    yield (normal(rng, 2, 3, 33), normal(rng, 33)), {}
    yield (strided(rng, 7, 19), strided(rng, 7, 19)), {}
    yield (ugly(rng, 9, 65), ugly(rng, 9, 65)), {}


@op(in_place=(("x", "y"),))
def add(x: Array, y: Array) -> Array:
    """x + y.  x [..., D], y the same or [D] -> [..., D]"""
    return x + y


@add.shape
def add_shape(x: Spec, y: Spec) -> Spec:
    return _broadcast_shape("add", x, y)


@add.cost
def add_cost(x: Spec, y: Spec) -> Cost:
    return Cost(flops=x.size, bytes=2 * x.nbytes + y.nbytes)


add.samples(_pair_samples)


@add.vjp
def add_vjp(grad: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    return grad, fold_to(grad, y.shape)


add.tolerance(because="one rounding")


@op(in_place=(("x", "y"),))
def mul(x: Array, y: Array) -> Array:
    """x * y.  x [..., D], y the same or [D] -> [..., D]"""
    return x * y


@mul.shape
def mul_shape(x: Spec, y: Spec) -> Spec:
    return _broadcast_shape("mul", x, y)


@mul.cost
def mul_cost(x: Spec, y: Spec) -> Cost:
    return Cost(flops=x.size, bytes=2 * x.nbytes + y.nbytes)


mul.samples(_pair_samples)


@mul.vjp
def mul_vjp(grad: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    return grad * y, fold_to(grad * x, y.shape)


mul.tolerance(because="one rounding")


@op(in_place=(("x",),))
def scale(x: Array, *, by: float) -> Array:
    """x * by.  x [...] -> [...]; by = 1 is a copy"""
    return x * by


@scale.shape
def scale_shape(x: Spec, *, by: float) -> Spec:
    return x


@scale.cost
def scale_cost(x: Spec, *, by: float) -> Cost:
    return Cost(flops=x.size, bytes=2 * x.nbytes)


@scale.samples
def scale_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 1), (3, 65), (2, 64)]:
        yield (normal(rng, rows, dim),), {"by": 0.125}
    yield (strided(rng, 5, 17),), {"by": -3.0}
    yield (ugly(rng, 9, 65),), {"by": 1.0}


@scale.vjp
def scale_vjp(grad: np.ndarray, x: np.ndarray, *, by: float) -> tuple[Any, ...]:
    return (grad * by,)


scale.tolerance(because="the factor and the product are rounded once each")


@op(in_place=(("x",),))
def activate(x: Array, *, kind: Activation) -> Array:
    """activation(x), element by element.  x [...] -> [...]; gelu is the erf form, gelu_tanh and quick_gelu are near"""
    return activation(kind, x)


@activate.shape
def activate_shape(x: Spec, *, kind: str) -> Spec:
    return x


@activate.cost
def activate_cost(x: Spec, *, kind: str) -> Cost:
    return Cost(flops=16 * x.size, bytes=2 * x.nbytes)  # 16: a polynomial of degree about 8


@activate.samples
def activate_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for kind in get_args(Activation):
        yield (normal(rng, 1, 1),), {"kind": kind}
        yield (normal(rng, 3, 65, scale=3.0),), {"kind": kind}
        yield (strided(rng, 5, 17),), {"kind": kind}
        yield (ugly(rng, 9, 64),), {"kind": kind}


@activate.vjp
def activate_vjp(grad: np.ndarray, x: np.ndarray, *, kind: str) -> tuple[Any, ...]:
    return (grad * activation_slope(kind, x),)


activate.tolerance(because="a polynomial good to a few units in the last place and at most three products")


@op(in_place=(("x",),))
def softcap(x: Array, *, cap: float) -> Array:
    """cap * tanh(x / cap), element by element.  x [...] -> [...], cap > 0"""
    return capped(x, cap)


@softcap.shape
def softcap_shape(x: Spec, *, cap: float) -> Spec:
    require(cap > 0, "softcap", "must be above zero", field="cap", given=cap)
    return x


@softcap.cost
def softcap_cost(x: Spec, *, cap: float) -> Cost:
    return Cost(flops=18 * x.size, bytes=2 * x.nbytes)  # an activation, a quotient and a product


@softcap.samples
def softcap_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 1), (3, 65), (2, 64)]:
        yield (normal(rng, rows, dim, scale=30.0),), {"cap": 30.0}
    yield (strided(rng, 5, 17),), {"cap": 0.25}
    yield (ugly(rng, 9, 65),), {"cap": 50.0}


@softcap.vjp
def softcap_vjp(grad: np.ndarray, x: np.ndarray, *, cap: float) -> tuple[Any, ...]:
    return (grad * activation_slope("tanh", x / cap),)


softcap.tolerance(because="an activation between a quotient and a product")


@op(in_place=(("gate", "up"),))
def gated(gate: Array, up: Array, *, kind: Activation) -> Array:
    """activation(gate) * up.  gate, up [...] -> [...]"""
    return activation(kind, gate) * up


@gated.shape
def gated_shape(gate: Spec, up: Spec, *, kind: str) -> Spec:
    require(gate == up, "gated", f"must be {gate}, as gate is", field="up", given=up)
    return gate


@gated.cost
def gated_cost(gate: Spec, up: Spec, *, kind: str) -> Cost:
    return Cost(flops=17 * gate.size, bytes=3 * gate.nbytes)


@gated.samples
def gated_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for kind in get_args(Activation):
        yield (normal(rng, 3, 65), normal(rng, 3, 65)), {"kind": kind}
    yield (normal(rng, 1, 1), normal(rng, 1, 1)), {"kind": "silu"}
    yield (strided(rng, 5, 17), strided(rng, 5, 17)), {"kind": "gelu"}
    yield (ugly(rng, 9, 64), ugly(rng, 9, 64)), {"kind": "silu"}


@gated.vjp
def gated_vjp(grad: np.ndarray, gate: np.ndarray, up: np.ndarray, *, kind: str) -> tuple[Any, ...]:
    return grad * up * activation_slope(kind, gate), grad * activation(kind, gate)


@gated.decompose
def gated_decompose(gate: Any, up: Any, *, kind: Any) -> Any:
    return mul(activate(gate, kind=kind), up)


gated.tolerance(because="an activation and one product")


@op(in_place=(("gate", "up"),))
def gated_clamped(gate: Array, up: Array, *, limit: float, alpha: float) -> Array:
    """(u + 1) g sigmoid(alpha g), where g is gate, at most limit, and u is up within -limit and limit.  gate, up [...]
    -> [...]
    """
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return (u + 1.0) * g * _sigmoid(alpha * g)


@gated_clamped.shape
def gated_clamped_shape(gate: Spec, up: Spec, *, limit: float, alpha: float) -> Spec:
    require(gate == up, "gated_clamped", f"must be {gate}, as gate is", field="up", given=up)
    require(limit > 0, "gated_clamped", "must be above zero", field="limit", given=limit)
    return gate


@gated_clamped.cost
def gated_clamped_cost(gate: Spec, up: Spec, *, limit: float, alpha: float) -> Cost:
    return Cost(flops=20 * gate.size, bytes=3 * gate.nbytes)


@gated_clamped.samples
def gated_clamped_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 1), (3, 65), (5, 64)]:
        yield (normal(rng, rows, dim, scale=5.0), normal(rng, rows, dim, scale=5.0)), {"limit": 7.0, "alpha": 1.702}
    yield (strided(rng, 7, 19), strided(rng, 7, 19)), {"limit": 0.5, "alpha": 1.0}
    yield (ugly(rng, 9, 65), ugly(rng, 9, 65)), {"limit": 7.0, "alpha": 1.702}


@gated_clamped.vjp
def gated_clamped_vjp(grad: np.ndarray, gate: Any, up: Any, *, limit: float, alpha: float) -> tuple[Any, ...]:
    g, u = np.minimum(gate, limit), np.clip(up, -limit, limit)
    share = _sigmoid(alpha * g)
    slope = share * (1.0 + alpha * g * (1.0 - share))
    return grad * (u + 1.0) * slope * (gate < limit), grad * g * share * (np.abs(up) < limit)


gated_clamped.tolerance(because="a sigmoid, good to a few units in the last place, and three products")
