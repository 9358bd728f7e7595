"""Tiers: vectors as int8, 4-bit and binary codes, and queries prepared for them.

    int8     scale = 127 / largest; code = round(v * scale), half away from zero, in -127..127
    int4     scale = 15 / (2 * largest); code = round((v + largest) * scale) in 0..15; even places in the high half-byte
    binary   bit = v >= threshold, the first in the highest bit; cosine is estimated as 1 - 2 * differing / d

`largest` is the largest magnitude of the row. The scale of a row of zeros is 1; any other row without a number above
1e-10 is an error. The exact norm of the row is kept, so an estimated cosine may exceed 1: by tenths of a percent for
int8, by some percent for int4.
"""

from __future__ import annotations

import math
import operator
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import _core
from weft.errors import InputError, ShapeError, TierError
from weft.frozen import frozen
from weft.vectors import distance
from weft.vectors.arrays import matrix, team
from weft.vectors.scan import Nearest, scan

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

TINY = 1e-10  # a row without a larger number has no scale: kTiny of csrc/vectors/codes.cpp
HOUR, DAY, WEEK = 3600, 86400, 7 * 86400


class Tier(str, Enum):
    """How much of a vector is kept: all of it, a 4th, an 8th or a 32nd."""

    FULL = "full"
    INT8 = "int8"
    INT4 = "int4"
    BINARY = "binary"

    @property
    def ratio(self) -> int:
        """How many times smaller than float32."""
        return {"full": 1, "int8": 4, "int4": 8, "binary": 32}[self.value]

    def row_bytes(self, dim: int) -> int:
        """Bytes of one row's codes, without its norm and scale."""
        return {"full": 4 * dim, "int8": dim, "int4": (dim + 1) // 2, "binary": (dim + 7) // 8}[self.value]

    @classmethod
    def from_age_seconds(cls, age_s: float) -> Tier:
        """Full below an hour, int8 below a day, int4 below a week, then binary: a rule of thumb, not a measurement."""
        if not age_s >= 0:
            raise InputError("tier", "must not be negative", given=age_s, field="age_s")
        return cls.FULL if age_s < HOUR else cls.INT8 if age_s < DAY else cls.INT4 if age_s < WEEK else cls.BINARY


ELEMENTS = {Tier.FULL: "f32", Tier.INT8: "i8", Tier.INT4: "u4", Tier.BINARY: "bits"}
DTYPES = {Tier.FULL: np.float32, Tier.INT8: np.int8, Tier.INT4: np.uint8, Tier.BINARY: np.uint8}
SIDES = {  # the arrays beside the codes of each tier, one number per row
    Tier.FULL: ("norms",),
    Tier.INT8: ("norms", "scales"),
    Tier.INT4: ("norms", "scales", "offsets", "sums"),
    Tier.BINARY: ("norms",),
}
METRICS = {
    Tier.FULL: ("dot", "cosine", "sqeuclidean", "euclidean", "manhattan"),
    Tier.INT8: ("dot", "cosine"),
    Tier.INT4: ("dot", "cosine"),
    Tier.BINARY: ("cosine", "hamming"),
}


@frozen(eq=False)
class Codes:
    """Rows of one tier: `data` [n, row_bytes] and one number per row of each of SIDES; made by `quantise`."""

    tier: Tier
    dim: int
    data: np.ndarray
    norms: np.ndarray
    scales: np.ndarray | None = None
    offsets: np.ndarray | None = None
    sums: np.ndarray | None = None
    threshold: float = 0.0  # of binary codes; a query must be coded with the same

    def __post_init__(self) -> None:
        width = self.dim if self.tier is Tier.FULL else self.tier.row_bytes(self.dim)
        if self.data.dtype != DTYPES[self.tier] or self.data.ndim != 2 or self.data.shape[1] != width:
            what = (
                f"must be {DTYPES[self.tier].__name__} [n, {width}] for {self.tier.value} codes of {self.dim} numbers"
            )
            raise ShapeError("codes", what, given=(self.data.dtype.name, self.data.shape), field="data")
        for name in SIDES[self.tier]:
            side, kind = getattr(self, name), np.int32 if name == "sums" else np.float32
            if side is None or side.shape != (len(self.data),) or side.dtype != kind:
                what = f"must be {kind.__name__} [{len(self.data)}] for {self.tier.value} codes"
                raise ShapeError(
                    "codes", what, given=None if side is None else (side.dtype.name, side.shape), field=name
                )

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows: Any) -> Codes:
        """Some of the rows, by a number, a slice, a mask or an array of row numbers; one row gives Codes too."""
        chosen = rows
        if hasattr(rows, "__index__") and not isinstance(rows, (bool, np.ndarray)):
            place = operator.index(rows)
            if not -len(self) <= place < len(self):
                raise IndexError(f"row {place} of {len(self)}")
            chosen = [place]
        sides = {name: np.ascontiguousarray(getattr(self, name)[chosen]) for name in SIDES[self.tier]}
        return Codes(self.tier, self.dim, self.data[chosen], **sides, threshold=self.threshold)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes + sum(getattr(self, name).nbytes for name in SIDES[self.tier]))

    @cached_property
    def native(self) -> Any:
        """The core's view of the codes, without a copy."""
        data = self.data if self.data.strides[1] == self.data.itemsize else np.ascontiguousarray(self.data)
        sides = {name: np.ascontiguousarray(getattr(self, name)) for name in SIDES[self.tier]}
        return _core.vectors.Rows(data, ELEMENTS[self.tier], self.dim, **sides)

    def dequantise(self) -> np.ndarray:
        """The vectors that the codes stand for, float32 [n, dim]; for binary codes the signs, scaled to the norms."""
        if self.tier is Tier.FULL:
            return self.data.copy()
        if self.tier is Tier.BINARY:
            bits = np.unpackbits(self.data, axis=1, count=self.dim)
            return ((bits * 2.0 - 1.0) * (self.norms[:, None] / np.sqrt(self.dim))).astype(np.float32)
        assert self.scales is not None
        if self.tier is Tier.INT8:
            return (self.data / self.scales[:, None]).astype(np.float32)
        assert self.offsets is not None
        pairs = np.stack([self.data >> 4, self.data & 15], axis=2).reshape(len(self), -1)[:, : self.dim]
        return (pairs / self.scales[:, None] - self.offsets[:, None]).astype(np.float32)


def quantise(
    x: ArrayLike, tier: Tier | str, *, threshold: float = 0.0, dtype: str | None = None, threads: int | None = None
) -> Codes:
    """Codes of `x` [d] or [n, d], the same bits on every machine. NaN and infinity are errors; `dtype` "bf16" means
    that uint16 holds bfloat16."""
    kind = tier_named(tier)
    rows, _ = distance.wide(x, dtype, "quantise")
    rows = np.ascontiguousarray(rows)
    count, dim = rows.shape
    if kind is Tier.FULL:
        return Codes(kind, dim, rows, np.atleast_1d(distance.norms(rows)))
    if type(threshold) not in (int, float) or not math.isfinite(threshold):
        raise InputError("quantise", "must be a finite number", given=threshold, field="threshold")
    data = np.empty((count, kind.row_bytes(dim)), DTYPES[kind])
    sides = {name: np.empty(count, np.int32 if name == "sums" else np.float32) for name in SIDES[kind]}
    given = (sides.get(name) for name in ("norms", "scales", "offsets", "sums"))
    _core.vectors.encode(rows, ELEMENTS[kind], threshold, data, *given, team(threads))
    if kind is not Tier.BINARY:
        _check_size(rows, sides["norms"])
    return Codes(kind, dim, data, **sides, threshold=threshold if kind is Tier.BINARY else 0.0)


def _check_size(rows: np.ndarray, norms: np.ndarray) -> None:
    """Refuse rows without a number above TINY: their codes would be those of zeros, and scores meaningless."""
    for row in np.flatnonzero((norms > 0) & (norms <= TINY * np.sqrt(rows.shape[1]))):
        if np.abs(rows[row]).max() <= TINY:
            raise InputError(
                "quantise",
                f"has no number above {TINY}, so its codes have no scale",
                field="row",
                index=int(row),
                advice="bring it to unit length with weft.vectors.normalise first",
            )


def tier_named(tier: Tier | str) -> Tier:
    try:
        return Tier(tier)
    except ValueError:
        what = f"must be one of {', '.join(t.value for t in Tier)}"
        raise InputError("vectors", what, given=tier, field="tier") from None


class PreparedQuery:
    """Queries [d] or [n, d] coded once for rows of one tier; rows of another tier are a TierError."""

    def __init__(
        self,
        query: ArrayLike,
        tier: Tier | str,
        *,
        metric: str = "cosine",
        threshold: float = 0.0,
        dtype: str | None = None,
    ) -> None:
        self.tier = tier_named(tier)
        self.metric = metric
        if metric not in METRICS[self.tier]:
            what = f"must be {' or '.join(METRICS[self.tier])} for {self.tier.value} codes"
            raise TierError("vectors", what, given=metric, field="metric")
        self.single = matrix(query, dtype, name="query").single
        self.codes = quantise(query, self.tier, threshold=threshold, dtype=dtype)

    def scores(self, rows: Codes, *, threads: int | None = None) -> np.ndarray:
        """The score of every row: float32 [n], or [queries, n]."""
        self._check(rows)
        out = np.empty((len(self.codes), len(rows)), np.float32)
        _core.vectors.scores(self.codes.native, rows.native, self.metric, out, team(threads))
        return out[0] if self.single else out

    def top_k(self, rows: Codes, k: int, *, allowed: np.ndarray | None = None, threads: int | None = None) -> Nearest:
        """The nearest k of the rows, or of the rows in the mask `allowed` [n]."""
        self._check(rows)
        return scan(self.codes.native, rows.native, len(rows), k, self.metric, allowed, self.single, threads)

    def _check(self, rows: Codes) -> None:
        if not isinstance(rows, Codes):
            raise InputError("vectors", f"must be Codes made by quantise, not {type(rows).__name__}", field="rows")
        if rows.tier is not self.tier:
            what = f"must be {self.tier.value} codes, for which the query was prepared"
            raise TierError("vectors", what, given=rows.tier.value, field="rows")
        if rows.dim != self.codes.dim:
            raise ShapeError("vectors", f"vectors of {self.codes.dim} and {rows.dim} numbers cannot be compared")
        if rows.threshold != self.codes.threshold:
            what = f"must be coded with threshold {self.codes.threshold}, as the query"
            raise TierError("vectors", what, given=rows.threshold, field="rows")
