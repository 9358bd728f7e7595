"""Gradients of the catalogue's ops, said with ops: `back` turns a gradient at a result into those at the operands.

An op of this file computes what no other op can. Weights that a program declares as such are frozen, so nothing here
has a gradient for them: weft/ops/training.py does for what is trained.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.ops.elementwise import (
    activate,
    activation_slope,
    add,
    gated,
    mul,
    scale,
    softcap,
)
from weft.ops.elementwise import activation as _activation
from weft.ops.gather import check_rows, embedding, reshape, take_rows
from weft.ops.matmul import GROUPS, matmul, product_cost, product_shape
from weft.ops.matmul import product as grouped_product
from weft.ops.norm import SIZES, add_layer_norm, add_rms_norm, l2_normalise, layer_norm, rms_norm
from weft.ops.packed import wide
from weft.ops.reduce import pool, softmax, softmax_slope
from weft.ops.registry import Activation, Array, Cost, Integers, PoolMode, Sample, Weight, get_args, op, require
from weft.ops.rope import angles, rope, rope_samples, rope_shape, turn
from weft.ops.samples import SCALES, integers, normal, strided, ugly, weight
from weft.ops.samples import segments as starts_of
from weft.ops.spec import Shape, Spec
from weft.ops.tolerance import chain

SECOND = "second derivatives are not computed"


def _same(where: str, grad: Spec, **others: Spec) -> None:
    for field, spec in others.items():
        require(spec == grad, where, f"must be {grad}, as grad is", field=field, given=spec)


# Elementwise.


@op(in_place=(("grad", "x"),))
def activate_back(grad: Array, x: Array, *, kind: Activation) -> Array:
    """The gradient at x of activate.  grad, x [...] -> [...]"""
    return grad * activation_slope(kind, x)


@activate_back.shape
def activate_back_shape(grad: Spec, x: Spec, *, kind: str) -> Spec:
    _same("activate_back", grad, x=x)
    return grad


@activate_back.cost
def activate_back_cost(grad: Spec, x: Spec, *, kind: str) -> Cost:
    return Cost(flops=24 * x.size, bytes=3 * x.nbytes)


@activate_back.samples
def activate_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for kind in get_args(Activation):
        yield (normal(rng, 1, 1), normal(rng, 1, 1)), {"kind": kind}
        yield (normal(rng, 3, 65), normal(rng, 3, 65, scale=3.0)), {"kind": kind}
        yield (strided(rng, 5, 17), strided(rng, 5, 17)), {"kind": kind}
        yield (normal(rng, 9, 64), ugly(rng, 9, 64)), {"kind": kind}


activate_back.no_gradient(SECOND)
activate_back.tolerance(because="polynomials good to a few units in the last place, and their products")


@op(in_place=(("gate", "grad"), ("up",)))
def gated_back(grad: Array, gate: Array, up: Array, *, kind: Activation) -> tuple[Array, Array]:
    """The gradients at gate and up of gated.  grad, gate, up [...] -> [...], [...]"""
    return grad * up * activation_slope(kind, gate), grad * _activation(kind, gate)


@gated_back.shape
def gated_back_shape(grad: Spec, gate: Spec, up: Spec, *, kind: str) -> tuple[Spec, Spec]:
    _same("gated_back", grad, gate=gate, up=up)
    return grad, grad


@gated_back.cost
def gated_back_cost(grad: Spec, gate: Spec, up: Spec, *, kind: str) -> Cost:
    return Cost(flops=30 * gate.size, bytes=5 * gate.nbytes)


@gated_back.samples
def gated_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for kind in get_args(Activation):
        yield tuple(normal(rng, 3, 65) for _ in range(3)), {"kind": kind}
    yield tuple(normal(rng, 1, 1) for _ in range(3)), {"kind": "silu"}
    yield tuple(strided(rng, 5, 17) for _ in range(3)), {"kind": "gelu"}
    yield (normal(rng, 9, 64), ugly(rng, 9, 64), normal(rng, 9, 64)), {"kind": "silu"}


gated_back.no_gradient(SECOND)
gated_back.tolerance(because="polynomials good to a few units in the last place, and their products")


# Norms.


@op(in_place=(("grad",),))
def rms_norm_back(grad: Array, x: Array, weight: Weight, *, eps: float) -> Array:
    """The gradient at x of rms_norm.  grad, x [..., D], weight [D] -> [..., D]"""
    return rms_norm.gradient(grad, x, weight, eps=eps)[0]


@rms_norm_back.shape
def rms_norm_back_shape(grad: Spec, x: Spec, weight: Spec, *, eps: float) -> Spec:
    _same("rms_norm_back", grad, x=x)
    return rms_norm.infer((x, weight), {"eps": eps})[0]


@rms_norm_back.cost
def rms_norm_back_cost(grad: Spec, x: Spec, weight: Spec, *, eps: float) -> Cost:
    return Cost(flops=9 * x.size, bytes=3 * x.nbytes + weight.nbytes)


@rms_norm_back.samples
def rms_norm_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        if dim > 1:  # of one channel the gradient is eps against x^2: all rounding
            yield (normal(rng, rows, dim), normal(rng, rows, dim), normal(rng, dim)), {"eps": 1e-6}
    yield (normal(rng, 3, 4, 32), normal(rng, 3, 4, 32), normal(rng, 32)), {"eps": 1e-5}
    yield (strided(rng, 5, 33), strided(rng, 5, 33), normal(rng, 33)), {"eps": 1e-6}
    yield (normal(rng, 2, 64), normal(rng, 2, 64, scale=1e-4), normal(rng, 64)), {"eps": 1e-5}  # eps matters
    yield (ugly(rng, 9, 65), normal(rng, 9, 65), normal(rng, 65)), {"eps": 1e-6}


rms_norm_back.no_gradient(SECOND)
rms_norm_back.tolerance(f32=chain(64), because="two sums over a row, and a difference of their products")


@op(in_place=(("grad",),))
def layer_norm_back(grad: Array, x: Array, weight: Weight, *, eps: float) -> Array:
    """The gradient at x of layer_norm.  grad, x [..., D], weight [D] -> [..., D]"""
    return layer_norm.gradient(grad, x, weight, np.zeros(1), eps=eps)[0]


@layer_norm_back.shape
def layer_norm_back_shape(grad: Spec, x: Spec, weight: Spec, *, eps: float) -> Spec:
    _same("layer_norm_back", grad, x=x)
    return layer_norm.infer((x, weight, weight), {"eps": eps})[0]


@layer_norm_back.cost
def layer_norm_back_cost(grad: Spec, x: Spec, weight: Spec, *, eps: float) -> Cost:
    return Cost(flops=13 * x.size, bytes=3 * x.nbytes + weight.nbytes)


@layer_norm_back.samples
def layer_norm_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        if dim > 1:
            yield (normal(rng, rows, dim), normal(rng, rows, dim), normal(rng, dim)), {"eps": 1e-12}
    yield (strided(rng, 5, 33), strided(rng, 5, 33), normal(rng, 33)), {"eps": 1e-5}
    yield (normal(rng, 3, 64), normal(rng, 3, 64) + np.float32(8), normal(rng, 64)), {"eps": 1e-5}  # far from zero
    yield (ugly(rng, 9, 65), normal(rng, 9, 65), normal(rng, 65)), {"eps": 1e-5}


layer_norm_back.no_gradient(SECOND)
layer_norm_back.tolerance(f32=8e-6, because="as layer_norm: the difference from the mean loses bits; then two sums")


@op(in_place=(("grad",),))
def l2_normalise_back(grad: Array, x: Array, *, eps: float) -> Array:
    """The gradient at x of l2_normalise.  grad, x [..., D] -> [..., D]"""
    return l2_normalise.gradient(grad, x, eps=eps)[0]


@l2_normalise_back.shape
def l2_normalise_back_shape(grad: Spec, x: Spec, *, eps: float) -> Spec:
    _same("l2_normalise_back", grad, x=x)
    return grad


@l2_normalise_back.cost
def l2_normalise_back_cost(grad: Spec, x: Spec, *, eps: float) -> Cost:
    return Cost(flops=7 * x.size, bytes=3 * x.nbytes)


@l2_normalise_back.samples
def l2_normalise_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in SIZES:
        if dim > 1:
            yield (normal(rng, rows, dim), normal(rng, rows, dim)), {"eps": 1e-12}
    yield (strided(rng, 5, 33), strided(rng, 5, 33)), {"eps": 1e-12}
    yield (normal(rng, 2, 17), np.zeros((2, 17), np.float32)), {"eps": 0.5}  # short of eps: a division by it
    yield (ugly(rng, 9, 65), normal(rng, 9, 65)), {"eps": 1e-12}


l2_normalise_back.no_gradient(SECOND)
l2_normalise_back.tolerance(f32=chain(64), because="two sums over a row, and a difference of their products")


@op(in_place=(("grad",),))
def softmax_back(grad: Array, y: Array) -> Array:
    """The gradient at x of y = softmax(x).  grad, y [..., D] -> [..., D]"""
    return softmax_slope(y, grad)


@softmax_back.shape
def softmax_back_shape(grad: Spec, y: Spec) -> Spec:
    _same("softmax_back", grad, y=y)
    return grad


@softmax_back.cost
def softmax_back_cost(grad: Spec, y: Spec) -> Cost:
    return Cost(flops=4 * y.size, bytes=3 * y.nbytes)


@softmax_back.samples
def softmax_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, dim in [(1, 3), (3, 65), (5, 17), (2, 1000)]:
        y = softmax.reference(normal(rng, rows, dim, scale=3.0).astype(np.float64))
        yield (normal(rng, rows, dim), y.astype(np.float32)), {}
    yield (strided(rng, 5, 33), softmax(strided(rng, 5, 33))), {}
    yield (ugly(rng, 9, 65), softmax(normal(rng, 9, 65))), {}


softmax_back.no_gradient(SECOND)
softmax_back.tolerance(f32=chain(256), because="a sum over a row, taken from each of its elements")


# Products.


@op
def matmul_back(grad: Array, weight: Weight, starts: Integers | None = None) -> Array:
    """The gradient at x of matmul.  grad [..., N], weight [N, K] of any type -> [..., K]

    With starts [E+1] it is E products: rows starts[e] to starts[e + 1] of grad [R, N] times matrix e of
    weight [E, N, K].
    """
    return grouped_product(grad, wide(weight).swapaxes(-1, -2), None, starts)


def back_shape(where: str, grad: Spec, weight: Spec, starts: Spec | None = None) -> Spec:
    """The spec [..., K] of grad [..., N] times weight [N, K], or with starts of grad [R, N] and weight [E, N, K];
    raises ShapeError."""
    turned = Spec((*weight.shape[:-2], *weight.shape[:-3:-1]))
    fits = grad.rank >= 1 and weight.rank == (2 if starts is None else 3) and weight.shape[-2] == grad.shape[-1]
    stacked = "" if starts is None else "E, "
    require(fits, where, f"must be [{stacked}{grad.shape[-1]}, K] for grad {grad}", field="weight", given=weight)
    return product_shape(where, grad, turned, None, starts)


def back_cost(grad: Spec, weight: Spec, starts: Spec | None = None) -> Cost:
    return product_cost(grad, weight.like(*weight.shape[:-2], *weight.shape[:-3:-1], dtype="f32"), None, starts)


@matmul_back.shape
def matmul_back_shape(grad: Spec, weight: Spec, starts: Spec | None) -> Spec:
    return back_shape("matmul_back", grad, weight, starts)


matmul_back.cost(back_cost)


@matmul_back.samples
def matmul_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 33, 100), (33, 65, 257)]:
        yield (normal(rng, rows, n), normal(rng, n, k)), {}
    yield (normal(rng, 2, 3, 5), normal(rng, 5, 32)), {}
    yield (strided(rng, 5, 17), normal(rng, 17, 33)), {}
    yield (ugly(rng, 5, 65), normal(rng, 65, 17)), {}
    for dtype in ("f16", "bf16"):
        yield (normal(rng, 5, 33), weight(rng, dtype, 33, 65)), {}
    for dtype in SCALES:
        yield (normal(rng, 3, 17), weight(rng, dtype, 17, 512)), {}
    for sizes in GROUPS:
        for dtype in ("f32", "f16", "q4_k", "iq2_xs"):
            matrices = weight(rng, dtype, len(sizes), 17, 256)
            yield (normal(rng, sum(sizes), 17), matrices, starts_of(sizes)), {}


matmul_back.no_gradient(SECOND)
matmul_back.tolerance(f32=chain(1024), because="one f32 chain over N")


# Moves.


@op(in_place=(("grad",),))
def rope_back(
    grad: Array, positions: Integers, inv_freq: Weight, *, interleaved: bool = False, scale: float = 1.0
) -> Array:
    """The gradient at x of rope: turned back.  grad [T, H, D], positions [T], inv_freq [R] -> [T, H, D]"""
    return turn(grad, -angles(positions, inv_freq), interleaved, scale)


rope_back.shape(rope_shape)


@rope_back.cost
def rope_back_cost(grad: Spec, positions: Spec, inv_freq: Spec, *, interleaved: bool, scale: float) -> Cost:
    return rope.cost_of(grad, positions, inv_freq, interleaved=interleaved, scale=scale)


rope_back.samples(rope_samples)
rope_back.no_gradient(SECOND)
rope_back.tolerance(because="cos and sin to a unit in the last place, then two products and a sum, as for rope")


@op
def put_rows(grad: Array, rows: Integers, *, shape: Shape) -> Array:
    """The gradient at x of take_rows: rows added up where they came from.  grad [L, D], rows [L] -> shape [T, D]"""
    sizes: Any = shape
    check_rows("put_rows", "rows", rows, sizes[0])
    out = np.zeros(sizes)
    np.add.at(out, rows, grad)
    return out


@put_rows.shape
def put_rows_shape(grad: Spec, rows: Spec, *, shape: Shape) -> Spec:
    fits = grad.rank == 2 and len(shape) == 2 and shape[1] == grad.shape[1]
    require(fits, "put_rows", f"must be [T, {grad.shape[-1]}] for grad {grad}", field="shape", given=shape)
    require(rows.shape == grad.shape[:1], "put_rows", f"must be [L] of grad {grad}", field="rows", given=rows)
    return grad.like(*shape)


@put_rows.cost
def put_rows_cost(grad: Spec, rows: Spec, *, shape: Shape) -> Cost:
    return Cost(flops=grad.size, bytes=rows.nbytes + grad.nbytes + 4 * Spec(shape).size)


@put_rows.samples
def put_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, dim, count in [(1, 1, 1), (5, 65, 3), (17, 64, 17)]:
        yield (normal(rng, count, dim), integers(rng.integers(0, tokens, count))), {"shape": (tokens, dim)}
    yield (strided(rng, 2, 33), integers([5, 0])), {"shape": (6, 33)}
    yield (ugly(rng, 3, 65), integers([3, 3, 1])), {"shape": (6, 65)}


put_rows.no_gradient(SECOND)
put_rows.tolerance(because="a sum of the few rows that were taken from one")


@op
def pool_back(grad: Array, x: Array, segments: Integers, *, mode: PoolMode) -> Array:
    """The gradient at x of pool.  grad [B, D], x [T, D], segments [B+1] -> [T, D]"""
    return pool.gradient(grad, x, segments, mode=mode)[0]


@pool_back.shape
def pool_back_shape(grad: Spec, x: Spec, segments: Spec, *, mode: str) -> Spec:
    wanted = pool.infer((x, segments), {"mode": mode})[0]
    require(grad == wanted, "pool_back", f"must be {wanted}", field="grad", given=grad)
    return x


@pool_back.cost
def pool_back_cost(grad: Spec, x: Spec, segments: Spec, *, mode: str) -> Cost:
    return Cost(flops=x.size, bytes=grad.nbytes + 2 * x.nbytes + segments.nbytes)


@pool_back.samples
def pool_back_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for mode in get_args(PoolMode):
        for lengths, dim in [([1], 1), ([5, 1, 17], 65), ([2, 2], 64)]:
            x = normal(rng, sum(lengths), dim)
            yield (normal(rng, len(lengths), dim), x, starts_of(lengths)), {"mode": mode}
        yield (strided(rng, 2, 33), strided(rng, 9, 33), starts_of([4, 5])), {"mode": mode}
        yield (ugly(rng, 3, 17), normal(rng, 40, 17), starts_of([1, 38, 1])), {"mode": mode}


pool_back.no_gradient(SECOND)
pool_back.tolerance(because="one product with a share")


# What each op's gradient is, in these terms. A gradient of None is zero, or of an operand that nobody trains.

Gradients = tuple[Any, ...]


@add.back
def add_back(grad: Any, x: Any, y: Any) -> Gradients:
    return grad, _of_operand(grad, y)


@mul.back
def mul_back(grad: Any, x: Any, y: Any) -> Gradients:
    return mul(grad, y), _of_operand(mul(grad, x) if y.spec == x.spec else None, y)


def _of_operand(grad: Any, y: Any) -> Any:
    """The gradient of an operand that may be one row for all: of such a row it is the business of training.py."""
    return grad if grad is not None and y.spec == grad.spec else None


@scale.back
def scale_back(grad: Any, x: Any, *, by: float) -> Gradients:
    return (scale(grad, by=by),)


@activate.back
def back_of_activate(grad: Any, x: Any, *, kind: Any) -> Gradients:
    return (activate_back(grad, x, kind=kind),)


@softcap.back
def softcap_back(grad: Any, x: Any, *, cap: float) -> Gradients:
    return (activate_back(grad, scale(x, by=1.0 / cap), kind="tanh"),)


@gated.back
def back_of_gated(grad: Any, gate: Any, up: Any, *, kind: Any) -> Gradients:
    return tuple(gated_back(grad, gate, up, kind=kind))


@rms_norm.back
def back_of_rms_norm(grad: Any, x: Any, weight: Any, *, eps: float) -> Gradients:
    return rms_norm_back(grad, x, weight, eps=eps), None


@layer_norm.back
def back_of_layer_norm(grad: Any, x: Any, weight: Any, bias: Any, *, eps: float) -> Gradients:
    return layer_norm_back(grad, x, weight, eps=eps), None, None


@add_rms_norm.back
def back_of_add_rms_norm(grads: Any, x: Any, y: Any, weight: Any, *, eps: float) -> Gradients:
    through = rms_norm_back(grads[1], add(x, y), weight, eps=eps)
    both = through if grads[0] is None else add(grads[0], through)
    return both, both, None


@add_layer_norm.back
def back_of_add_layer_norm(grad: Any, x: Any, y: Any, weight: Any, bias: Any, *, eps: float) -> Gradients:
    through = layer_norm_back(grad, add(x, y), weight, eps=eps)
    return through, through, None, None


@l2_normalise.back
def back_of_l2_normalise(grad: Any, x: Any, *, eps: float) -> Gradients:
    return (l2_normalise_back(grad, x, eps=eps),)


@softmax.back
def back_of_softmax(grad: Any, x: Any) -> Gradients:
    return (softmax_back(grad, softmax(x)),)


@matmul.back
def back_of_matmul(
    grad: Any, x: Any, weight: Any, bias: Any = None, starts: Any = None, *, activation: Any = "none"
) -> Gradients:
    if activation != "none":
        grad = activate_back(grad, matmul(x, weight, bias, starts), kind=activation)
    return matmul_back(grad, weight, starts), None, None, None


@embedding.back
def embedding_back(grad: Any, ids: Any, weight: Any) -> Gradients:
    return None, None


@take_rows.back
def take_rows_back(grad: Any, x: Any, rows: Any) -> Gradients:
    return put_rows(grad, rows, shape=x.spec.shape), None


@reshape.back
def reshape_back(grad: Any, x: Any, *, shape: Sequence[Any]) -> Gradients:
    return (reshape(grad, shape=x.spec.shape),)


@rope.back
def back_of_rope(
    grad: Any, x: Any, positions: Any, inv_freq: Any, *, interleaved: bool = False, scale: float = 1.0
) -> Gradients:
    return rope_back(grad, positions, inv_freq, interleaved=interleaved, scale=scale), None, None


@pool.back
def back_of_pool(grad: Any, x: Any, segments: Any, *, mode: Any) -> Gradients:
    return pool_back(grad, x, segments, mode=mode), None
