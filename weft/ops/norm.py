"""Norms over the last axis, alone and fused with the residual sum before them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.elementwise import add
from weft.ops.registry import Array, Cost, Sample, Weight, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.spec import Spec

SIZES = [(1, 1), (1, 64), (3, 65), (5, 17), (4, 1024)]  # 65: one past the widest vector


def _check(where: str, x: Spec, *vectors: Spec) -> None:
    require(x.rank >= 1, where, "must have an axis", field="x", given=x)
    for field, vector in zip(("weight", "bias"), vectors):
        fits = vector.is_vector(x.shape[-1])
        require(fits, where, f"must be f32[{x.shape[-1]}] for x {x}", field=field, given=vector)


def _centred(x: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """(x - mean) / sqrt(variance + eps) and the factor 1 / sqrt(variance + eps)."""
    offset = x - np.mean(x, axis=-1, keepdims=True)
    factor = 1.0 / np.sqrt(np.mean(offset * offset, axis=-1, keepdims=True) + eps)
    return offset * factor, factor


def _sum_rows(grad: np.ndarray) -> np.ndarray:
    return grad.reshape(-1, grad.shape[-1]).sum(axis=0)


@op(in_place=(("x",),))
def rms_norm(x: Array, weight: Weight, *, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.  x [..., D], weight [D] -> [..., D]"""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


@rms_norm.shape
def rms_norm_shape(x: Spec, weight: Spec, *, eps: float) -> Spec:
    _check("rms_norm", x, weight)
    return x


@rms_norm.cost
def rms_norm_cost(x: Spec, weight: Spec, *, eps: float) -> Cost:
    return Cost(flops=4 * x.size, bytes=2 * x.nbytes + weight.nbytes)


@rms_norm.samples
def rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        yield (normal(rng, rows, dim), normal(rng, dim)), {"eps": 1e-6}
    yield (normal(rng, 3, 4, 32), normal(rng, 32)), {"eps": 1e-5}
    yield (strided(rng, 5, 33), normal(rng, 33)), {"eps": 1e-6}
    yield (ugly(rng, 9, 65), normal(rng, 65)), {"eps": 1e-6}
    yield (normal(rng, 2, 64, scale=1e-4), normal(rng, 64)), {"eps": 1e-5}  # eps matters


@rms_norm.vjp
def rms_norm_vjp(grad: np.ndarray, x: np.ndarray, weight: np.ndarray, *, eps: float) -> tuple[Any, ...]:
    factor = 1.0 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    inner = grad * weight
    return factor * inner - x * factor**3 * np.mean(inner * x, axis=-1, keepdims=True), _sum_rows(grad * x * factor)


rms_norm.tolerance(because="the sum's error is halved by the root; then four roundings per element")


@op(in_place=(("x",),))
def layer_norm(x: Array, weight: Weight, bias: Weight, *, eps: float) -> Array:
    """(x - mean) / sqrt(variance + eps) * weight + bias, last axis.  x [..., D], weight, bias [D] -> [..., D]"""
    return _centred(x, eps)[0] * weight + bias


@layer_norm.shape
def layer_norm_shape(x: Spec, weight: Spec, bias: Spec, *, eps: float) -> Spec:
    _check("layer_norm", x, weight, bias)
    return x


@layer_norm.cost
def layer_norm_cost(x: Spec, weight: Spec, bias: Spec, *, eps: float) -> Cost:
    return Cost(flops=7 * x.size, bytes=2 * x.nbytes + weight.nbytes + bias.nbytes)


@layer_norm.samples
def layer_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        yield (normal(rng, rows, dim), normal(rng, dim), normal(rng, dim)), {"eps": 1e-12}
    yield (strided(rng, 5, 33), normal(rng, 33), normal(rng, 33)), {"eps": 1e-5}
    yield (ugly(rng, 9, 65), normal(rng, 65), normal(rng, 65)), {"eps": 1e-5}
    yield (normal(rng, 3, 64) + np.float32(8), normal(rng, 64), normal(rng, 64)), {"eps": 1e-5}  # far from zero


@layer_norm.vjp
def layer_norm_vjp(
    grad: np.ndarray, x: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, eps: float
) -> tuple[Any, ...]:
    unit, factor = _centred(x, eps)
    inner = grad * weight
    flat = inner - np.mean(inner, axis=-1, keepdims=True) - unit * np.mean(inner * unit, axis=-1, keepdims=True)
    return factor * flat, _sum_rows(grad * unit), _sum_rows(grad)


layer_norm.tolerance(
    f32=4e-6, because="the difference from the mean loses bits where the mean is larger than the spread"
)


@op(in_place=(("x", "y"),))
def add_rms_norm(x: Array, y: Array, weight: Weight, *, eps: float) -> tuple[Array, Array]:
    """x + y and rms_norm(x + y).  x, y [..., D], weight [D] -> [..., D], [..., D]"""
    total = x + y
    return total, rms_norm.reference(total, weight, eps=eps)


@add_rms_norm.shape
def add_rms_norm_shape(x: Spec, y: Spec, weight: Spec, *, eps: float) -> tuple[Spec, Spec]:
    require(x == y, "add_rms_norm", f"must be {x}, as x is", field="y", given=y)
    _check("add_rms_norm", x, weight)
    return x, x


@add_rms_norm.cost
def add_rms_norm_cost(x: Spec, y: Spec, weight: Spec, *, eps: float) -> Cost:
    return Cost(flops=5 * x.size, bytes=4 * x.nbytes + weight.nbytes)


@add_rms_norm.samples
def add_rms_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        yield (normal(rng, rows, dim), normal(rng, rows, dim), normal(rng, dim)), {"eps": 1e-6}
    yield (strided(rng, 5, 33), strided(rng, 5, 33), normal(rng, 33)), {"eps": 1e-6}
    yield (ugly(rng, 9, 65), ugly(rng, 9, 65), normal(rng, 65)), {"eps": 1e-6}


@add_rms_norm.vjp
def add_rms_norm_vjp(grads: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, eps: float) -> tuple[Any, ...]:
    through, to_weight = rms_norm.gradient(grads[1], x + y, weight, eps=eps)
    return grads[0] + through, grads[0] + through, to_weight


@add_rms_norm.decompose
def add_rms_norm_decompose(x: Any, y: Any, weight: Any, *, eps: Any) -> Any:
    total = add(x, y)
    return total, rms_norm(total, weight, eps=eps)


add_rms_norm.tolerance(because="rms_norm after one rounding of the sum")


@op(in_place=(("x", "y"),))
def add_layer_norm(x: Array, y: Array, weight: Weight, bias: Weight, *, eps: float) -> Array:
    """layer_norm(x + y).  x, y [..., D], weight, bias [D] -> [..., D]"""
    return layer_norm.reference(x + y, weight, bias, eps=eps)


@add_layer_norm.shape
def add_layer_norm_shape(x: Spec, y: Spec, weight: Spec, bias: Spec, *, eps: float) -> Spec:
    require(x == y, "add_layer_norm", f"must be {x}, as x is", field="y", given=y)
    _check("add_layer_norm", x, weight, bias)
    return x


@add_layer_norm.cost
def add_layer_norm_cost(x: Spec, y: Spec, weight: Spec, bias: Spec, *, eps: float) -> Cost:
    return Cost(flops=8 * x.size, bytes=3 * x.nbytes + weight.nbytes + bias.nbytes)


@add_layer_norm.samples
def add_layer_norm_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        yield (normal(rng, rows, dim), normal(rng, rows, dim), normal(rng, dim), normal(rng, dim)), {"eps": 1e-12}
    yield (strided(rng, 5, 33), strided(rng, 5, 33), normal(rng, 33), normal(rng, 33)), {"eps": 1e-5}
    yield (ugly(rng, 9, 65), ugly(rng, 9, 65), normal(rng, 65), normal(rng, 65)), {"eps": 1e-5}


@add_layer_norm.vjp
def add_layer_norm_vjp(
    grad: Any, x: np.ndarray, y: np.ndarray, weight: np.ndarray, bias: np.ndarray, *, eps: float
) -> tuple[Any, ...]:
    through, to_weight, to_bias = layer_norm.gradient(grad, x + y, weight, bias, eps=eps)
    return through, through, to_weight, to_bias


@add_layer_norm.decompose
def add_layer_norm_decompose(x: Any, y: Any, weight: Any, bias: Any, *, eps: Any) -> Any:
    return layer_norm(add(x, y), weight, bias, eps=eps)


add_layer_norm.tolerance(f32=4e-6, because="layer_norm after one rounding of the sum")


@op(in_place=(("x",),))
def l2_normalise(x: Array, *, eps: float) -> Array:
    """x / max(norm of x, eps) over the last axis.  x [..., D] -> [..., D]"""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), eps)


@l2_normalise.shape
def l2_normalise_shape(x: Spec, *, eps: float) -> Spec:
    _check("l2_normalise", x)
    return x


@l2_normalise.cost
def l2_normalise_cost(x: Spec, *, eps: float) -> Cost:
    return Cost(flops=3 * x.size, bytes=2 * x.nbytes)


@l2_normalise.samples
def l2_normalise_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        yield (normal(rng, rows, dim),), {"eps": 1e-12}
    yield (strided(rng, 5, 33),), {"eps": 1e-12}
    yield (ugly(rng, 9, 65),), {"eps": 1e-12}
    yield (np.zeros((2, 17), np.float32),), {"eps": 1e-12}  # a zero row stays zero


@l2_normalise.vjp
def l2_normalise_vjp(grad: np.ndarray, x: np.ndarray, *, eps: float) -> tuple[Any, ...]:
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    safe = np.maximum(norm, eps)
    along = np.where(norm > eps, np.sum(grad * x, axis=-1, keepdims=True) / safe**2, 0.0)
    return ((grad - x * along) / safe,)


l2_normalise.tolerance(because="the sum's error is halved by the root; then two roundings per element")
