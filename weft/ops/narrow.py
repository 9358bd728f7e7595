"""Products of training with frozen weights in a narrower arithmetic than f32, which many machines compute faster.

What is rounded are the numbers that are multiplied: rows of x, or of a gradient, and the weight. Results are f32.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.dtype import rounded_bf16
from weft.ops.backward import SECOND, back_cost, back_shape
from weft.ops.elementwise import activation as _activation
from weft.ops.matmul import GROUPS, product, product_cost, product_shape
from weft.ops.packed import wide
from weft.ops.registry import (
    ACTIVATIONS,
    NARROWS,
    ActivationOrNone,
    Array,
    Cost,
    Integers,
    Narrow,
    Sample,
    Weight,
    op,
)
from weft.ops.samples import SCALES, normal, segments, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.training import (
    head_distill,
    head_distill_cost,
    head_distill_samples,
    head_loss,
    head_loss_cost,
    head_loss_samples,
)

BECAUSE = "f16: the numbers and sums of 64 products are halves; bf16: one f32 chain over rounded numbers"


def _rounded(values: Any, to: str) -> np.ndarray:
    """As bf16 has them. Halves are scaled first, so that only their last digits go: that is left to the tolerance."""
    return rounded_bf16(wide(values)).astype(np.float64) if to == "bf16" else wide(values)


@op
def matmul_narrow(
    x: Array,
    weight: Weight,
    bias: Weight | None = None,
    starts: Integers | None = None,
    *,
    activation: ActivationOrNone = "none",
    to: Narrow,
) -> Array:
    """act(x Wᵀ + b), x and W rounded.  x [..., K], weight [N, K] of any type, bias [N] or absent -> [..., N]

    "bf16": both are rounded to bfloat16, sums are f32; csrc/kernels/narrow_wide.h specifies their order. "f16": both
    are scaled by powers of two, so that nothing overflows, and rounded to halves, as are sums of 64 products; levels
    without half-precision arithmetic round nothing. With starts [E+1] and weight [E, N, K] it is E products, as in
    matmul.
    """
    return _activation(activation, product(_rounded(x, to), _rounded(weight, to), bias, starts))


@matmul_narrow.shape
def matmul_narrow_shape(
    x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str, to: str
) -> Spec:
    return product_shape("matmul_narrow", x, weight, bias, starts)


@matmul_narrow.cost
def matmul_narrow_cost(
    x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str, to: str
) -> Cost:
    return product_cost(x, weight, bias, starts)


@matmul_narrow.samples
def matmul_narrow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for to in NARROWS:
        for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 33, 100), (33, 65, 257), (49, 257, 520)]:
            yield (normal(rng, rows, k), normal(rng, n, k), None), {"to": to}
        yield (normal(rng, 2, 3, 32), normal(rng, 5, 32), normal(rng, 5)), {"to": to}
        yield (strided(rng, 5, 33), normal(rng, 17, 33), normal(rng, 17)), {"to": to}
        yield (ugly(rng, 5, 65), normal(rng, 17, 65), None), {"to": to}
        yield (normal(rng, 5, 65, scale=1e-9), normal(rng, 17, 65, scale=1e9), None), {"to": to}
        for dtype in ("f16", "bf16", *SCALES):
            yield (normal(rng, 3, 512), weight(rng, dtype, 17, 512), None), {"to": to}
        for sizes in GROUPS:
            x, matrices = normal(rng, sum(sizes), 256), weight(rng, "q4_k", len(sizes), 17, 256)
            yield (x, matrices, None, segments(sizes)), {"to": to}
        yield (normal(rng, 5, 33), normal(rng, 2, 20, 33), normal(rng, 40), segments([2, 3])), {"to": to}
    for kind in ACTIVATIONS:
        yield (normal(rng, 3, 65), normal(rng, 17, 65, scale=0.2), normal(rng, 17)), {"activation": kind, "to": "f16"}


matmul_narrow.no_gradient("programs are differentiated before their products are made narrow")
matmul_narrow.tolerance(f32=2.0**-8, because=BECAUSE)


@op
def matmul_back_narrow(grad: Array, weight: Weight, starts: Integers | None = None, *, to: Narrow) -> Array:
    """The gradient at x of matmul, grad and W rounded.  grad [..., N], weight [N, K] of any type -> [..., K]

    Rounding and sums as in matmul_narrow; starts as in matmul_back.
    """
    return product(_rounded(grad, to), _rounded(weight, to).swapaxes(-1, -2), None, starts)


@matmul_back_narrow.shape
def matmul_back_narrow_shape(grad: Spec, weight: Spec, starts: Spec | None, *, to: str) -> Spec:
    return back_shape("matmul_back_narrow", grad, weight, starts)


@matmul_back_narrow.cost
def matmul_back_narrow_cost(grad: Spec, weight: Spec, starts: Spec | None, *, to: str) -> Cost:
    return back_cost(grad, weight, starts)


@matmul_back_narrow.samples
def matmul_back_narrow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for to in NARROWS:
        for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 33, 100), (33, 65, 257), (49, 520, 257)]:
            yield (normal(rng, rows, n), normal(rng, n, k)), {"to": to}
        yield (normal(rng, 2, 3, 5), normal(rng, 5, 32)), {"to": to}
        yield (strided(rng, 5, 17), normal(rng, 17, 33)), {"to": to}
        yield (ugly(rng, 5, 65), normal(rng, 65, 17)), {"to": to}
        yield (normal(rng, 5, 65, scale=1e-9), normal(rng, 65, 17, scale=1e-3)), {"to": to}
        for dtype in ("f16", "bf16", *SCALES):
            yield (normal(rng, 3, 17), weight(rng, dtype, 17, 512)), {"to": to}
        for sizes in GROUPS:
            yield (normal(rng, sum(sizes), 17), weight(rng, "q4_k", len(sizes), 17, 256), segments(sizes)), {"to": to}


matmul_back_narrow.no_gradient(SECOND)
matmul_back_narrow.tolerance(f32=2.0**-8, because=BECAUSE)


@op
def head_loss_narrow(
    x: Array, weight: Weight, targets: Integers, shares: Array, *, scale: float = 1.0, softcap: float = 0.0, to: Narrow
) -> tuple[Array, Array]:
    """head_loss with rounded products.  x [L, K], weight [V, K] of any type, targets, shares [L] -> [L], [L, K]

    The products that make logits, and those of the gradient at logits with W, are as in matmul_narrow. Softmax and
    losses are f32.
    """
    if to == "f16":
        return head_loss.reference(x, weight, targets, shares, scale=scale, softcap=softcap)
    rows, matrix = _rounded(x, to), _rounded(weight, to)
    unit = np.eye(len(matrix))  # as a head, it makes rows of logits their own logits
    losses, to_logits = head_loss.reference(rows @ matrix.T, unit, targets, shares, scale=scale, softcap=softcap)
    return losses, _rounded(to_logits, to) @ matrix


@head_loss_narrow.shape
def head_loss_narrow_shape(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, *, scale: float, softcap: float, to: str
) -> tuple[Spec, ...]:
    return head_loss.infer((x, weight, targets, shares), {"scale": scale, "softcap": softcap})


@head_loss_narrow.cost
def head_loss_narrow_cost(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, *, scale: float, softcap: float, to: str
) -> Cost:
    return head_loss_cost(x, weight, targets, shares, scale=scale, softcap=softcap)


@head_loss_narrow.samples
def head_loss_narrow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for to in NARROWS:
        for operands, attrs in head_loss_samples(rng):
            yield operands, {**attrs, "to": to}


head_loss_narrow.no_gradient(SECOND)
head_loss_narrow.tolerance(f32=2.0**-8, because=f"logits enter the exponent, and their gradient is rounded; {BECAUSE}")


@op
def head_distill_narrow(
    x: Array,
    weight: Weight,
    targets: Integers,
    shares: Array,
    words: Integers,
    parts: Array,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    temperature: float = 1.0,
    to: Narrow,
) -> tuple[Array, Array]:
    """head_distill with rounded products.  x [L, K], weight [V, K] of any type, targets, shares [L], words i32 and
    parts [L, M] -> [L], [L, K]

    As head_loss_narrow: softmax and losses are f32.
    """
    attrs = {"scale": scale, "softcap": softcap, "temperature": temperature}
    if to == "f16":
        return head_distill.reference(x, weight, targets, shares, words, parts, **attrs)
    rows, matrix = _rounded(x, to), _rounded(weight, to)
    unit = np.eye(len(matrix))
    losses, to_logits = head_distill.reference(rows @ matrix.T, unit, targets, shares, words, parts, **attrs)
    return losses, _rounded(to_logits, to) @ matrix


@head_distill_narrow.shape
def head_distill_narrow_shape(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, words: Spec, parts: Spec, *, to: str, **attrs: float
) -> tuple[Spec, ...]:
    return head_distill.infer((x, weight, targets, shares, words, parts), attrs)


@head_distill_narrow.cost
def head_distill_narrow_cost(
    x: Spec, weight: Spec, targets: Spec, shares: Spec, words: Spec, parts: Spec, *, to: str, **attrs: float
) -> Cost:
    return head_distill_cost(x, weight, targets, shares, words, parts, **attrs)


@head_distill_narrow.samples
def head_distill_narrow_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for to in NARROWS:
        for operands, attrs in head_distill_samples(rng):
            yield operands, {**attrs, "to": to}


head_distill_narrow.no_gradient(SECOND)
head_distill_narrow.tolerance(
    f32=2.0**-8, because=f"logits enter the exponent, and their gradient is rounded; {BECAUSE}"
)
