"""Distances. Two vectors give a float, one and many [n], many and many [m, n].

The public functions are the core's, which handle two plain numpy arrays directly and call `_many` for anything else.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from weft import _core, flags
from weft.errors import InputError, ShapeError
from weft.vectors.arrays import BITS_METRIC, matrix, same_length, team

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import ArrayLike

METRICS = ("dot", "cosine", "sqeuclidean", "euclidean", "manhattan", "hamming")
LARGER_IS_NEARER = ("dot", "cosine")
UNIT_TOLERANCE = 1e-4


class Distance(Protocol):
    """`a` and `b` are [d] or [n, d] of float32, float16, bfloat16 (uint16 with `dtype="bf16"`) or int8; sums are
    float32, those of int8 exact. Different lengths, NaN, infinities and, for cosine, a norm of zero are errors."""

    def __call__(
        self,
        a: ArrayLike,
        b: ArrayLike,
        *,
        dtype: str | None = None,
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> Any: ...


def _many(
    metric: str,
    a: ArrayLike,
    b: ArrayLike,
    *,
    dtype: str | None = None,
    out: np.ndarray | None = None,
    threads: int | None = None,
) -> Any:
    left, right = matrix(a, dtype, name=metric), matrix(b, dtype, name=metric)
    same_length(left, right, metric)
    check_bits(metric, left.element)
    if right.single and not left.single:  # all distances here are symmetric
        left, right = right, left
    shape = (len(left.array), len(right.array))
    scores = np.empty(shape, np.float32) if out is None else _given(out, shape, left.single)
    _core.vectors.scores(left.rows(), right.rows(), metric, scores, team(threads))
    if left.single and right.single:
        return float(scores[0, 0])
    return scores[0] if left.single else scores


def check_bits(metric: str, element: str) -> None:
    """Refuse unknown metrics; hamming is for bits packed in uint8, and bits have no other metric."""
    if metric not in METRICS:
        raise InputError("vectors", f"must be one of {', '.join(METRICS)}", given=metric, field="metric")
    if (metric == BITS_METRIC) != (element == "bits"):
        what = "must be hamming for bits packed in uint8, and another metric for numbers"
        raise InputError("vectors", what, given=metric, field="metric")


def _given(out: np.ndarray, shape: tuple[int, int], single: bool) -> np.ndarray:
    wanted = shape[1:] if single else shape
    if out.shape != wanted or out.dtype != np.float32 or not out.flags.c_contiguous or not out.flags.writeable:
        what = f"must be a contiguous, writable float32 array {wanted}"
        raise ShapeError("vectors", what, given=(out.dtype.name, out.shape), field="out")
    return out.reshape(shape)


_core.vectors.set_level(flags.get("WEFT_ISA") or "")
_core.vectors.start_pairs(np.zeros(3, np.float32), {metric: partial(_many, metric) for metric in METRICS})

dot: Distance = _core.vectors.dot
cosine: Distance = _core.vectors.cosine
sqeuclidean: Distance = _core.vectors.sqeuclidean
euclidean: Distance = _core.vectors.euclidean
manhattan: Distance = _core.vectors.manhattan
hamming: Distance = _core.vectors.hamming


def norms(x: ArrayLike, *, dtype: str | None = None) -> Any:
    """Euclidean norms: a float for [d], float32 [n] for [n, d]."""
    rows, single = wide(x, dtype, "norms")
    found = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64)).astype(np.float32)
    if not np.isfinite(found).all():
        bad = int(np.argmin(np.isfinite(found)))
        raise InputError("norms", "holds NaN or infinity, or its norm is too large", field="row", index=bad)
    return float(found[0]) if single else found


def normalise(x: ArrayLike, *, dtype: str | None = None, out: np.ndarray | None = None) -> np.ndarray:
    """The rows of `x` [d] or [n, d] scaled to unit length, float32; `out` may be `x`. A norm of zero is an error."""
    rows, single = wide(x, dtype, "normalise")
    result = np.empty(rows.shape, np.float32) if out is None else _given(out, (rows.shape[0], rows.shape[1]), single)
    _core.vectors.normalise(np.ascontiguousarray(rows), result, np.empty(len(rows), np.float32))
    return result[0] if single else result


def is_unit(x: ArrayLike, *, tolerance: float = UNIT_TOLERANCE) -> bool:
    """Whether every row has a norm of 1, within `tolerance`: then dot is cosine."""
    return bool(np.all(np.abs(np.asarray(norms(x)) - 1) <= tolerance))


def wide(x: ArrayLike, dtype: str | None, name: str) -> tuple[np.ndarray, bool]:
    """Rows as float32, and whether a single vector was given."""
    from weft.dtype import bf16_to_f32

    given = matrix(x, dtype, name=name)
    if given.element == "bits":
        raise InputError(name, "uint8 arrays hold bits, which have no norm", advice="give int8 or floats")
    array = given.array
    if given.element == "bf16":
        array = bf16_to_f32(array)
    elif given.element == "f16":
        array = array.view(np.float16)
    return np.asarray(array, np.float32), given.single
