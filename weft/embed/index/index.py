"""`weft.Index`: vectors with ids, metadata and texts; added to, searched, saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.embed.index.canaries import (
    check_canaries,
    check_fingerprint,
    checked_fingerprint,
    fingerprint_of,
    scheme_of,
)
from weft.embed.index.filters import Where, compile_where
from weft.embed.index.given import are_many, check_is_embedder, check_options, records_of, whole
from weft.embed.index.graph import METRICS as GRAPH_METRICS
from weft.embed.index.graph import Graph, has_usearch
from weft.embed.index.records import FileRecords, Id, Record, check_id
from weft.embed.index.rows import INDEX_METRICS, Rows
from weft.embed.inputs import many_texts, texts_of
from weft.embed.results import Embedded
from weft.errors import FingerprintError, InputError, NotFoundError, ShapeError
from weft.frozen import frozen
from weft.vectors import Nearest, Tier
from weft.vectors.distance import wide

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.embed.base import BaseEmbedder
    from weft.embed.index.files import Saved
    from weft.embed.index.saving import LaidGraph

# Rows from which `save` makes a graph, where usearch is installed: docs/LOG.md has the measurement.
GRAPH_FROM = 100_000
MAX_DIMENSION = 65_536
MAX_HITS = 1 << 28
MAX_THREADS = 1024


@frozen
class Hit:
    """One row that was found. Larger scores are nearer for cosine and dot, smaller ones for the two distances."""

    id: Id
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


class Index:
    """Vectors of one model, searched exactly, or through a graph that `build_graph`, or `save` of many rows, made.

    `fingerprint` says what made the vectors; those of another are refused. An index without one takes the first that
    it is given, by an embedder or by `add`. `metric` is cosine, dot, euclidean or manhattan, which has neither codes
    nor graph. `storage` "f16" halves the memory. `codes` ("int8", "int4", "binary") are scanned in place of the
    vectors, which then put the candidates in order. Filtered searches are always exact: they scan the vectors
    themselves. Calls may come from several threads.
    """

    def __init__(
        self,
        dimension: int,
        *,
        fingerprint: str = "",
        metric: str = "cosine",
        storage: str = "f32",
        codes: Tier | str | None = None,
        embedder: BaseEmbedder | None = None,
        threads: int | None = None,
    ) -> None:
        self._rows = Rows(whole(dimension, "dimension", MAX_DIMENSION), storage, metric, codes)
        self._records: list[Record] | FileRecords = []
        self._places: dict[Id, int] | None = {}
        self._threads = None if threads is None else whole(threads, "threads", MAX_THREADS)
        self._graph: Graph | None = None
        self._laid: LaidGraph | None = None
        self._known: dict[str, Saved] = {}  # what lay in a folder when this index was opened from there, or saved
        self.fingerprint = checked_fingerprint(fingerprint)
        self.embedder = embedder
        self._canaries: tuple[list[str], np.ndarray] | None = None
        self.read_only = False
        self._lock = RLock()
        if embedder is not None:
            check_is_embedder(embedder)
            self._check_embedder(embedder)

    @classmethod
    def from_embedder(cls, embedder: BaseEmbedder, **options: Any) -> Index:
        """An empty index for the vectors of `embedder`: its dimension, fingerprint and measure."""
        check_is_embedder(embedder)
        measure = options.setdefault("metric", embedder.info.get("similarity", "cosine"))
        if measure not in INDEX_METRICS:
            raise InputError(f"[index] the model's measure is {measure!r}; give metric=, {', '.join(INDEX_METRICS)}")
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

    def __repr__(self) -> str:
        return f"<weft.Index of {len(self):,} rows, {self.dimension} dimensions, {self.metric}>"

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
        vectors: ArrayLike | Embedded,
        *,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        texts: str | Sequence[str | None] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """Rows for ids that are not there yet: all of them, or none where one is refused.

        One id with one vector [d], or as many ids as vectors [n, d]; the same holds for metadata and texts. What
        `Embedder.embed` returns says what made it, and that must be the index's own. Of a plain array only the caller
        knows: with `fingerprint` it is compared, without one the array is taken as it is.
        """
        self._put(*self._prepare(ids, vectors, metadata, texts, fingerprint), fresh=True)

    def update(
        self,
        ids: Id | Sequence[Id],
        vectors: ArrayLike | Embedded,
        *,
        metadata: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None = None,
        texts: str | Sequence[str | None] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        """As `add`, for ids that may be there: what was there is replaced whole."""
        self._put(*self._prepare(ids, vectors, metadata, texts, fingerprint), fresh=False)

    def delete(self, ids: Id | Iterable[Id]) -> int:
        """Remove ids, and say how many were there."""
        wanted = list(ids) if are_many(ids) else [ids]
        with self._lock:
            self._check_writable()
            places = self._by_id()
            gone = [places.pop(id) for id in dict.fromkeys(map(check_id, wanted)) if id in places]
            self._kill(gone)
            return len(gone)

    def search(
        self,
        vectors: ArrayLike | Embedded,
        k: int = 10,
        *,
        where: Where | None = None,
        exact: bool = False,
        fingerprint: str | None = None,
    ) -> list[Any]:
        """The nearest `k` as `Hit`s: a list for one vector [d], a list of lists for [m, d].

        `where` chooses rows by their metadata (`weft/embed/index/filters.py`), and all vectors that it leaves are
        looked at. `exact` has all of them looked at too, past graph and codes.
        """
        queries, single, _ = self._vectors(vectors, fingerprint)
        most = whole(k, "k", MAX_HITS)
        with self._lock:
            found = self._nearest(queries, most, where, exact)
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
        """`add` with the embedder's vectors of documents; the texts are kept. `options` are those of `encode`.

        What is wrong with ids and metadata is said before anything is embedded.
        """
        self._put_texts(ids, texts, metadata, options, fresh=True)

    def update_texts(
        self,
        ids: Sequence[Id],
        texts: Sequence[str],
        *,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        **options: Any,
    ) -> None:
        """As `add_texts`, for ids that may be there: what was there is replaced whole."""
        self._put_texts(ids, texts, metadata, options, fresh=False)

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
        check_options(options)
        made = self._embedder().embed(texts_of(texts), prompt_name="query", **options)
        found = self.search(made, k, where=where, exact=exact)
        return found[0] if isinstance(texts, str) else found

    @property
    def uses_graph(self) -> bool:
        """Whether a search without a filter goes through a graph: one was built, or loaded."""
        return self._graph is not None

    def build_graph(self, told: Callable[[int, int], None] | None = None) -> None:
        """Make an HNSW graph (`pip install weft-engine[hnsw]`), which searches go through from then on.

        Where there are many rows it answers sooner than a scan, and misses some neighbours; scores stay exact. Building
        100,000 rows takes minutes and holds up other calls; `told` hears of rows done and rows in all, and Ctrl-C
        leaves the index as it was. The graph follows additions, updates and deletions. Rows that are gone remain in it
        as ways to others, unfound, until their places are needed; another `build_graph` begins without them.
        """
        with self._lock:
            graph, alive = Graph(self.dimension, self.metric, threads=self._threads), self._rows.alive()
            numbers = np.arange(self._rows.count) if alive is None else np.flatnonzero(alive)
            graph.add(numbers, self._rows.vectors, *([] if told is None else [told]))
            self._graph = graph

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        graph: bool | None = None,
        overwrite: bool = False,
        told: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write the index to a folder, crash-safe: it holds the old index or the new one, with its graph if it has one.

        A folder that this index was opened from, or saved to, and that somebody else has saved to since is a BusyError:
        what they saved would be lost. `overwrite` says that it may be.

        Rows that are gone are left out; the graph goes with the others under their new numbers. So does one that lies
        where the index was opened from without `load_graph`: it is read, by native code, the new rows are put in, and
        searches stay as they are. Where there is no graph yet, `graph` True makes one first, False does not, and None
        does from GRAPH_FROM rows on where usearch is installed: minutes that later searches do not have to spend. False
        also leaves out a graph that was not loaded, with a warning. `told` is that of `build_graph`.
        """
        from weft.embed.index.saving import open_writer, write_index

        with self._lock, open_writer(self, path, overwrite) as writer:
            self._compact()
            found = self._graph
            if found is None and self._laid is not None and graph is not False:
                found = self._laid.carried_on(self._rows, self._threads, told)
            if found is None and (self._is_worth_a_graph() if graph is None else graph):
                self.build_graph(told)
                found = self._graph
            write_index(self, writer, found)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        embedder: BaseEmbedder | None = None,
        mapped: bool = False,
        verify: bool | None = None,
        load_graph: bool = False,
        adopt: bool = False,
        threads: int | None = None,
    ) -> Index:
        """The index in a folder. `mapped` leaves it in its files and is read-only; only what is searched is read, and
        all ids or all metadata, once, where somebody asks for an id or filters.

        `verify` compares the checksums of all files; None, of those that are read, unless `mapped`. With an `embedder`
        its fingerprint is compared, and the canary texts are embedded again: another model is a FingerprintError.
        `adopt` takes an index over from an earlier weft, whose fingerprints were made otherwise, if the canaries agree;
        `save` keeps the new fingerprint. `load_graph` reads the graph that was saved, if one was, by native code that
        does not check it: say so for files of your own. It takes about as long as dozens of exact searches.
        """
        from weft.embed.index.saving import open_index

        check_is_embedder(embedder)
        opened = open_index(cls, path, mapped=mapped, verify=verify, load_graph=load_graph, threads=threads)
        opened.embedder = embedder
        if embedder is not None:
            if adopt:
                opened._adopt(embedder)
            opened._check_embedder(embedder)
            if opened._canaries is not None:
                check_canaries(embedder, *opened._canaries)
        return opened

    # What follows is called with the lock held, or before anybody else has the index.

    def _prepare(
        self, ids: Any, vectors: ArrayLike | Embedded, metadata: Any, texts: Any, fingerprint: str | None
    ) -> tuple[list[Record], np.ndarray, str | None]:
        self._check_writable()
        rows, single, made_by = self._vectors(vectors, fingerprint)
        if not are_many(ids) and isinstance(vectors, Embedded):
            single = len(rows) == 1  # `embed` gives rows for one text too
        if single:
            ids, metadata, texts = [ids], None if metadata is None else [metadata], None if texts is None else [texts]
        elif not are_many(ids):
            raise ShapeError(f"[index] one id for {len(rows)} vectors")
        return records_of(len(rows), "vectors", ids, metadata, texts), rows, made_by

    def _put_texts(
        self, ids: Any, texts: Sequence[str], metadata: Any, options: dict[str, Any], *, fresh: bool
    ) -> None:
        """Embed texts and put them: `fresh`, as ids that are not there yet."""
        self._check_writable()
        check_options(options)
        embedder, items = self._embedder(), texts_of(many_texts(texts))
        records = records_of(len(items), "texts", ids, metadata, items)
        if fresh:
            with self._lock:
                self._check_fresh(records)
        made = embedder.embed(items, prompt_name=embedder.document_prompt_name, **options)
        rows, _, made_by = self._vectors(made, None)
        self._put(records, rows, made_by, fresh=fresh)

    def _put(self, records: list[Record], rows: np.ndarray, made_by: str | None, *, fresh: bool) -> None:
        with self._lock:
            if fresh:
                self._check_fresh(records)
            old = [self._by_id()[record.id] for record in records if record.id in self._by_id()]
            self._append(records, rows, made_by)
            self._kill(old)

    def _check_fresh(self, records: list[Record]) -> None:
        known = [record.id for record in records if record.id in self._by_id()]
        if known:
            raise InputError(f"[index] {len(known)} of these ids are there already, as {known[0]!r}; use update")

    def _append(self, records: list[Record], vectors: np.ndarray, made_by: str | None) -> None:
        check_fingerprint(made_by, self.fingerprint)  # again: the first one may have come from another thread
        numbers = self._rows.append(vectors, lambda row: records[row].id)
        if self._graph is not None:
            try:
                self._graph.add(numbers, self._rows.vectors)
            except BaseException:  # Ctrl-C: none of them, rather than rows that no search finds
                self._rows.take_back(numbers)
                raise
        assert isinstance(self._records, list)
        self._records.extend(records)
        self._by_id().update((record.id, int(row)) for record, row in zip(records, numbers))
        self.fingerprint = self.fingerprint or made_by or ""

    def _kill(self, rows: list[int]) -> None:
        for row in rows:
            self._rows.kill(row)
        if self._graph is not None:
            self._graph.remove(np.asarray(rows, np.int64))
        if self._rows.dead > max(1024, self._rows.count // 2):
            self._compact()

    def _compact(self) -> None:
        """Let go of rows that are gone; the others get new numbers."""
        if not self._rows.dead:
            return
        self._rows, old = self._rows.kept()
        self._records = [self._records[row] for row in old]
        self._places = {record.id: row for row, record in enumerate(self._records)}
        for graph in (self._graph, self._laid):
            if graph is not None:
                graph.renumber(old)

    def _is_worth_a_graph(self) -> bool:
        return len(self) >= GRAPH_FROM and self.metric in GRAPH_METRICS and has_usearch()

    def _nearest(self, queries: np.ndarray, k: int, where: Where | None, exact: bool) -> Nearest:
        if exact or where is not None or not len(self):
            return self._rows.nearest(queries, k, self._allowed(where), self._threads)
        if self._graph is None:
            return self._rows.nearest_by_codes(queries, k, self._threads)
        return self._rows.rescored(queries, self._graph.candidates(queries, k), k, self._threads)

    def _allowed(self, where: Where | None) -> np.ndarray | None:
        alive, records = self._rows.alive(), self._records
        if where is None:
            return alive
        test = compile_where(where)
        every = records.metadata if isinstance(records, FileRecords) else [record.metadata for record in records]
        chosen = (test(metadata) and (alive is None or alive[row]) for row, metadata in enumerate(every))
        return np.fromiter(chosen, bool, self._rows.count)

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

    def _vectors(self, given: ArrayLike | Embedded, fingerprint: str | None) -> tuple[np.ndarray, bool, str | None]:
        """Vectors as float32 [n, dimension], whether one was given, and what made them."""
        made_by, scales = checked_fingerprint(fingerprint) or None, None
        if isinstance(given, Embedded):
            made_by, scales = given.fingerprint, given.scales
            check_fingerprint(fingerprint, made_by)
        check_fingerprint(made_by, self.fingerprint)
        rows, single = wide(given.vectors if isinstance(given, Embedded) else given, None, "index")
        if rows.shape[1] != self.dimension:
            raise FingerprintError(f"[index] vectors of {rows.shape[1]} numbers; the index has {self.dimension}")
        return rows if scales is None else rows / scales[:, None], single, made_by

    def _embedder(self) -> BaseEmbedder:
        if self.embedder is None:
            raise InputError(
                "[index] texts need an embedder: Index.from_embedder(...) or Index.open(..., embedder=...)"
            )
        return self.embedder

    def _check_embedder(self, embedder: BaseEmbedder) -> None:
        if embedder.dimension != self.dimension:
            raise FingerprintError(
                f"[index] the embedder gives {embedder.dimension} numbers; the index has {self.dimension}"
            )
        made_by = fingerprint_of(embedder)
        check_fingerprint(made_by, self.fingerprint)
        self.fingerprint = self.fingerprint or made_by

    def _adopt(self, embedder: BaseEmbedder) -> None:
        """Take the embedder's fingerprint for one of another scheme; whether it is the same model, canaries say."""
        now = fingerprint_of(embedder)
        if not self.fingerprint or scheme_of(now) == scheme_of(self.fingerprint):
            return
        if self._canaries is None:
            raise FingerprintError("[index] has no canary texts to know its model by: embed the documents again")
        self.fingerprint = now

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError("[index] a mapped index is read-only: open it without mapped=True to change it")
