"""Rows turned by an orthogonal matrix that spreads every element: Walsh's, with a small factor for other widths."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.packed import wide
from weft.ops.registry import Array, Cost, Sample, Weight, op, require
from weft.ops.samples import normal, strided, ugly
from weft.ops.spec import Spec
from weft.ops.walsh import walsh

LARGEST = 1 << 18  # columns: a row is kept in a worker's scratch


@op(in_place=(("x",),))
def hadamard(
    x: Array, factor: Weight | None = None, *, size: int, stride: int = 1, inverse: bool = False
) -> Array:  # fmt: skip
    """(F kron H / sqrt(size) kron I) x, row by row.  x [..., m * size * stride], factor [m * m] -> as x

    H [size, size] is Walsh's matrix: (-1)^(bits that i and j have in common), `size` a power of two. F [m, m] is
    `factor`, row by row, or 1 where there is none, transposed with `inverse`. I is the identity of `stride`: columns
    that are mixed are `stride` apart. For an orthogonal F, `inverse` undoes it.
    """
    parts = x.shape[-1] // (size * stride)
    mixed = _parts_of(x, parts, size, stride)
    turned = mixed if factor is None else np.einsum(_PRODUCT[inverse], wide(factor).reshape(parts, parts), mixed)
    return turned.reshape(x.shape)


_PRODUCT = {False: "pq,...qi->...pi", True: "qp,...qi->...pi"}


def _parts_of(x: np.ndarray, parts: int, size: int, stride: int) -> np.ndarray:
    """H of every part: [..., parts, size * stride]"""
    return walsh(x, size, stride).reshape(*x.shape[:-1], parts, size * stride) / np.sqrt(size)


@hadamard.shape
def hadamard_shape(x: Spec, factor: Spec | None, *, size: int, stride: int, inverse: bool) -> Spec:
    require(size >= 1 and size & (size - 1) == 0, "hadamard", "must be a power of two", field="size", given=size)
    require(stride >= 1, "hadamard", "must be at least 1", field="stride", given=stride)
    width = x.shape[-1] if x.rank else 0
    whole = isinstance(width, int) and 0 < width <= LARGEST and width % (size * stride) == 0
    what = f"must have rows of whole parts of {size * stride}, at most {LARGEST}"
    require(whole, "hadamard", what, field="x", given=x)
    parts = int(width) // (size * stride)
    if factor is None:
        what = f"must be given: {width} columns are {parts} parts of {size * stride}"
        require(parts == 1, "hadamard", what, field="factor")
    else:
        fits = factor.is_vector(parts * parts)
        require(fits, "hadamard", f"must be f32[{parts * parts}], {parts} x {parts}", field="factor", given=factor)
    return x


@hadamard.cost
def hadamard_cost(x: Spec, factor: Spec | None, *, size: int, stride: int, inverse: bool) -> Cost:
    parts = int(x.shape[-1]) // (size * stride)
    steps = 1 + size.bit_length() - 1 + (0 if factor is None else 2 * parts)
    return Cost(flops=steps * x.size, bytes=2 * x.nbytes + (0 if factor is None else factor.nbytes))


@hadamard.samples
def hadamard_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield (normal(rng, 1, 1),), {"size": 1}
    for rows, size in [(1, 16), (3, 64), (2, 8), (5, 2), (65, 256), (1, 4096)]:
        yield (normal(rng, rows, size),), {"size": size}
    for rows, parts, size in [(2, 3, 32), (17, 9, 64), (65, 2, 16), (2, 5, 256), (4, 3, 4), (3, 7, 1)]:
        yield (normal(rng, rows, parts * size), _factor(rng, parts)), {"size": size}
    yield (normal(rng, 3, 4, 65 * 8), _factor(rng, 65)), {"size": 8, "inverse": True}
    for rows, parts, size, stride in [(5, 9, 1, 64), (3, 1, 8, 16), (2, 3, 4, 32), (4, 3, 2, 17), (3, 5, 16, 2)]:
        operands = (normal(rng, rows, parts * size * stride), _factor(rng, parts))
        for inverse in (False, True):
            yield operands, {"size": size, "stride": stride, "inverse": inverse}
    yield (strided(rng, 5, 96), _factor(rng, 3)), {"size": 32}
    yield (ugly(rng, 9, 64), _factor(rng, 2)), {"size": 32}


def _factor(rng: np.random.Generator, parts: int) -> np.ndarray:
    turned, _ = np.linalg.qr(rng.standard_normal((parts, parts)))
    return turned.astype(np.float32).reshape(-1)


@hadamard.vjp
def hadamard_vjp(
    grad: np.ndarray, x: np.ndarray, factor: np.ndarray | None, *, size: int, stride: int, inverse: bool
) -> tuple[Any, ...]:
    to_x = hadamard.reference(grad, factor, size=size, stride=stride, inverse=not inverse)
    if factor is None:
        return to_x, None
    parts = x.shape[-1] // (size * stride)
    mixed = _parts_of(x, parts, size, stride).reshape(-1, parts, size * stride)
    to_factor = np.einsum("npi,nqi->qp" if inverse else "npi,nqi->pq", grad.reshape(mixed.shape), mixed)
    return to_x, to_factor.reshape(-1)


hadamard.tolerance(because="a sum over the columns by pairs, log2(size) roundings, and then one over m parts")


@hadamard.back
def back_of_hadamard(
    grad: Any, x: Any, factor: Any = None, *, size: int, stride: int = 1, inverse: bool = False
) -> tuple[Any, ...]:
    return hadamard(grad, factor, size=size, stride=stride, inverse=not inverse), None


def split(width: int) -> tuple[int, int]:
    """`width` as m times the largest power of two in it."""
    size = width & -width
    return width // size, size


def mixing(parts: int) -> np.ndarray | None:
    """An orthogonal factor [parts * parts] that spreads every part over all, float64: the discrete cosine transform's.

    None for one part.
    """
    if parts == 1:
        return None
    rows, columns = np.arange(parts)[:, None], np.arange(parts)[None]
    made = np.sqrt(2.0 / parts) * np.cos(np.pi * (columns + 0.5) * rows / parts)
    made[0] = np.sqrt(1.0 / parts)
    return made.reshape(-1)
