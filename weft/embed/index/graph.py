"""The HNSW graph over an index's rows, by usearch. It proposes candidates; full vectors put them in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import BackendError, FormatError

# Neighbours a node, and nodes looked at when one is added and when one is searched: docs/LOG.md has what they give.
NEIGHBOURS, ADD_BREADTH, SEARCH_BREADTH = 24, 128, 512
CANDIDATES = 3  # per hit
METRICS = {"cosine": "cos", "dot": "ip", "euclidean": "l2sq"}


def usearch_index() -> Any:
    try:
        from usearch.index import Index
    except ImportError:
        raise BackendError("[index] a graph needs usearch: pip install weft[hnsw], or search with exact=True") from None
    return Index


class Graph:
    """Rows by number. Made of vectors [n, dim]; grows with `add`, forgets with `remove`."""

    def __init__(self, dim: int, metric: str) -> None:
        self._index = usearch_index()(
            ndim=dim,
            metric=METRICS[metric],
            dtype="f16",
            connectivity=NEIGHBOURS,
            expansion_add=ADD_BREADTH,
            expansion_search=SEARCH_BREADTH,
        )

    def __len__(self) -> int:
        return len(self._index)

    def add(self, rows: np.ndarray, vectors: np.ndarray, threads: int | None) -> None:
        self._index.add(rows.astype(np.uint64), np.asarray(vectors, np.float32), threads=threads or 0)

    def remove(self, row: int) -> None:
        self._index.remove(row)

    def candidates(self, queries: np.ndarray, k: int, threads: int | None) -> np.ndarray:
        """Row numbers [m, c], -1 where fewer were found."""
        wanted = min(max(k * CANDIDATES, 32), max(1, len(self)))
        self._index.expansion_search = max(SEARCH_BREADTH, wanted)
        found = self._index.search(queries, wanted, threads=threads or 0)
        keys = np.asarray(found.keys).reshape(len(queries), -1)
        counts = np.asarray(getattr(found, "counts", [keys.shape[1]] * len(queries))).reshape(-1)
        rows = keys.astype(np.int64)
        rows[np.arange(rows.shape[1])[None] >= counts[:, None]] = -1
        return rows

    def save(self, path: Path) -> None:
        self._index.save(str(path))

    @classmethod
    def load(cls, path: Path, dim: int, metric: str, count: int) -> Graph:
        """usearch reads the file as it is: only for files that are trusted."""
        graph = cls(dim, metric)
        try:
            graph._index.load(str(path))
        except Exception as error:  # whatever it throws
            raise FormatError(f"[{path.name}] usearch cannot read the graph: {error}") from None
        if len(graph) != count or graph._index.ndim != dim:
            raise FormatError(f"[{path.name}] a graph of {len(graph)} rows; the index has {count}")
        return graph
