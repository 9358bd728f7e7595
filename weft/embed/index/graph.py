"""The HNSW graph over an index's rows, by usearch. It proposes candidates; full vectors put them in order.

usearch keeps copies in float16, whose range is 6e-8 to 65,504: infinities make it loop for ever, zeros find nothing.
So rows are stored at unit length for cosine, and for the other metrics divided by one number, the `scale`: the median
of the rows' largest elements. A row whose elements are 60,000 times as large is shortened.

One thread changes a graph, and all threads search it. usearch's threads link nodes while others are being linked: with
sixteen the recall is lower, and no two graphs are the same. So the same rows give the same file on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.embed.index.rows import largest_of
from weft.errors import BackendError, FormatError, InputError
from weft.runtime.threads import plan_threads

# Neighbours per node, and nodes visited by an addition and by a search: docs/LOG.md has the measurements.
NEIGHBOURS, ADD_BREADTH, SEARCH_BREADTH = 24, 128, 512
CANDIDATES = 3  # per hit
METRICS = {"cosine": "cos", "dot": "ip", "euclidean": "l2sq"}
PIECE = 2048  # rows added at once
LARGEST = 60_000.0  # of an element, in float16


def has_usearch() -> bool:
    from importlib.util import find_spec

    return find_spec("usearch") is not None


def usearch_index() -> Any:
    try:
        from usearch.index import Index
    except ImportError:
        advice = "pip install weft-engine[hnsw], or search without a graph"
        raise BackendError("index", "a graph needs the package usearch", advice=advice) from None
    return Index


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn usearch's error "Operation has been terminated", which Ctrl-C causes, into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "terminated" not in str(error).lower():
            raise
        raise KeyboardInterrupt from None


class Graph:
    """Rows by number. `remove` leaves a node in place as a path to others, but no search returns it.

    Without a `scale`, it is computed from the first rows that are added.
    """

    def __init__(self, dim: int, metric: str, *, scale: float | None = None, threads: int | None = None) -> None:
        if metric not in METRICS:
            advice = f"use {', '.join(METRICS)}, or search without a graph"
            raise InputError("index", "is not supported by a graph", given=metric, field="metric", advice=advice)
        self._index = usearch_index()(
            ndim=dim,
            metric=METRICS[metric],
            dtype="f16",
            connectivity=NEIGHBOURS,
            expansion_add=ADD_BREADTH,
            expansion_search=SEARCH_BREADTH,
        )
        self._metric, self.scale = metric, 1.0 if metric == "cosine" else scale
        self._threads = plan_threads(threads).count  # of searches

    def __len__(self) -> int:
        return len(self._index)

    def add(
        self, rows: np.ndarray, vectors: np.ndarray, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Add `rows`, numbers of `vectors` [n, dim]: all of them, or none if an exception is raised.

        They are added in a shuffled order: neighbouring files have similar meanings, and a graph that grows region by
        region has too few edges between the regions.
        """
        shuffled = np.random.default_rng(0).permutation(rows)
        pieces = [shuffled[at : at + PIECE] for at in range(0, len(rows), PIECE)]
        if self.scale is None and pieces:
            self.scale = _middle(np.concatenate([largest_of(vectors[piece]) for piece in pieces]))
        done = 0
        try:
            for piece in pieces:
                self._add(piece.astype(np.uint64), self._fitted(vectors[piece], unit=self._metric == "cosine"))
                done += len(piece)
                on_progress(done, len(rows))
        except BaseException:
            self.remove(rows)
            raise

    def _add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        with interruptible():
            self._index.add(keys, vectors, threads=1)

    def remove(self, rows: np.ndarray) -> None:
        self._index.remove(rows.astype(np.uint64), threads=1)

    def renumber(self, old: np.ndarray) -> None:
        """Row `old[i]` becomes row i; `old` is in order and names every row that is left."""
        new = np.arange(len(old))
        moved = new != old  # each takes a number that is free already, or was freed just before
        if moved.any():
            self._index.rename(old[moved].astype(np.uint64), new[moved].astype(np.uint64))

    def candidates(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Row numbers [m, c], -1 where fewer were found."""
        wanted = min(max(k * CANDIDATES, 32), max(1, len(self)))
        self._index.expansion_search = max(SEARCH_BREADTH, wanted)
        near = self._fitted(queries, unit=self._metric != "euclidean")  # a query's length does not reorder dot products
        with interruptible():
            found = self._index.search(near, wanted, threads=self._threads)
        keys = np.asarray(found.keys).reshape(len(queries), -1)
        counts = np.asarray(getattr(found, "counts", [keys.shape[1]] * len(queries))).reshape(-1)
        rows = keys.astype(np.int64)
        rows[np.arange(rows.shape[1])[None] >= counts[:, None]] = -1
        return rows

    def _fitted(self, vectors: np.ndarray, *, unit: bool) -> np.ndarray:
        """Rows as float32, scaled so that float16 can hold their elements."""
        wide = np.asarray(vectors, np.float32)
        largest = largest_of(wide)[:, None].astype(np.float64)
        if not np.isfinite(largest).all():
            bad = int(np.argmin(np.isfinite(largest)))
            raise InputError("index", "holds NaN or infinity", field="vector", index=bad)
        if not unit:
            return (wide / np.maximum(largest / LARGEST, self.scale or 1.0)).astype(np.float32)
        even = wide / np.where(largest > 0, largest, 1.0)  # so that squares neither overflow nor vanish
        lengths = np.sqrt(np.einsum("nd,nd->n", even, even))[:, None]
        return (even / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)

    def save(self, path: Path) -> None:
        self._index.save(str(path))

    @classmethod
    def load(cls, path: Path, dim: int, metric: str, count: int, **options: Any) -> Graph:
        """The graph in a file, which must be trusted: usearch does not check it. `options` are those of `Graph`."""
        graph = cls(dim, metric, **options)
        try:
            graph._index.load(str(path))
        except Exception as error:  # usearch documents no class of its errors
            raise FormatError(path.name, f"usearch cannot read the graph: {error}") from None
        if len(graph) != count or graph._index.ndim != dim:
            found = f"the graph has {len(graph)} rows of {graph._index.ndim} numbers"
            raise FormatError(path.name, f"{found}, the index {count} rows of {dim}")
        return graph


def _middle(largest: np.ndarray) -> float:
    some = largest[largest > 0]
    return float(np.median(some.astype(np.float64))) if len(some) else 1.0
