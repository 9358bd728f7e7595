"""The core's scan of rows for the nearest k: no array of all scores is made."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from weft import _core
from weft.errors import InputError, ShapeError
from weft.vectors.arrays import team

MOST_HITS = 1 << 28  # of all queries together: the hits must fit in memory


class Nearest(NamedTuple):
    """`rows` int64 and `scores` float32, nearest first: [k], or [queries, k]; equal scores in the order of the rows."""

    rows: np.ndarray
    scores: np.ndarray


def scan(
    queries: Any,
    rows: Any,
    count: int,
    k: int,
    metric: str,
    allowed: np.ndarray | None,
    single: bool,
    threads: int | None,
) -> Nearest:
    """The nearest k of `count` rows; `queries` and `rows` are the core's. `single` gives [k] for one query."""
    mask = None if allowed is None else np.ascontiguousarray(allowed, bool).view(np.uint8)
    if mask is not None and mask.shape != (count,):
        raise ShapeError("top_k", f"must have one mark per row, [{count}]", given=mask.shape, field="allowed")
    found = _core.vectors.top_k(queries, rows, metric, check_k(k), mask, team(threads))
    return Nearest(found[0][0], found[1][0]) if single else Nearest(*found)


def check_k(k: int) -> int:
    """A number of hits, 1 to MOST_HITS."""
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= MOST_HITS:
        raise InputError("top_k", f"must be a whole number from 1 to {MOST_HITS}", given=k, field="k")
    return int(k)
