"""The HNSW graph over an index's rows, by usearch. It proposes candidates; full vectors put them in order.

usearch keeps copies in float16, which ends at 65,504 and at 6e-8: infinities among them make it run for ever, and
zeros find nothing. So rows go in at unit length for cosine, and for the other metrics divided by one number, the
`scale`: that of the middle row's largest element. A row whose elements are 60,000 times as large goes in shortened.
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

# Neighbours a node, and nodes looked at when one is added and when one is searched: docs/LOG.md has what they give.
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
        raise BackendError(
            "[index] a graph needs usearch: pip install weft-engine[hnsw], or search without a graph"
        ) from None
    return Index


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt: usearch makes it "Operation has been terminated", an error of its own."""
    try:
        yield
    except RuntimeError as error:
        if "terminated" not in str(error).lower():
            raise
        raise KeyboardInterrupt from None


class Graph:
    """Rows by number. Grows with `add`; what `remove` takes out stays as a way to others, and is not found.

    `scale` None is taken from the first rows that are added.
    """

    def __init__(self, dim: int, metric: str, *, scale: float | None = None, threads: int | None = None) -> None:
        if metric not in METRICS:
            raise InputError(f"[index] a graph has no {metric}; searches by it look at every row, without one")
        self._index = usearch_index()(
            ndim=dim,
            metric=METRICS[metric],
            dtype="f16",
            connectivity=NEIGHBOURS,
            expansion_add=ADD_BREADTH,
            expansion_search=SEARCH_BREADTH,
        )
        self._metric, self.scale = metric, 1.0 if metric == "cosine" else scale
        self._threads = plan_threads(threads).count

    def __len__(self) -> int:
        return len(self._index)

    def add(
        self, rows: np.ndarray, vectors: np.ndarray, told: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Put in `rows`, numbers of `vectors` [n, dim]: all of them, or none where that ends with an exception.

        They go in shuffled: neighbours in a folder are neighbours in meaning, and a graph that grows region by region
        has too few ways between the regions.
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
                told(done, len(rows))
        except BaseException:
            self.remove(rows)
            raise

    def _add(self, keys: np.ndarray, vectors: np.ndarray) -> None:
        with interruptible():
            self._index.add(keys, vectors, threads=self._threads)

    def remove(self, rows: np.ndarray) -> None:
        self._index.remove(rows.astype(np.uint64), threads=self._threads)

    def renumber(self, old: np.ndarray) -> None:
        """Row `old[i]` becomes row i; `old` is in order and names every row that is left."""
        new = np.arange(len(old))
        moved = new != old  # each goes to a number that was free, or became so just before
        if moved.any():
            self._index.rename(old[moved].astype(np.uint64), new[moved].astype(np.uint64))

    def candidates(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Row numbers [m, c], -1 where fewer were found."""
        wanted = min(max(k * CANDIDATES, 32), max(1, len(self)))
        self._index.expansion_search = max(SEARCH_BREADTH, wanted)
        near = self._fitted(queries, unit=self._metric != "euclidean")  # a query's length changes no order of dots
        with interruptible():
            found = self._index.search(near, wanted, threads=self._threads)
        keys = np.asarray(found.keys).reshape(len(queries), -1)
        counts = np.asarray(getattr(found, "counts", [keys.shape[1]] * len(queries))).reshape(-1)
        rows = keys.astype(np.int64)
        rows[np.arange(rows.shape[1])[None] >= counts[:, None]] = -1
        return rows

    def _fitted(self, vectors: np.ndarray, *, unit: bool) -> np.ndarray:
        """Float32 rows whose elements float16 can hold."""
        wide = np.asarray(vectors, np.float32)
        largest = largest_of(wide)[:, None].astype(np.float64)
        if not np.isfinite(largest).all():
            raise InputError(f"[index] vector {int(np.argmin(np.isfinite(largest)))} holds NaN or infinity")
        if not unit:
            return (wide / np.maximum(largest / LARGEST, self.scale or 1.0)).astype(np.float32)
        even = wide / np.where(largest > 0, largest, 1.0)  # whose squares neither overflow nor vanish
        lengths = np.sqrt(np.einsum("nd,nd->n", even, even))[:, None]
        return (even / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)

    def save(self, path: Path) -> None:
        self._index.save(str(path))

    @classmethod
    def load(cls, path: Path, dim: int, metric: str, count: int, **options: Any) -> Graph:
        """usearch reads the file as it is: only for files that are trusted. `options` are those of `Graph`."""
        graph = cls(dim, metric, **options)
        try:
            graph._index.load(str(path))
        except Exception as error:  # whatever it throws
            raise FormatError(f"[{path.name}] usearch cannot read the graph: {error}") from None
        if len(graph) != count or graph._index.ndim != dim:
            raise FormatError(f"[{path.name}] a graph of {len(graph)} rows; the index has {count}")
        return graph


def _middle(largest: np.ndarray) -> float:
    some = largest[largest > 0]
    return float(np.median(some.astype(np.float64))) if len(some) else 1.0
