"""`weft.Index`: vectors with ids, metadata and texts, that can be searched and saved."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.embed.index.canaries import (
    adopted_fingerprint,
    canary_texts,
    canary_vectors,
    check_canaries,
    check_fingerprint,
    checked_fingerprint,
    fingerprint_of,
)
from weft.embed.index.files import Saved, Writer, check_folder
from weft.embed.index.filters import Where, matching_rows
from weft.embed.index.given import are_many, check_is_embedder, check_options, records_of, whole
from weft.embed.index.graph import METRICS as GRAPH_METRICS
from weft.embed.index.graph import Graph, has_usearch
from weft.embed.index.records import FileRecords, Hit, Id, Record, check_id
from weft.embed.index.rows import INDEX_METRICS, Rows
from weft.embed.index.saving import MAX_DIMENSION, Contents, LaidGraph, read_contents, write_contents
from weft.embed.inputs import many_texts, texts_of
from weft.embed.results import Embedded
from weft.errors import FingerprintError, InputError, NotFoundError, ShapeError
from weft.vectors import Nearest, Tier
from weft.vectors.distance import wide

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from weft.embed.base import BaseEmbedder

# Number of rows from which `save` builds a graph if usearch is installed: docs/LOG.md has the measurement.
GRAPH_FROM = 100_000
MAX_HITS, MAX_THREADS = 1 << 28, 1024


class Index:
    """Vectors of one model, searched exactly, or through a graph that `build_graph`, or `save` of many rows, built.

    `fingerprint` identifies the model that made the vectors; vectors of another are refused. An index without one takes
    the first that an embedder or `add` gives it. `metric` is cosine, dot, euclidean or manhattan; manhattan supports
    neither codes nor a graph. `storage` "f16" halves the memory. With `codes` ("int8", "int4", "binary") a search scans
    these, and the full vectors put the candidates in order. Filtered searches are always exact: they scan the vectors.
    Several threads may use an index.
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
        self._known: dict[str, Saved] = {}  # by folder: the save that this index was opened from, or last wrote there
        self.fingerprint = checked_fingerprint(fingerprint)
        self.embedder = embedder
        self._canaries: tuple[list[str], np.ndarray] | None = None
        self._built: dict[str, Any] | None = None  # what a build made the rows from, while nobody changes them
        self.read_only = False
        self._lock = RLock()
        if embedder is not None:
            check_is_embedder(embedder)
            self._check_embedder(embedder)

    @classmethod
    def from_embedder(cls, embedder: BaseEmbedder, **options: Any) -> Index:
        """An empty index for the vectors of `embedder`: its dimension, fingerprint and similarity measure."""
        check_is_embedder(embedder)
        measure = options.setdefault("metric", embedder.info.get("similarity", "cosine"))
        if measure not in INDEX_METRICS:
            advice = "give metric= where the model has another measure"
            what = f"must be one of {', '.join(INDEX_METRICS)}"
            raise InputError("index", what, given=measure, field="metric", advice=advice)
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
        """The metadata and text of an id, with a score of zero; NotFoundError if the index does not have it."""
        with self._lock:
            record = self._records[self._place(id)]
            return Hit(record.id, 0.0, dict(record.metadata), record.text)

    def vector(self, id: Id) -> np.ndarray:
        """The vector of an id as it is stored, float32 [dimension]."""
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
        """Add rows under new ids: all of them, or none if one is refused.

        Give one id with one vector [d], or as many ids as vectors [n, d]; likewise for metadata and texts. The result
        of `Embedder.embed` carries its fingerprint, which must be the index's. A plain array carries none: give
        `fingerprint` to have it compared; without it the array is taken unchecked.
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
        """`add`, but rows of ids that exist are replaced: vector, metadata and text."""
        self._put(*self._prepare(ids, vectors, metadata, texts, fingerprint), fresh=False)

    def delete(self, ids: Id | Iterable[Id]) -> int:
        """Delete ids; returns how many of them existed."""
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

        `where` chooses rows by their metadata (`weft/embed/index/filters.py`); such a search scans the vectors of all
        rows that match. `exact` scans all vectors, without graph and codes.
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
        """`add` with the embedder's document vectors of `texts`, which are kept. `options` are those of `encode`.

        Ids and metadata are checked before anything is embedded.
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
        """`add_texts`, but rows of ids that exist are replaced: vector, metadata and text."""
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
        """`search` with the embedder's query vectors of `texts`. `options` are those of `encode`."""
        check_options(options)
        made = self._embedder().embed(texts_of(texts), prompt_name="query", **options)
        found = self.search(made, k, where=where, exact=exact)
        return found[0] if isinstance(texts, str) else found

    @property
    def uses_graph(self) -> bool:
        """Whether a search without a filter uses a graph: one was built, or loaded."""
        return self._graph is not None

    def build_graph(self, on_progress: Callable[[int, int], None] | None = None) -> None:
        """Build an HNSW graph (`pip install weft-engine[hnsw]`) for searches to use from then on.

        With many rows it is faster than a scan, and misses some neighbours; scores stay exact. The same rows give the
        same graph, however many threads build it. It takes minutes for 100,000, and other calls wait. `on_progress` is
        called with the rows done and all rows; Ctrl-C leaves the index as it was. Changes of the index update the
        graph. A deleted row stays in it as a path to others until its place is reused, or the graph is built again.
        """
        with self._lock:
            graph, alive = Graph(self.dimension, self.metric, threads=self._threads), self._rows.alive()
            numbers = np.arange(self._rows.count) if alive is None else np.flatnonzero(alive)
            graph.add(numbers, self._rows.vectors, *([] if on_progress is None else [on_progress]))
            self._graph = graph

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        graph: bool | None = None,
        overwrite: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Write the index to a folder. After a crash the folder holds either the old index or the new one.

        BusyError if somebody else has saved to the folder since this index was opened from it or saved to it;
        `overwrite` discards that save. Deleted rows are left out.

        A graph is saved with the index, also one that lies in the folder the index was opened from without
        `load_graph`: native code reads it and adds the new rows; this index's searches still do not use it. If there is
        no graph yet, `graph` True builds one first, and None does so from GRAPH_FROM rows on if usearch is installed;
        that takes minutes. False builds none, and leaves out one that was not loaded, with a warning. `on_progress` is
        that of `build_graph`.
        """
        folder = check_folder(path)
        expected = None if overwrite else self._known.get(os.path.realpath(folder))
        with self._lock, Writer(folder, expected) as writer:
            self._compact()
            found = self._graph
            if found is None and self._laid is not None and graph is not False:
                found = self._laid.carried_on(self._rows, self._threads, on_progress)
            if found is None and (self._is_worth_a_graph() if graph is None else graph):
                self.build_graph(on_progress)
                found = self._graph
            self._write(writer, found)

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
        """The index in a folder. `mapped` memory-maps the files and makes it read-only; then a search reads only what
        it needs, and the first lookup of an id, or the first filter, reads all ids or all metadata once.

        `verify` True compares the checksums of all files, None of those that are read into memory. With an `embedder`
        its fingerprint is compared and the canary texts are embedded again; FingerprintError if it is another model.
        `adopt` takes over an index of an earlier weft, whose fingerprints cannot be compared, if the canaries agree;
        `save` then writes the new fingerprint. `load_graph` reads the saved graph, if there is one, by native code that
        does not check it: use it for files that you trust. It takes as long as dozens of exact searches.
        """
        check_is_embedder(embedder)
        folder, count = check_folder(path), None if threads is None else whole(threads, "threads", MAX_THREADS)
        found, saved = read_contents(folder, mapped=mapped, verify=verify, load_graph=load_graph, threads=count)
        opened = cls._holding(found, threads=count)
        opened._known[os.path.realpath(folder)] = saved
        opened.embedder = embedder
        if embedder is not None:
            if adopt:
                known = opened._canaries is not None
                opened.fingerprint = adopted_fingerprint(opened.fingerprint, fingerprint_of(embedder), known)
            opened._check_embedder(embedder)
            if opened._canaries is not None:
                check_canaries(embedder, *opened._canaries)
        return opened

    @classmethod
    def _holding(cls, found: Contents, **options: Any) -> Index:
        made = cls(found.rows.dim, fingerprint=found.fingerprint, **options)
        made._rows, made._records, made._canaries, made._built = found.rows, found.records, found.canaries, found.built
        made.read_only = isinstance(found.records, FileRecords)
        made._places = None
        if isinstance(found.graph, LaidGraph):
            made._laid = found.graph
        else:
            made._graph = found.graph
        return made

    # What follows is called with the lock held, or before other threads have the index.

    def _write(self, writer: Writer, graph: Graph | None) -> None:
        laid = self._laid
        if graph is None and laid is not None and laid.saved.folder == writer.folder.resolve() and laid.is_there():
            logging.getLogger("weft").warning("[index] the graph in %s is left out of this save", writer.folder)
        if self._canaries is None and self.embedder is not None:
            texts = canary_texts(self.embedder)
            self._canaries = (texts, canary_vectors(self.embedder, texts))
        try:
            held = Contents(self._rows, self._records, self.fingerprint, self._canaries, self._built)
            write_contents(writer, held, graph)
        finally:
            if writer.saved is not None:  # the commit succeeded, even if something failed after it
                self._known[os.path.realpath(writer.folder)] = writer.saved
                if graph is not None:
                    self._laid = LaidGraph(writer.saved) if self._graph is None else None

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
            what = f"must be a list of {len(rows)}, one for each of the vectors"
            raise ShapeError("index", what, given=ids, field="ids")
        return records_of(len(rows), "vectors", ids, metadata, texts), rows, made_by

    def _put_texts(
        self, ids: Any, texts: Sequence[str], metadata: Any, options: dict[str, Any], *, fresh: bool
    ) -> None:
        """Embed texts and add them; with `fresh`, ids that exist are refused."""
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
            what = f"must be new; the index already has {len(known)} of them"
            raise InputError("index", what, given=known[0], field="ids", advice="use update to replace them")

    def _append(self, records: list[Record], vectors: np.ndarray, made_by: str | None) -> None:
        check_fingerprint(made_by, self.fingerprint)  # again: another thread may have set the index's fingerprint
        numbers, self._built = self._rows.append(vectors, lambda row: records[row].id), None
        if self._graph is not None:
            try:
                self._graph.add(numbers, self._rows.vectors)
            except BaseException:  # Ctrl-C too: rows outside the graph would never be found
                self._rows.take_back(numbers)
                raise
        assert isinstance(self._records, list)
        self._records.extend(records)
        self._by_id().update((record.id, int(row)) for record, row in zip(records, numbers))
        self.fingerprint = self.fingerprint or made_by or ""

    def _kill(self, rows: list[int]) -> None:
        for row in rows:
            self._rows.kill(row)
            self._built = None
        if self._graph is not None:
            self._graph.remove(np.asarray(rows, np.int64))
        if self._rows.dead > max(1024, self._rows.count // 2):
            self._compact()

    def _compact(self) -> None:
        """Remove deleted rows; the others get new numbers."""
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
        records = self._records
        if where is None:
            return self._rows.alive()
        every = records.metadata if isinstance(records, FileRecords) else [record.metadata for record in records]
        return matching_rows(where, every, self._rows.alive())

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> list[Hit]:
        found = [(self._records[int(row)], float(score)) for row, score in zip(rows, scores) if row >= 0]
        return [Hit(record.id, score, dict(record.metadata), record.text) for record, score in found]

    def _by_id(self) -> dict[Id, int]:
        if self._places is None:  # an opened index reads its ids when the first one is needed
            self._places = {self._records[row].id: row for row in range(len(self._records))}
        return self._places

    def _place(self, id: Id) -> int:
        try:
            return self._by_id()[id]
        except (KeyError, TypeError):
            raise NotFoundError("index", f"it has no id {id!r}") from None

    def _vectors(self, given: ArrayLike | Embedded, fingerprint: str | None) -> tuple[np.ndarray, bool, str | None]:
        """Vectors as float32 [n, dimension], whether a single one was given, and their fingerprint."""
        made_by, scales = checked_fingerprint(fingerprint) or None, None
        if isinstance(given, Embedded):
            made_by, scales = given.fingerprint, given.scales
            check_fingerprint(fingerprint, made_by)
        check_fingerprint(made_by, self.fingerprint)
        rows, single = wide(given.vectors if isinstance(given, Embedded) else given, None, "index")
        if rows.shape[1] != self.dimension:
            raise FingerprintError("index", f"the vectors have {rows.shape[1]} numbers, the index {self.dimension}")
        return rows if scales is None else rows / scales[:, None], single, made_by

    def _embedder(self) -> BaseEmbedder:
        if self.embedder is None:
            advice = "use Index.from_embedder(...) or Index.open(..., embedder=...)"
            raise InputError("index", "it has no embedder for texts", advice=advice)
        return self.embedder

    def _check_embedder(self, embedder: BaseEmbedder) -> None:
        if embedder.dimension != self.dimension:
            what = f"the embedder's vectors have {embedder.dimension} numbers, the index's {self.dimension}"
            raise FingerprintError("index", what, advice="load the model that built the index, or build it again")
        made_by = fingerprint_of(embedder)
        check_fingerprint(made_by, self.fingerprint, str(embedder.info.get("model", "the embedder")))
        self.fingerprint = self.fingerprint or made_by

    def _check_writable(self) -> None:
        if self.read_only:
            raise InputError("index", "it is mapped and read-only", advice="open it without mapped=True to change it")
