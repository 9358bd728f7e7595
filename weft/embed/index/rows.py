"""The arrays of an index: vectors, their norms, their codes if it has any, and which rows are alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.errors import InputError, TierError
from weft.vectors import Codes, Nearest, PreparedQuery, Tier, norms, quantise, rescore, top_k
from weft.vectors.codes import METRICS, SIDES, TINY, tier_named

DTYPES = {"f32": np.float32, "f16": np.float16}
INDEX_METRICS = ("cosine", "dot", "euclidean", "manhattan")
# Lengths for which a search's sums do not overflow, as in csrc/vectors/score.h: one row outside spoils every result.
LEAST_NORM, MOST_NORM = 1e-15, 1e18
# Candidates per hit that a scan of codes passes on to the full vectors: docs/LOG.md has the recall.
CANDIDATES = {Tier.INT8: 4, Tier.INT4: 10, Tier.BINARY: 40}
LEAST_CANDIDATES = 32
FIRST_CAPACITY = 256
MAX_ROWS = 1 << 32
NORMALISE = "bring it to unit length with weft.vectors.normalise first"


class Rows:
    """Vectors [n, dim] in float32 or float16; a deleted row keeps its place until `kept` copies the others."""

    def __init__(self, dim: int, storage: str = "f32", metric: str = "cosine", codes: Tier | str | None = None) -> None:
        if storage not in DTYPES:
            raise InputError("index", f"must be one of {', '.join(DTYPES)}", given=storage, field="storage")
        if metric not in INDEX_METRICS:
            raise InputError("index", f"must be one of {', '.join(INDEX_METRICS)}", given=metric, field="metric")
        self.dim, self.storage, self.metric = dim, storage, metric
        self.tier = None if codes is None or codes == Tier.FULL else tier_named(codes)
        if self.tier is not None and metric not in METRICS[self.tier]:
            what = f"cannot be used with metric {metric!r}, only with {', '.join(METRICS[self.tier])}"
            raise TierError("index", what, given=self.tier.value, field="codes")
        self.count = 0
        self.dead = 0
        self._arrays: dict[str, np.ndarray] = {
            name: np.empty((0, *shape), kind) for name, (shape, kind) in self._layout()
        }
        self._alive = np.empty(0, bool)
        self._codes: Codes | None = None

    def _layout(self) -> list[tuple[str, tuple[tuple[int, ...], Any]]]:
        """The arrays: the name of each, and the shape and dtype of one row of it."""
        found: list[tuple[str, tuple[tuple[int, ...], Any]]] = [("vectors", ((self.dim,), DTYPES[self.storage]))]
        if self.metric == "cosine":
            found.append(("norms", ((), np.float32)))
        if self.tier is not None:
            kind = np.int8 if self.tier is Tier.INT8 else np.uint8
            found.append(("codes", ((self.tier.row_bytes(self.dim),), kind)))
            found += [(f"code_{side}", ((), np.int32 if side == "sums" else np.float32)) for side in SIDES[self.tier]]
        return found

    @classmethod
    def of_arrays(cls, arrays: dict[str, np.ndarray], dim: int, storage: str, metric: str, codes: str | None) -> Rows:
        """Rows over arrays that the caller owns (a mapped file); they are copied when a row is appended."""
        rows = cls(dim, storage, metric, codes)
        rows._arrays = arrays
        rows.count = len(arrays["vectors"])
        rows._alive = np.ones(rows.count, bool)
        return rows

    def specification(self) -> dict[str, tuple[tuple[int, ...], Any]]:
        return dict(self._layout())

    def array(self, name: str) -> np.ndarray:
        return self._arrays[name][: self.count]

    @property
    def vectors(self) -> np.ndarray:
        return self.array("vectors")

    def append(self, vectors: np.ndarray, id_of: Callable[[int], object]) -> np.ndarray:
        """Append `vectors`, float32 [n, dim], and return their row numbers; `id_of` gives the id for an error."""
        with np.errstate(over="ignore"):  # checked_norms refuses vectors that overflow float16
            stored = vectors.astype(DTYPES[self.storage])
        parts: dict[str, np.ndarray] = {"vectors": stored}
        lengths = checked_norms(stored, self.metric, id_of)
        if self.metric == "cosine":
            parts["norms"] = lengths
        if self.tier is not None:
            _check_coded(stored, self.tier, id_of)
            coded = quantise(stored, self.tier)
            parts["codes"] = coded.data
            parts.update({f"code_{side}": getattr(coded, side) for side in SIDES[self.tier]})
        self._reserve(self.count + len(vectors))
        begin, self.count = self.count, self.count + len(vectors)
        for name, part in parts.items():
            self._arrays[name][begin : self.count] = part
        self._alive[begin : self.count] = True
        self._codes = None
        return np.arange(begin, self.count)

    def _reserve(self, count: int) -> None:
        if count > MAX_ROWS:
            raise InputError("index", f"it would have {count} rows; at most {MAX_ROWS} are possible")
        if count <= len(self._alive) and all(array.flags.writeable for array in self._arrays.values()):
            return
        capacity = max(count, FIRST_CAPACITY, len(self._alive) * 3 // 2)
        for name, (shape, kind) in self._layout():
            grown = np.empty((capacity, *shape), kind)
            grown[: self.count] = self._arrays[name][: self.count]
            self._arrays[name] = grown
        alive = np.zeros(capacity, bool)
        alive[: self.count] = self._alive[: self.count]
        self._alive = alive

    def take_back(self, rows: np.ndarray) -> None:
        """Undo the last `append`, which returned these numbers."""
        self.count -= len(rows)
        self._codes = None

    def kill(self, row: int) -> None:
        self._alive[row] = False
        self.dead += 1

    def alive(self) -> np.ndarray | None:
        """Which rows are alive, as a mask [n]; None where all are."""
        return self._alive[: self.count] if self.dead else None

    def kept(self) -> tuple[Rows, np.ndarray]:
        """A copy without the deleted rows, and the old number of each row in it."""
        old = np.flatnonzero(self._alive[: self.count])
        arrays = {name: self.array(name)[old] for name in self._arrays}
        code = None if self.tier is None else self.tier.value
        return Rows.of_arrays(arrays, self.dim, self.storage, self.metric, code), old

    def nearest(self, queries: np.ndarray, k: int, allowed: np.ndarray | None, threads: int | None) -> Nearest:
        """The nearest k of each of the queries [m, dim], by their full vectors."""
        known = self._norms()
        return top_k(queries, self.vectors, k, metric=self.metric, norms=known, allowed=allowed, threads=threads)

    def nearest_by_codes(self, queries: np.ndarray, k: int, threads: int | None) -> Nearest:
        """`nearest`, approximately: codes find a multiple of k candidates, which full vectors put in order."""
        if self.tier is None:
            return self.nearest(queries, k, self.alive(), threads)
        many = max(k * CANDIDATES[self.tier], LEAST_CANDIDATES)
        coarse = PreparedQuery(queries, self.tier, metric=self.metric).top_k(
            self._coded(), many, allowed=self.alive(), threads=threads
        )
        return self.rescored(queries, coarse.rows, k, threads)

    def rescored(self, queries: np.ndarray, candidates: np.ndarray, k: int, threads: int | None) -> Nearest:
        """The best k of the candidates [m, c], with the scores that an exact search gives them."""
        known = self._norms()
        return rescore(queries, candidates, self.vectors, k, metric=self.metric, norms=known, threads=threads)

    def _norms(self) -> np.ndarray | None:
        return self.array("norms") if self.metric == "cosine" else None

    def _coded(self) -> Codes:
        if self._codes is None:
            assert self.tier is not None
            sides: dict[str, Any] = {side: self.array(f"code_{side}") for side in SIDES[self.tier]}
            self._codes = Codes(self.tier, self.dim, self.array("codes"), **sides)
        return self._codes

    @property
    def nbytes(self) -> int:
        return sum(self.array(name).nbytes for name in self._arrays)


def largest_of(vectors: np.ndarray) -> np.ndarray:
    """The largest magnitude of each row [n]; NaN where the row holds one."""
    return np.maximum(vectors.max(axis=1), -vectors.min(axis=1))


def _check_coded(vectors: np.ndarray, tier: Tier, id_of: Callable[[int], object]) -> None:
    """Refuse vectors that `quantise` would refuse; the error names the id."""
    largest = largest_of(vectors)
    small = (largest > 0) & (largest <= TINY)
    if tier is not Tier.BINARY and small.any():
        raise InputError(
            "index",
            f"the vector of id {id_of(int(np.argmax(small)))!r} has no number above {largest[small][0]:.0e}; "
            f"{tier.value} codes need one above {TINY}",
            advice=NORMALISE,
        )


def checked_norms(
    vectors: np.ndarray, metric: str, id_of: Callable[[int], object], known: np.ndarray | None = None
) -> np.ndarray:
    """The norms of rows, or `known`; refuses a row that cannot be compared by `metric`, and names its id."""
    least = LEAST_NORM if metric == "cosine" else 0.0
    largest = largest_of(vectors).astype(np.float64)
    good, found = largest <= MOST_NORM, largest
    if good.all():
        found = norms(vectors) if known is None else known
        good = (least <= found) & (found <= MOST_NORM)
    if good.all():
        return found
    bad = int(np.argmin(good))
    vector = f"the vector of id {id_of(bad)!r}"
    if not np.isfinite(largest[bad]):
        raise InputError("index", f"{vector} holds NaN, infinity or a number too large for {vectors.dtype}")
    if largest[bad] == 0:
        raise InputError("index", f"{vector} is all zeros, which have no cosine to anything")
    raise InputError(
        "index",
        f"{vector} has numbers up to {largest[bad]:.0e}; {metric} compares lengths from {least:.0e} to {MOST_NORM:.0e}",
        advice=NORMALISE,
    )
