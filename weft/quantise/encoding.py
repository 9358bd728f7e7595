"""Floats to quantised blocks, by a native search for the scales that lose least (csrc/quant/encode.h).

`weft.weights.quantise` rounds to the nearest level of a given scale, as the formats' reference does; this looks for a
better scale, which takes about a hundred nanoseconds a weight and loses less.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from weft.dtype import DTYPES, DType
from weft.errors import InputError, UnsupportedError
from weft.weights.files import TensorView
from weft.weights.pack import quantise

FLOATS = ("f32", "f16", "bf16")
ENCODED = (
    *("q8_0", "q6_k", "q5_k", "q5_1", "q5_0", "q4_k", "q4_1", "q4_0", "iq4_nl", "iq4_xs", "mxfp4", "q3_k", "q2_k"),
)
DAMPING = 0.01  # GPTQ's
LARGEST = 65504.0  # of a half, which scales are stored as


def encode(
    values: np.ndarray,
    dtype: DType | str,
    *,
    importance: np.ndarray | None = None,
    factor: np.ndarray | None = None,
    threads: int = 1,
) -> TensorView:
    """`values` (floats [..., n], n whole blocks) as `dtype`, with the scales that lose least.

    `importance` [n] says how much an error in each column matters: the mean square of what the column is multiplied
    by. The bytes do not depend on `threads`. f32, f16 and bf16 are rounded.

    With `factor` [n, n], which `feedback_factor` makes, columns are rounded one after another, and what one misses is
    made up for by those after it: GPTQ.
    """
    name = dtype.name if isinstance(dtype, DType) else dtype
    if name in FLOATS:
        return quantise(values, name)
    if name not in ENCODED:
        able = ", ".join((*FLOATS, *ENCODED))
        raise UnsupportedError("encode", "cannot be made", field="dtype", given=name, advice=f"use one of {able}")
    kind = DTYPES[name]
    values = np.ascontiguousarray(values, dtype=np.float32)
    if not values.ndim or not values.size or values.shape[-1] % kind.block:
        what = f"must have rows of whole blocks of {kind.block}"
        raise InputError("encode", what, field="values", given=values.shape)
    low, high = float(values.min()), float(values.max())
    if not max(-low, high) <= LARGEST:
        what = f"must be finite and at most {LARGEST:g}: scales are stored as halves"
        raise InputError("encode", what, field="values", given=max(-low, high))
    columns = values.shape[-1]
    weights = None if importance is None else _checked(importance, columns)
    if factor is not None and (factor.shape != (columns, columns) or not np.isfinite(factor).all()):
        what = f"must be finite numbers, {columns} rows of {columns}"
        raise InputError("encode", what, field="factor", given=factor.shape)
    blocks = _encoded(name, values.reshape(-1, columns), weights, factor, threads)
    return TensorView(kind, values.shape, blocks)


def _checked(importance: np.ndarray, columns: int) -> np.ndarray:
    """The importance with mean one, so that a floor under columns that never mattered is small beside the others."""
    importance = np.asarray(importance, dtype=np.float64)
    if importance.shape != (columns,):
        what = f"must have one number for each of {columns} columns"
        raise InputError("encode", what, field="importance", given=importance.shape)
    if not (np.isfinite(importance).all() and (importance >= 0).all()):
        raise InputError("encode", "must be finite and not negative", field="importance")
    mean = importance.mean()
    return np.ascontiguousarray(importance / mean if mean > 0 else np.ones(columns), dtype=np.float32)


def feedback_factor(moments: np.ndarray, *, damping: float = DAMPING) -> np.ndarray:
    """The upper triangular U with UᵀU = H⁻¹, f32, of the mean products H [n, n] of what columns are multiplied by.

    A part of the mean of H's diagonal is added to it, since a text shows less than all that a model will read.
    """
    if moments.ndim != 2 or moments.shape[0] != moments.shape[1] or not np.isfinite(moments).all():
        raise InputError("feedback", "must be a square of finite numbers", field="moments", given=moments.shape)
    wide = moments.astype(np.float64)
    diagonal = np.einsum("ii->i", wide)
    mean = float(diagonal.mean())
    if mean <= 0:
        return np.eye(len(wide), dtype=np.float32)
    diagonal += damping * mean
    inverse = np.linalg.inv(wide)
    inverse += inverse.T
    inverse /= 2
    return np.ascontiguousarray(np.linalg.cholesky(inverse).T, dtype=np.float32)


def _encoded(
    name: str, rows: np.ndarray, importance: np.ndarray | None, factor: np.ndarray | None, threads: int
) -> np.ndarray:
    from weft._core import quant

    flat = None if factor is None else np.ascontiguousarray(factor, np.float32).reshape(-1)

    def part(rows: np.ndarray) -> np.ndarray:
        if flat is not None:
            changed = np.array(rows, np.float32).reshape(-1)
            return quant.encode_with_feedback(name, changed, rows.shape[1], importance, flat)
        return quant.encode(name, rows.reshape(-1), rows.shape[1], importance)

    count = min(threads, len(rows))
    if count < 2:
        return part(rows)
    ends = [len(rows) * i // count for i in range(count + 1)]
    with ThreadPoolExecutor(count) as team:
        return np.concatenate(list(team.map(part, (rows[a:b] for a, b in itertools.pairwise(ends)))))
