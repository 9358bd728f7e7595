"""The HNSW graph over an index's rows, by usearch. It proposes candidates; full vectors put them in order.

usearch keeps copies in float16, whose range is 6e-8 to 65,504: infinities make it loop for ever, zeros find nothing.
So rows are stored at unit length for cosine, and for the other metrics divided by one number, the `scale`: the median
of the rows' largest elements. A row whose elements are 60,000 times as large is shortened.

The same rows give the same file on every number of cores. usearch's threads link nodes while others are being linked:
with sixteen the recall is lower, and no two graphs are the same. So a graph of many rows has several parts, each built
by one thread at a time, and a search asks all of them. How many depends on the number of rows alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

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
# Parts of a graph that is begun with many rows, the least rows of each, and what a search of one visits: docs/LOG.md.
PARTS, PART_ROWS, PART_BREADTH = 8, 10_000, 128
SEVERAL = b"weft-graph-parts"  # begins a file of several parts; a file of one part is usearch's own


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
        self._dim, self._metric, self.scale = dim, metric, 1.0 if metric == "cosine" else scale
        self._parts = self._made(1)
        self._threads = plan_threads(threads).count

    def _made(self, count: int) -> list[Any]:
        """Empty parts."""
        options = {"ndim": self._dim, "metric": METRICS[self._metric], "dtype": "f16", "connectivity": NEIGHBOURS}
        made = usearch_index()
        return [made(**options, expansion_add=ADD_BREADTH, expansion_search=SEARCH_BREADTH) for _ in range(count)]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def add(
        self, rows: np.ndarray, vectors: np.ndarray, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        """Add `rows`, numbers of `vectors` [n, dim]: all of them, or none if an exception is raised.

        They are added in a shuffled order: neighbouring files have similar meanings, and a graph that grows region by
        region has too few edges between the regions.
        """
        if not any(part.size for part in self._parts):
            self._parts = self._made(min(max(1, len(rows) // PART_ROWS), PARTS))
        shuffled, count = np.random.default_rng(0).permutation(rows), len(self._parts)
        if self.scale is None and len(rows):
            pieces = (shuffled[at : at + PIECE] for at in range(0, len(rows), PIECE))
            self.scale = _middle(np.concatenate([largest_of(vectors[piece]) for piece in pieces]))
        done, shares = 0, [shuffled[shuffled % count == part] for part in range(count)]
        try:
            for at in range(0, max(map(len, shares)), PIECE):
                pieces_now = [share[at : at + PIECE] for share in shares]
                self._add_to_parts(pieces_now, vectors)
                done += sum(map(len, pieces_now))
                on_progress(done, len(rows))
        except BaseException:
            self.remove(rows)
            raise

    def _add_to_parts(self, pieces: list[np.ndarray], vectors: np.ndarray) -> None:
        """Add a piece to each part; parts are built at the same time, each by one thread."""

        def add(part: int) -> None:
            fitted = self._fitted(vectors[pieces[part]], unit=self._metric == "cosine")
            self._add(part, pieces[part].astype(np.uint64), fitted)

        filled = [part for part, piece in enumerate(pieces) if len(piece)]
        if len(filled) == 1 or self._threads == 1:  # in this thread, where usearch sees Ctrl-C
            for part in filled:
                add(part)
        else:
            with ThreadPoolExecutor(min(self._threads, len(filled))) as pool:
                list(pool.map(add, filled))

    def _add(self, part: int, keys: np.ndarray, vectors: np.ndarray) -> None:
        with interruptible():
            self._parts[part].add(keys, vectors, threads=1)

    def remove(self, rows: np.ndarray) -> None:
        for part in self._parts:
            part.remove(rows.astype(np.uint64), threads=1)

    def renumber(self, old: np.ndarray) -> None:
        """Row `old[i]` becomes row i; `old` is in order and names every row that is left."""
        new = np.arange(len(old))
        moved = new != old  # each takes a number that is free already, or was freed just before
        keys, numbers = old[moved].astype(np.uint64), new[moved].astype(np.uint64)
        for part in self._parts:
            here = np.asarray(part.contains(keys), bool).reshape(-1) if len(keys) else np.zeros(0, bool)
            if here.any():
                part.rename(keys[here], numbers[here])

    def candidates(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Row numbers [m, c], -1 where fewer were found."""
        wanted = min(max(k * CANDIDATES, 32), max(1, len(self)))
        near = self._fitted(queries, unit=self._metric != "euclidean")  # a query's length does not reorder dot products
        found = [self._in_part(part, near, wanted) for part in self._parts if len(part)]
        if not found:
            return np.full((len(queries), 1), -1)
        rows, distances = (np.concatenate(group, axis=1) for group in zip(*found))
        if len(found) == 1:
            return rows
        best = np.argsort(distances, axis=1, kind="stable")[:, :wanted]
        return np.take_along_axis(rows, best, axis=1)

    def _in_part(self, part: Any, near: np.ndarray, wanted: int) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers and distances [m, c] of the nearest in one part, -1 and infinity where fewer were found."""
        part.expansion_search = max(SEARCH_BREADTH if len(self._parts) == 1 else PART_BREADTH, wanted)
        with interruptible():
            found = part.search(near, min(wanted, len(part)), threads=self._threads)
        rows = np.asarray(found.keys).reshape(len(near), -1).astype(np.int64)
        distances = np.asarray(found.distances, np.float32).reshape(len(near), -1)
        counts = np.asarray(getattr(found, "counts", [rows.shape[1]] * len(near))).reshape(-1)
        missing = np.arange(rows.shape[1])[None] >= counts[:, None]
        return np.where(missing, -1, rows), np.where(missing, np.float32(np.inf), distances)

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
        if len(self._parts) == 1:
            self._parts[0].save(str(path))
            return
        blobs = [bytes(part.save()) for part in self._parts]
        with open(path, "wb") as file:
            file.write(SEVERAL + struct.pack(f"<I{len(blobs)}Q", len(blobs), *map(len, blobs)))
            for blob in blobs:
                file.write(blob)

    @classmethod
    def load(cls, path: Path, dim: int, metric: str, count: int, **options: Any) -> Graph:
        """The graph in a file, which must be trusted: usearch does not check it. `options` are those of `Graph`."""
        graph = cls(dim, metric, **options)
        blobs = _blobs(path)
        graph._parts = graph._made(len(blobs))
        try:
            for part, blob in zip(graph._parts, blobs):
                part.load(blob)
        except Exception as error:  # usearch documents no class of its errors
            raise FormatError(path.name, f"usearch cannot read the graph: {error}") from None
        found = {int(part.ndim) for part in graph._parts}
        if len(graph) != count or found != {dim}:
            held = f"the graph has {len(graph)} rows of {max(found)} numbers"
            raise FormatError(path.name, f"{held}, the index {count} rows of {dim}")
        return graph


def _blobs(path: Path) -> list[Any]:
    """The parts of a file as usearch takes them: the path of a file that has one, else the bytes of each."""
    try:
        with open(path, "rb") as file:
            return _parts_in(file, path) if file.read(len(SEVERAL)) == SEVERAL else [str(path)]
    except OSError as error:
        raise FormatError(path.name, f"the graph cannot be read: {error.strerror}") from None


def _parts_in(file: BinaryIO, path: Path) -> list[bytes]:
    head = file.read(4)
    count = int.from_bytes(head, "little") if len(head) == 4 else 0
    table = file.read(8 * count) if 1 < count <= PARTS else b""
    if not table or len(table) != 8 * count:
        raise FormatError(path.name, "the table of its parts is damaged")
    sizes = struct.unpack(f"<{count}Q", table)
    if sum(sizes) + file.tell() != path.stat().st_size:
        raise FormatError(path.name, "its parts are not as long as its table says")
    return [file.read(size) for size in sizes]


def _middle(largest: np.ndarray) -> float:
    some = largest[largest > 0]
    return float(np.median(some.astype(np.float64))) if len(some) else 1.0
