"""The nearest k of vectors or codes, and candidates put in their exact order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft import _core
from weft.errors import InputError, ShapeError
from weft.vectors.arrays import matrix, same_length, team
from weft.vectors.codes import Codes, PreparedQuery
from weft.vectors.distance import check_bits
from weft.vectors.scan import Nearest, check_k, scan

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def top_k(
    query: ArrayLike,
    rows: ArrayLike | Codes,
    k: int,
    *,
    metric: str = "cosine",
    norms: ArrayLike | None = None,
    allowed: np.ndarray | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Nearest:
    """The `k` rows nearest to `query` [d], or to each of [m, d].

    `rows` are vectors [n, d], or codes, for which the query is coded too. The result is shorter than k if there are
    fewer rows, or fewer in the mask `allowed` [n]. `norms` of the rows, if known, save work for cosine. `dtype` "bf16"
    means that rows of uint16 hold bfloat16.
    """
    if isinstance(rows, Codes):
        prepared = PreparedQuery(query, rows.tier, metric=metric, threshold=rows.threshold, dtype=dtype)
        return prepared.top_k(rows, k, allowed=allowed, threads=threads)
    left, right = _query(query, dtype), matrix(rows, dtype, name="rows")
    same_length(left, right, "top_k")
    check_bits(metric, right.element)
    if right.single:
        raise ShapeError("top_k", "must be [n, d], not a single vector", field="rows")
    known = None if norms is None else _norms(norms, len(right.array))
    native = right.rows(known)
    return scan(left.rows(), native, len(right.array), k, metric, allowed, left.single, threads)


def rescore(
    query: ArrayLike,
    candidates: np.ndarray,
    rows: ArrayLike,
    k: int,
    *,
    metric: str = "cosine",
    norms: ArrayLike | None = None,
    dtype: str | None = None,
    threads: int | None = None,
) -> Nearest:
    """The best `k` of `candidates`, row numbers [c] or [queries, c], by their full vectors; -1 means no candidate.

    Puts the result of a scan of codes (`top_k` of a multiple of k) in its exact order.
    """
    left, right = _query(query, dtype), matrix(rows, dtype, name="rows")
    same_length(left, right, "rescore")
    check_bits(metric, right.element)
    given = np.atleast_2d(candidates)
    if given.dtype.kind not in "iu" and given.size:
        raise InputError("rescore", "must be row numbers", given=given.dtype.name, field="candidates")
    chosen = np.ascontiguousarray(given, np.int64)
    if chosen.ndim != 2 or len(chosen) != len(left.array):
        what = f"must have one row for each of the {len(left.array)} queries"
        raise ShapeError("rescore", what, given=np.shape(candidates), field="candidates")
    native = right.rows(None if norms is None else _norms(norms, len(right.array)))
    found = _core.vectors.top_k_of(left.rows(), native, metric, check_k(k), chosen, team(threads))
    return Nearest(found[0][0], found[1][0]) if left.single else Nearest(*found)


def _query(query: ArrayLike, dtype: str | None) -> Any:
    """A query may be float32 where the rows are bfloat16."""
    given = np.asarray(query)
    return matrix(query, dtype if dtype == "bf16" and given.dtype == np.uint16 else None, name="query")


def _norms(norms: ArrayLike, count: int) -> np.ndarray:
    given = np.asarray(norms)
    if given.shape != (count,) or given.dtype.kind not in "fiu":
        what = f"must have one number per row, [{count}]"
        raise ShapeError("top_k", what, given=(given.dtype.name, given.shape), field="norms")
    return np.ascontiguousarray(given, np.float32)
