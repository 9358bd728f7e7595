"""Walsh's matrix, which rotates the rows of `hadamard` and of states of codes."""

from __future__ import annotations

import numpy as np


def walsh(rows: np.ndarray, size: int, stride: int = 1) -> np.ndarray:
    """Rows [..., n] times Walsh's matrix of `size`, a power of two, whose columns are `stride` apart; not normalised.

    In the type of the rows, with sums by pairs in the kernels' order, so that float32 has their bits.
    """
    out, half = rows, 1
    while half < size:
        first, second = np.moveaxis(out.reshape(*rows.shape[:-1], -1, 2, half * stride), -2, 0)
        out = np.stack([first + second, first - second], axis=-2).reshape(rows.shape)
        half *= 2
    return out
