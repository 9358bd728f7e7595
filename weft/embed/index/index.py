"""`weft.Index`: vectors with ids, metadata and texts; added to, searched, saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.embed.index.canaries import check_canaries, fingerprint_of
from weft.embed.index.filters import Where, compile_where
from weft.embed.index.graph import Graph
from weft.embed.index.records import FileRecords, Id, Record, check_id, make_record
from weft.embed.index.rows import Rows
from weft.errors import FingerprintError, InputError, NotFoundError, ShapeError
from weft.frozen import frozen
from weft.vectors import Nearest, Tier
from weft.vectors.distance import wide

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.embed.service import Embedder

# Rows from which a search goes through the graph, where usearch is installed: docs/LOG.md has the measurement.
GRAPH_FROM = 100_000
MAX_DIMENSION = 65_536


@frozen
class Hit:
    """One row that was found. Larger scores are nearer for cosine and dot, smaller ones for euclidean."""

    id: Id
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


class Index:
    """Vectors of one model, searched exactly, or through a graph where there are many.

    `fingerprint` says what made the vectors; those of another are refused. `storage` "f16" halves the memory. `codes`
    ("int8", "int4", "binary") are scanned in place of the vectors, which then put the candidates in order. `graph` True
    searches through an HNSW graph (`pip install weft[hnsw]`), False never does, None does from GRAPH_FROM rows on where
    usearch is installed. Filtered searches are always exact. Calls may come from several threads.
    """

    def __init__(
        self,
        dimension: int,
        *,
        fingerprint: str = "",
        metric: str = "cosine",
        storage: str = "f32",
        codes: Tier | str | None = None,
        graph: bool | None = None,
        embedder: Embedder | None = None,
        threads: int | None = None,
    ) -> None:
        if not 1 <= dimension <= MAX_DIMENSION:
            raise InputError(f"[index] a dimension of {dimension}; 1 to {MAX_DIMENSION}")
        self._rows = Rows(dimension, storage, metric, codes)
        self._records: list[Record] | FileRecords = []
        self._places: dict[Id, int] | None = {}
        self._wants_graph, self._threads = graph, threads
        self._graph: Graph | None = None
        self.fingerprint = fingerprint
        self.embedder = embedder
        self._canaries: tuple[list[str], np.ndarray] | None = None
        self.read_only = False
        self._lock = RLock()
        if embedder is not None:
            self._check_embedder(embedder)

    @classmethod
    def from_embedder(cls, embedder: Embedder, **options: Any) -> Index:
        """An empty index for the vectors of `embedder`: its dimension, fingerprint and measure."""
        measure = embedder.info.get("similarity", "cosine")
        options.setdefault("metric", measure if measure in ("cosine", "dot", "euclidean") else "cosine")
        return cls(embedder.dimension, fingerprint=fingerprint_of(embedder), embedder=embedder, **options)

    @property
    def dimension(self) -> int:
        return self._rows.dim

    @property
    def metric(self) -> str:
        return self._rows.metric

    @property
    def info(self) -> dict[str, Any]:
        """What the index holds and how it is searched."""
        rows = self._rows
        return {
            "count": len(self),
            "dimension": rows.dim,
            "fingerprint": self.fingerprint,
            "metric": rows.metric,
            "storage": rows.storage,
            "codes": None if rows.tier is None else rows.tier.value,
            "graph": self.uses_graph,
            "bytes": rows.nbytes,
            "canaries": 0 if self._canaries is None else len(self._canaries[0]),
            "read_only": self.read_only,
        }

    def __len__(self) -> int:
        return self._rows.count - self._rows.dead

    def __contains__(self, id: object) -> bool:
        with self._lock:
            return id in self._by_id()

    @property
    def ids(self) -> list[Id]:
        """Every id, in the order of the rows."""
        with self._lock:
            return sorted(self._by_id(), key=self._by_id().__getitem__)

    def get(self, id: Id) -> Hit:
        """The metadata and text of an id, with a score of zero; NotFoundError where there is none."""
        with self._lock:
            record = self._records[self._place(id)]
            return Hit(record.id, 0.0, dict(record.metadata), record.text)

    def vector(self, id: Id) -> np.ndarray:
        """The vector of an id as it is kept, float32 [dimension]."""
        with self._lock:
            return self._rows.vectors[self._place(id)].astype(np.float32)

    def add(
        self,
        ids: Id | Sequence[Id],
        vectors: ArrayLike,
        *,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        texts: str | Sequence[str | None] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Rows for ids that are not there yet: all of them, or none where one is refused.

        One id with one vector [d], or as many ids as vectors [n, d]; the same holds for metadata and texts.
        `fingerprint` is what made the vectors, where the caller knows; it must be the index's own.
        """
        records, rows = self._prepare(ids, vectors, metadata, texts, fingerprint)
        with self._lock:
            known = [record.id for record in records if record.id in self._by_id()]
            if known:
                raise InputError(f"[index] {len(known)} of these ids are there already, as {known[0]!r}; use update")
            self._append(records, rows)

    def update(
        self,
        ids: Id | Sequence[Id],
        vectors: ArrayLike,
        *,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        texts: str | Sequence[str | None] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """As `add`, for ids that may be there: what was there is replaced whole."""
        records, rows = self._prepare(ids, vectors, metadata, texts, fingerprint)
        with self._lock:
            old = [self._by_id()[record.id] for record in records if record.id in self._by_id()]
            self._append(records, rows)
            self._kill(old)

    def delete(self, ids: Id | Iterable[Id]) -> int:
        """Remove ids, and say how many were there."""
        wanted = [ids] if isinstance(ids, (str, int)) else list(ids)
        with self._lock:
            self._check_writable()
            places = self._by_id()
            gone = [places.pop(id) for id in dict.fromkeys(map(check_id, wanted)) if id in places]
            self._kill(gone)
            return len(gone)

    def search(
        self,
        vectors: ArrayLike,
        k: int = 10,
        *,
        where: Where | None = None,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[Any]:
        """The nearest `k` as `Hit`s: a list for one vector [d], a list of lists for [m, d].

        `where` chooses rows by their metadata (`weft/embed/index/filters.py`). `exact` passes by the graph.
        """
        self._check_fingerprint(fingerprint)
        queries, single = self._vectors(vectors)
        with self._lock:
            allowed = self._allowed(where)
            found = self._nearest(queries, k, allowed, exact or where is not None)
            hits = [self._hits(rows, scores) for rows, scores in zip(found.rows, found.scores)]
        return hits[0] if single else hits

    def add_texts(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        *,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        **options: Any,
    ) -> None:
        """`add` with the embedder's vectors of documents; the texts are kept. `options` are those of `encode`."""
        made = self._embedder().encode_document(list(texts), **options)
        self.add(ids, made, metadata=metadata, texts=list(texts))

    def search_texts(
        self,
        texts: str | Sequence[str],
        k: int = 10,
        *,
        where: Where | None = None,
        exact: bool = False,
        **options: Any,
    ) -> list[Any]:
        """`search` with the embedder's vectors of queries. `options` are those of `encode`."""
        made = self._embedder().encode_query(texts if isinstance(texts, str) else list(texts), **options)
        return self.search(made, k, where=where, exact=exact)

    @property
    def uses_graph(self) -> bool:
        """Whether a search without a filter goes through the graph."""
        if self._wants_graph is not None:
            return self._wants_graph
        if len(self) < GRAPH_FROM:
            return False
        from importlib.util import find_spec

        return find_spec("usearch") is not None

    def build_graph(self) -> None:
        """Make the graph now; else the first search that wants it does."""
        with self._lock:
            if self._graph is None:
                graph, alive = Graph(self.dimension, self.metric), self._rows.alive()
                numbers = np.arange(self._rows.count) if alive is None else np.flatnonzero(alive)
                graph.add(numbers, self._rows.vectors[numbers], self._threads)
                self._graph = graph

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the index to a folder, crash-safe: it holds the old index or the new one. A graph is saved with it."""
        from weft.embed.index.saving import save_index

        with self._lock:
            self._compact()
            save_index(self, path)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        embedder: Embedder | None = None,
        mapped: bool = False,
        verify: bool | None = None,
        graph: bool | None = None,
        load_graph: bool = False,
        threads: int | None = None,
    ) -> Index:
        """The index in a folder. `mapped` leaves it in its files and is read-only; only what is searched is read.

        `verify` compares checksums (the default unless `mapped`). With an `embedder` its fingerprint is compared, and
        the canary texts are embedded again: another model is a FingerprintError. `load_graph` reads a saved graph, by
        native code that does not check it: say so for files of your own. Else it is built again when it is needed.
        """
        from weft.embed.index.saving import open_index

        opened = open_index(cls, Path(path), mapped, not mapped if verify is None else verify, load_graph)
        opened._wants_graph, opened._threads, opened.embedder = graph, threads, embedder
        if embedder is not None:
            opened._check_embedder(embedder)
            if opened._canaries is not None:
                check_canaries(embedder, *opened._canaries)
        return opened

    # What follows is called with the lock held, or before anybody else has the index.

    def _prepare(
        self, ids: Any, vectors: ArrayLike, metadata: Any, texts: Any, fingerprint: str | None
    ) -> tuple[list[Record], np.ndarray]:
        self._check_writable()
        self._check_fingerprint(fingerprint)
        rows, single = self._vectors(vectors)
        if single:
            ids, metadata, texts = [ids], None if metadata is None else [metadata], None if texts is None else [texts]
        elif isinstance(ids, (str, int)):
            raise ShapeError(f"[index] one id for {len(rows)} vectors")
        ids = list(ids)
        for name, items in (("ids", ids), ("metadata", metadata), ("texts", texts)):
            if items is not None and (isinstance(items, (str, Mapping)) or len(items) != len(rows)):
                raise ShapeError(f"[index] {len(rows)} vectors and not as many {name}")
        records = [
            make_record(id, metadata[i] if metadata is not None else None, texts[i] if texts is not None else None)
            for i, id in enumerate(ids)
        ]
        if len({record.id for record in records}) != len(records):
            raise InputError("[index] an id comes twice in one call")
        return records, rows

    def _append(self, records: list[Record], vectors: np.ndarray) -> None:
        numbers = self._rows.append(vectors)
        assert isinstance(self._records, list)
        self._records.extend(records)
        self._by_id().update((record.id, int(row)) for record, row in zip(records, numbers))
        if self._graph is not None:
            self._graph.add(numbers, self._rows.vectors[numbers], self._threads)

    def _kill(self, rows: list[int]) -> None:
        for row in rows:
            self._rows.kill(row)
            if self._graph is not None:
                self._graph.remove(row)
        if self._rows.dead > max(1024, self._rows.count // 2):
            self._compact()

    def _compact(self) -> None:
        """Let go of rows that are gone; the others get new numbers."""
        if not self._rows.dead:
            return
        self._rows, old = self._rows.kept()
        self._records = [self._records[row] for row in old]
        self._places = {record.id: row for row, record in enumerate(self._records)}
        self._graph = None

    def _nearest(self, queries: np.ndarray, k: int, allowed: np.ndarray | None, exact: bool) -> Nearest:
        if exact or not self.uses_graph or not len(self):
            return self._rows.nearest(queries, k, allowed, self._threads)
        self.build_graph()
        assert self._graph is not None
        return self._rows.rescored(queries, self._graph.candidates(queries, k, self._threads), k, self._threads)

    def _allowed(self, where: Where | None) -> np.ndarray | None:
        alive = self._rows.alive()
        if where is None:
            return alive
        test = compile_where(where)
        mask = np.zeros(self._rows.count, bool)
        for row in range(self._rows.count):
            mask[row] = (alive is None or alive[row]) and test(self._records[row].metadata)
        return mask

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        found = [(self._records[int(row)], float(score)) for row, score in zip(rows, scores) if row >= 0]
        return [Hit(record.id, score, dict(record.metadata), record.text) for record, score in found]

    def _by_id(self) -> dict[Id, int]:
        if self._places is None:  # a mapped index reads its ids when somebody asks for one
            self._places = {self._records[row].id: row for row in range(len(self._records))}
        return self._places

    def _place(self, id: Id) -> int:
        try:
            return self._by_id()[id]
        except (KeyError, TypeError):
            raise NotFoundError(f"[index] there is no id {id!r}") from None

    def _vectors(self, given: ArrayLike) -> tuple[np.ndarray, bool]:
        """Vectors as float32 [n, dimension], and whether one was given."""
        rows, single = wide(given, None, "index")
        if rows.shape[1] != self.dimension:
            raise FingerprintError(f"[index] vectors of {rows.shape[1]} numbers; the index has {self.dimension}")
        return rows, single

    def _embedder(self) -> Embedder:
        if self.embedder is None:
            raise InputError(
                "[index] texts need an embedder: Index.from_embedder(...) or Index.open(..., embedder=...)"
            )
        return self.embedder

    def _check_embedder(self, embedder: Embedder) -> None:
        if embedder.dimension != self.dimension:
            raise FingerprintError(
                f"[index] the embedder gives {embedder.dimension} numbers; the index has {self.dimension}"
            )
        self._check_fingerprint(fingerprint_of(embedder) or None)

    def _check_fingerprint(self, given: str | None) -> None:
        if given is not None and self.fingerprint and given != self.fingerprint:
            raise FingerprintError(
                f"[index] vectors of {given[:40]}; the index has those of {self.fingerprint[:40]}: "
                "embed the documents again, or use the model of then"
            )

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError("[index] a mapped index is read-only: open it without mapped=True to change it")
