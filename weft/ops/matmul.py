"""The product of activations and a weight, with bias and activation, over every storage type of the weight."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.dtype import bf16_to_f32, f32_to_bf16
from weft.ops.elementwise import activate, activation_slope, add
from weft.ops.elementwise import activation as _activation
from weft.ops.packed import Packed, pack, wide
from weft.ops.registry import ACTIVATIONS, ActivationOrNone, Array, Cost, Rows, Sample, Weight, op, require
from weft.ops.samples import SCALES, normal, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.tolerance import chain


def product_shape(where: str, x: Spec, weight: Spec, bias: Spec | None) -> Spec:
    """The result of x [..., K] times weight [N, K], or a ShapeError."""
    fits = x.rank >= 1 and weight.rank == 2 and weight.shape[1] == x.shape[-1]
    require(fits, where, f"weight {weight} does not fit x {x}; it must be [N, {x.shape[-1] if x.rank else '?'}]")
    if bias is not None:
        fits = bias.is_vector(weight.shape[0])
        require(fits, where, f"bias {bias} does not fit weight {weight}; it must be f32[{weight.shape[0]}]")
    return x.like(*x.shape[:-1], weight.shape[0])


def product_cost(x: Spec, weight: Spec, bias: Spec | None) -> Cost:
    rows = x.size // x.shape[-1]
    out = rows * weight.shape[0]
    return Cost(flops=2 * rows * weight.size, bytes=x.nbytes + weight.nbytes + 4 * out + (bias.nbytes if bias else 0))


@op
def matmul(x: Array, weight: Weight, bias: Weight | None = None, *, activation: ActivationOrNone = "none") -> Array:
    """act(x Wᵀ + b).  x [..., K], weight [N, K] of any type, bias [N] or absent -> [..., N]"""
    product = x @ wide(weight).T
    return _activation(activation, product if bias is None else product + bias)


@matmul.shape
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str) -> Spec:
    return product_shape("matmul", x, weight, bias)


@matmul.cost
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str) -> Cost:
    return product_cost(x, weight, bias)


@matmul.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 33, 100), (33, 65, 257)]:
        yield (normal(rng, rows, k), normal(rng, n, k), None), {}
    yield (normal(rng, 2, 3, 32), normal(rng, 5, 32), normal(rng, 5)), {}
    for kind in ACTIVATIONS:
        yield (normal(rng, 3, 65), normal(rng, 17, 65, scale=0.2), normal(rng, 17)), {"activation": kind}
    yield (strided(rng, 5, 33), strided(rng, 17, 33), normal(rng, 17)), {}
    yield (ugly(rng, 5, 65), normal(rng, 17, 65), None), {}
    for dtype in ("f16", "bf16"):
        yield (normal(rng, 5, 65), weight(rng, dtype, 33, 65), normal(rng, 33)), {}
    for dtype in SCALES:
        yield (normal(rng, 3, 512), weight(rng, dtype, 17, 512), None), {}


@matmul.vjp
def _(grad: np.ndarray, x: np.ndarray, weight: Any, bias: Any = None, *, activation: str = "none") -> tuple[Any, ...]:
    dense = wide(weight)
    product = x @ dense.T
    inner = grad * activation_slope(activation, product if bias is None else product + bias)
    rows = inner.reshape(-1, inner.shape[-1])
    to_weight = None if isinstance(weight, Packed) else rows.T @ x.reshape(-1, x.shape[-1])  # packed weights are frozen
    return inner @ dense, to_weight, None if bias is None else rows.sum(axis=0)


@matmul.decompose
def _(x: Any, weight: Any, bias: Any = None, *, activation: Any = "none") -> Any:
    product = matmul(x, weight)
    total = product if bias is None else add(product, bias)
    return total if activation == "none" else activate(total, kind=activation)


matmul.tolerance(f32=chain(1024), because="one f32 chain over K")


@op
def round_rows(x: Array, *, split: bool = False) -> Rows:
    """Rows of bfloat16: nearest even, subnormal numbers to zero.  x [..., K] -> bf16 [..., K], split [..., 2 K]

    Split: the rounded values of a row and then, rounded again, what the rounding left; 16 bits of every value.
    """
    return _as_rows(x, split)


def _as_rows(values: np.ndarray, split: bool) -> Packed:
    high = rounded_bf16(values)
    parts = [high, rounded_bf16(values.astype(np.float32) - high)] if split else [high]
    return pack(np.concatenate(parts, axis=-1), "bf16")


def rounded_bf16(values: np.ndarray) -> np.ndarray:
    """To bfloat16, nearest even, subnormal numbers to zero; float64 again."""
    narrow = bf16_to_f32(f32_to_bf16(values.astype(np.float32))).astype(np.float64)
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, 0.0 * narrow, narrow)


@round_rows.shape
def _(x: Spec, *, split: bool) -> Spec:
    require(x.rank >= 1, "round_rows", f"x {x} has no rows")
    return x.like(*x.shape[:-1], x.shape[-1] * (2 if split else 1), dtype="bf16")


@round_rows.cost
def _(x: Spec, *, split: bool) -> Cost:
    return Cost(flops=x.size, bytes=x.nbytes + (4 if split else 2) * x.size)


@round_rows.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(1, 1), (3, 65), (2, 3, 32), (17, 100)]:
        yield (normal(rng, *shape),), {}
        yield (normal(rng, *shape),), {"split": True}
    yield (strided(rng, 5, 33),), {}
    yield (ugly(rng, 5, 65),), {}
    ties = np.arange(64, dtype=np.float32).reshape(2, 32) * np.float32(2.0**-8) + 1  # every second one is a tie
    yield (ties,), {}


round_rows.no_gradient("rounding is flat almost everywhere; training runs with f32 activations")
round_rows.tolerance(f32=0.0, because="specified to the bit")

BF16_STEP = 32  # columns that one step of a bfloat16 product takes
BF16_DEPTH = 2**14  # the longest row that it takes


def takes_bf16(depth: Any, split: bool = False) -> bool:
    """Whether rows of `depth` elements, of both parts where they are split, have a product in bfloat16."""
    return isinstance(depth, int) and depth % (BF16_STEP * (2 if split else 1)) == 0 and 0 < depth <= BF16_DEPTH


@op
def matmul_bf16(
    x: Rows,
    weight: Weight,
    bias: Weight | None = None,
    *,
    activation: ActivationOrNone = "none",
    rounded: bool = False,
    split: bool = False,
) -> Array | Rows:
    """act(x Wᵀ + b).  x bf16 [..., K], K a multiple of 32, weight bf16 [N, K], bias [N] or absent -> [..., N]

    Subnormal numbers count as zeros. The kernels' order of summation is specified too: csrc/kernels/matmul_bf16.cpp.
    The result is f32, or with `rounded` bf16 as round_rows would make it. Split: x and weight are what a split rounding
    gives, and the product is that of the values, plus values times rests, both ways: rests times rests are left out.
    """
    rows, matrix = rounded_bf16(wide(x)), rounded_bf16(wide(weight))
    if split:
        (high, low), (left, right) = (np.split(part, 2, axis=-1) for part in (rows, matrix))
        product = high @ (left + right).T + low @ left.T
    else:
        product = rows @ matrix.T
    result = _activation(activation, product if bias is None else product + bias)
    return _as_rows(result, split) if rounded else result


@matmul_bf16.shape
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str, rounded: bool, split: bool) -> Spec:
    both = x.dtype.name == weight.dtype.name == "bf16"
    require(both, "matmul_bf16", f"rows {x} and weight {weight} must be bf16; round them first")
    fits = x.rank >= 1 and takes_bf16(x.shape[-1], split)
    require(fits, "matmul_bf16", f"rows of x {x} are not whole steps of {BF16_STEP}, or over {BF16_DEPTH}; use matmul")
    result = product_shape("matmul_bf16", x, weight, bias)
    if not rounded:
        return result.like(*result.shape, dtype="f32")
    return result.like(*result.shape[:-1], result.shape[-1] * (2 if split else 1), dtype="bf16")


@matmul_bf16.cost
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str, rounded: bool, split: bool) -> Cost:
    one = product_cost(x, weight, bias)
    return Cost(flops=one.flops * 3 // 2, bytes=one.bytes) if split else one


@matmul_bf16.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 32), (1, 17, 64), (3, 16, 64), (17, 33, 96), (33, 65, 256), (65, 48, 96)]:
        yield (round_rows(normal(rng, rows, k)), weight(rng, "bf16", n, k), None), {}
    yield (round_rows(normal(rng, 2, 3, 32)), weight(rng, "bf16", 5, 32), normal(rng, 5)), {}
    for kind in ACTIVATIONS:
        yield (round_rows(normal(rng, 3, 64)), weight(rng, "bf16", 17, 64), normal(rng, 17)), {"activation": kind}
    yield (round_rows(ugly(rng, 5, 64)), weight(rng, "bf16", 17, 64), None), {}
    for rows, n, k in [(1, 17, 64), (37, 33, 96)]:
        x, w = (round_rows(normal(rng, count, k), split=True) for count in (rows, n))
        yield (x, w, normal(rng, n)), {"split": True, "activation": "gelu"}
    # Sums of whole numbers are exact, so there is one result that is right.
    x, w = (rng.integers(-9, 10, size).astype(np.float32) for size in ((35, 64), (33, 64)))
    yield (round_rows(x), pack(w, "bf16"), None), {"rounded": True}
    x, w = (round_rows(values * np.float32(257), split=True) for values in (x, w))
    yield (x, w, None), {"rounded": True, "split": True}


matmul_bf16.no_gradient("its operands are rounded; training runs with f32 activations")
matmul_bf16.tolerance(f32=1e-5, bf16=1e-5, because="gelu of what is to be rounded is within 5.2e-5, absolute")
