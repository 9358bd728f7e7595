"""How far a kernel may be from the meaning of its op: one number per element type, and where the number comes from.

The error is the norm of the difference over the norm of the reference, over all elements of all results. A relative
error in an element that is tiny beside its neighbours hardly counts, and the error grows with the root of the number
of roundings.
"""

import math
from typing import Any

import numpy as np

from weft.ops.packed import Packed

# The unit roundoff u is half the distance from 1 to the next number: 2^-24 for f32, 2^-11 for f16, 2^-8 for bf16.
# Elementwise work is a handful of roundings and a polynomial of a few u; 16 u leaves room for the whole chain.
DEFAULTS = {
    "f32": 16 * 2.0**-24,  # 9.5e-7
    "f16": 2 * 2.0**-11,  # computed in f32, rounded once: u, doubled for a value on the edge of two roundings
    "bf16": 2 * 2.0**-8,
    "f64": 64 * 2.0**-53,  # the reference against itself, summed in another order
    "i32": 0.0,
    "a8_32": 0.0,  # the arithmetic that decides the codes is specified to the bit
    "a8_256": 0.0,
}


def chain(length: int) -> float:
    """f32 tolerance of a sum of `length` products: roundings add up like a random walk, 4 times its usual length.

    The worst case, length * u, is reached only when every rounding goes the same way.
    """
    return DEFAULTS["f32"] + 4 * math.sqrt(length) * 2.0**-24


def relative_error(got: Any, want: Any) -> float:
    """|got - want| / |want| in the 2-norm, in float64; inf when shapes differ or the same elements are not finite."""
    if isinstance(want, Packed):
        same = got.dtype == want.dtype and got.shape == want.shape
        return 0.0 if same and np.array_equal(got.data, want.data) else math.inf
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.shape != want.shape or not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return math.inf
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return math.inf
    largest = float(np.max(np.abs(want[finite]), initial=0.0)) or 1.0  # scaled first, so that squares cannot overflow
    difference = float(np.linalg.norm((got[finite] - want[finite]) / largest))
    return difference / (float(np.linalg.norm(want[finite] / largest)) or 1.0)
