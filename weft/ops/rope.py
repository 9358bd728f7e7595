"""Rotary positions: pairs of channels turned by an angle that grows with the token's position."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.ops.packed import Packed, wide
from weft.ops.registry import Array, Cost, Integers, Sample, Weight, op, require
from weft.ops.samples import integers, normal, ugly
from weft.ops.spec import Spec


def _turn(x: np.ndarray, angle: np.ndarray, interleaved: bool, scale: float) -> np.ndarray:
    """x [T, H, D] with its first 2R channels turned by angle [T, R]."""
    turned = angle.shape[1]
    first, second = (slice(0, 2 * turned, 2), slice(1, 2 * turned, 2)) if interleaved else (
        slice(0, turned), slice(turned, 2 * turned)
    )  # fmt: skip
    cos, sin = scale * np.cos(angle)[:, None, :], scale * np.sin(angle)[:, None, :]
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def _angle(positions: np.ndarray, inv_freq: np.ndarray | Packed) -> np.ndarray:
    product = positions[:, None].astype(np.float32) * wide(inv_freq).astype(np.float32)
    return product.astype(np.float64)


@op(in_place=(("x",),))
def rope(x: Array, positions: Integers, inv_freq: Weight, *, interleaved: bool = False, scale: float = 1.0) -> Array:
    """Channels turned by positions[t] * inv_freq[r].  x [T, H, D], positions [T], inv_freq [R] -> [T, H, D], 2R <= D

    Channel r is paired with r + R, or 2r with 2r + 1 when interleaved; the rest pass unchanged. `scale` multiplies cos
    and sin. The angle is the float32 product of the two, as the models were trained with.
    """
    return _turn(x, _angle(positions, inv_freq), interleaved, scale)


@rope.shape
def _(x: Spec, positions: Spec, inv_freq: Spec, *, interleaved: bool, scale: float) -> Spec:
    require(x.rank == 3, "rope", f"x must be [T, H, D]: got {x}")
    require(positions.shape == x.shape[:1], "rope", f"positions {positions} do not fit x {x}")
    fits = inv_freq.rank == 1 and inv_freq.is_vector(inv_freq.shape[0]) and 2 * inv_freq.shape[0] <= x.shape[2]
    require(fits, "rope", f"inv_freq {inv_freq} does not fit x {x}; it must be [R] with 2R <= {x.shape[2]}")
    return x


@rope.cost
def _(x: Spec, positions: Spec, inv_freq: Spec, *, interleaved: bool, scale: float) -> Cost:
    pairs = x.shape[0] * x.shape[1] * inv_freq.shape[0]
    return Cost(flops=6 * pairs, bytes=2 * x.nbytes + positions.nbytes + inv_freq.nbytes)


def _frequencies(count: int) -> np.ndarray:
    return (10000.0 ** -(np.arange(count) / count)).astype(np.float32)


@rope.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
    for interleaved in (False, True):
        for tokens, heads, dim, turned in [(1, 1, 2, 1), (3, 2, 64, 32), (5, 3, 34, 17), (4, 2, 66, 16)]:
            positions = integers(rng.integers(0, 4096, tokens))
            yield (normal(rng, tokens, heads, dim), positions, _frequencies(turned)), {"interleaved": interleaved}
    view = normal(rng, 2, 5, 32).transpose(1, 0, 2)
    yield (view, integers([0, 1, 2, 131071, 7]), _frequencies(16)), {"scale": 1.25}
    yield (ugly(rng, 3, 2, 32), integers([5, 6, 7]), _frequencies(16)), {}


@rope.vjp
def _(
    grad: np.ndarray, x: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray, *, interleaved: bool, scale: float
) -> tuple[Any, ...]:
    to_x = _turn(grad, -_angle(positions, inv_freq), interleaved, scale)  # a rotation's transpose turns back
    return to_x, None, None  # the frequencies are constants of the model


rope.tolerance(because="cos and sin of the float32 angle to a unit in the last place, then two products and a sum")
