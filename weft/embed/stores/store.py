"""The store: documents, the vectors of one or two models, and the pointer to the fingerprint that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weft.embed.stores import generations
from weft.embed.stores.database import Database
from weft.embed.stores.dialect import ALONE, READ, SHARED, Dialect, Session
from weft.embed.stores.generations import Generation, Row
from weft.embed.stores.ledger import Ledger, count
from weft.embed.stores.scan import Scan
from weft.embed.stores.states import Open, Reason, Route, route, state_of
from weft.embed.stores.values import (
    Chunk,
    Content,
    check_k,
    check_model,
    check_vectors,
    checked_ids,
    contents_of,
    read_fields,
    written_fields,
)
from weft.errors import BusyError, FingerprintError, InputError, NotFoundError, StoreError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.index.filters import Test, Where

T = TypeVar("T")
READ_TRIES = 3  # a generation may be dropped while it is read
LISTED = 500  # documents that `documents` reads at a time
# Of the rows d: the documents, stored whole or in chunks. The row of one that is in chunks is marked as deleted.
IS_DOCUMENT = """d.chunk_of IS NULL AND (d.deleted = 0 OR EXISTS (
    SELECT 1 FROM documents c WHERE c.chunk_of = d.id AND c.deleted = 0))"""
WRITE = """INSERT INTO documents (id, text, revision, deleted, fields, chunk_of, start_at, end_at)
    VALUES (?, ?, 1, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET text = excluded.text,
    revision = documents.revision + 1, deleted = excluded.deleted, fields = excluded.fields,
    chunk_of = excluded.chunk_of, start_at = excluded.start_at, end_at = excluded.end_at"""
DELETE = """UPDATE documents SET deleted = 1, text = '', revision = revision + 1, fields = NULL, chunk_of = NULL,
    start_at = NULL, end_at = NULL WHERE id = ?"""


class Document(NamedTuple):
    """A document; `chunks` is how many it is stored in, 0 if it is stored whole."""

    id: str
    text: str
    revision: int
    fields: Mapping[str, Any] = {}
    chunks: int = 0


class Hit(NamedTuple):
    """A text that was found, with the fields of its document; `chunk` is its place if it is a part of the document."""

    id: str
    score: float
    text: str
    fields: Mapping[str, Any] = {}
    chunk: Chunk | None = None


class Held(NamedTuple):
    """A live row that the transaction has locked; `document` is its own id, or of a chunk that of its document."""

    revision: int
    document: str


class Store(Database):
    """Documents and their vectors in a database; `open_store` opens or creates one.

    Several threads, which take turns, and several processes may use a store. When a method returns, its changes are
    committed and synced to disk.
    """

    def __init__(self, dialect: Dialect, *, create: bool, clock: Callable[[], float] | None = None) -> None:
        super().__init__(dialect, create=create, clock=clock)
        self._scan = Scan()

    @cached_property
    def migrations(self) -> Ledger:
        """The store's migrations and the moves between their states."""
        return Ledger(self)

    def route(self) -> Route:
        """Which fingerprint searches use and which ones writes keep current, as committed now."""
        with self.transaction(READ) as session:
            return routed(session)

    def adopt(self, fingerprint: str, dimension: int, model: str = "") -> None:
        """Serve vectors of this fingerprint from now on, in a store without documents.

        A store with documents gets its first vectors from a migration, like all others.
        """
        check_model(fingerprint, dimension, model)
        with self.transaction(ALONE) as session:
            now = routed(session)
            if now.query == fingerprint:
                return
            if now.write or session.row("SELECT id FROM documents LIMIT 1"):
                held = f"vectors of {now.query}" if now.query else "documents"
                raise InputError("store", f"the store already has {held}", advice="migrate it instead")
            generations.create(self.dialect, session, fingerprint, dimension, model)
            session.run("UPDATE served SET fingerprint = ?", fingerprint)

    def generations(self) -> dict[str, Generation]:
        """The generations of the store, by fingerprint."""
        with self.transaction(READ) as session:
            return generations.generations(session)

    def canaries(self, fingerprint: str) -> tuple[list[str], np.ndarray] | None:
        """Canary texts and their stored vectors, float32 [texts, dimension]; None where there are none."""
        with self.transaction(READ) as session:
            return generations.canaries(session, generations.find(session, fingerprint))

    def keep_canaries(self, fingerprint: str, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Store the vectors of canary texts, by which a later run can tell whether the model has changed. Vectors that
        are already stored stay."""
        with self.transaction(SHARED) as session:
            found = generations.find(session, fingerprint)
            made = check_vectors(vectors, len(texts), found.dimension)
            generations.keep_canaries(session, found, texts, made)

    def put(self, documents: Mapping[str, str | Content], vectors: Mapping[str, np.ndarray]) -> None:
        """Add or replace documents (id to text or Content) with their vectors: fingerprint to float32
        [len(documents), dimension].

        Chunks (Content.chunk) replace the whole document that they are parts of, so all chunks of a document belong in
        one call. Vectors of the fingerprint that is served are required. During a migration the caller may bring those
        of the other one; where it does not, the documents wait for the migrator, and the vectors of their older texts
        are deleted. A fingerprint that the route does not write is refused: read the route again.
        """
        contents = contents_of(documents)
        rows, owners = _rows(contents), {_document(name, content) for name, content in contents.items()}
        places = {name: at for at, name in enumerate(contents)}
        order = sorted(contents)
        with self.transaction(SHARED) as session:
            now = routed(session)
            _check_fingerprints(now, vectors)
            known = generations.generations(session)
            made = {name: check_vectors(v, len(places), known[name].dimension) for name, v in vectors.items()}
            held = self._hold(session, sorted({*rows, *owners}))
            _check_owners(held, owners)
            gone = {name: row for name, row in held.items() if name not in contents}
            session.each(WRITE, [rows[name] for name in sorted(rows)])
            session.each(DELETE, [(name,) for name in sorted(gone) if name not in rows])
            revisions = dict(session.among("SELECT id, revision FROM documents WHERE id IN ({ids})", order))
            for name in now.write:
                if name in made:
                    written = [(i, revisions[i], made[name][places[i]]) for i in order]
                    generations.write(self.dialect, session, known[name], written)
                else:
                    generations.wait(session, known[name], order)
                _forget(session, known[name], gone)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents with their chunks and vectors, and return how many existed. Ids and revisions stay.

        A string is one id.
        """
        order = sorted(set(checked_ids(ids)))
        with self.transaction(SHARED) as session:
            now = routed(session)
            known = generations.generations(session)
            held = self._hold(session, order)
            _check_owners(held, set(order))
            session.each(DELETE, [(name,) for name in sorted(held)])
            for name in now.write:
                _forget(session, known[name], held)
            return len({row.document for row in held.values()})

    def _hold(self, session: Session, names: Sequence[str]) -> dict[str, Held]:
        """The live rows of these ids and of their chunks, by id; locked in the order of ids, as all writers do."""
        locked: set[str] = set()
        rows: list[tuple[Any, ...]] = []
        lock = "SELECT id, revision, deleted, chunk_of FROM documents WHERE id IN ({ids}) ORDER BY id "
        while True:
            chunks = session.among("SELECT id FROM documents WHERE deleted = 0 AND chunk_of IN ({ids})", names)
            wanted = {*names, *(row[0] for row in chunks)}
            if wanted <= locked:  # nobody has added chunks while this transaction waited for the locks
                return {row[0]: Held(row[1], row[3] or row[0]) for row in rows if not row[2]}
            rows = session.among(lock + self.dialect.for_update, sorted(wanted))
            locked = wanted

    def get(self, name: str) -> Document | None:
        """The document with this id, or None."""
        (name,) = checked_ids([name])
        with self.transaction(READ) as session:
            return next(iter(_documents(session, [name])), None)

    def documents(self, where: Where | None = None) -> Iterator[Document]:
        """Every document, or those whose fields match `where`, ordered by id.

        They are read in parts, each in a transaction of its own, so others may write in between.
        """
        test, last = _test(where), ""
        page = f"SELECT d.id FROM documents d WHERE d.id > ? AND {IS_DOCUMENT} ORDER BY d.id LIMIT ?"
        while True:
            with self.transaction(READ) as session:
                names = [row[0] for row in session.rows(page, last, LISTED)]
                found = _documents(session, names)
            if not names:
                return
            yield from (document for document in found if test is None or test(document.fields))
            last = names[-1]

    def count(self) -> int:
        """How many documents there are."""
        with self.transaction(READ) as session:
            return count(session, f"SELECT count(*) FROM documents d WHERE {IS_DOCUMENT}")

    def vectors(self, fingerprint: str) -> Iterator[tuple[str, int, np.ndarray]]:
        """Every vector of a fingerprint, ordered by id: id, revision of its text, float32 [dimension].

        Rows are read in pages, each in a transaction of its own, so others may write between two pages. If the vectors
        are dropped in between, FingerprintError is raised.
        """
        found: Generation | None = None
        last = ""
        while True:
            found, rows = self._reading(partial(self._page, fingerprint, found, last))
            if not rows:
                return
            yield from rows
            last = rows[-1][0]

    def _page(
        self, fingerprint: str, before: Generation | None, last: str, session: Session
    ) -> tuple[Generation, list[Row]]:
        """The rows after the id `last`, of the same generation as `before`."""
        found = generations.find(session, fingerprint)
        if before is not None and found != before:
            raise FingerprintError(
                "store",
                f"the vectors of {fingerprint[:80]} were replaced while they were read",
                advice="read them again",
            )
        return found, generations.page(self.dialect, session, found, last)

    def search(self, query: np.ndarray, k: int = 10, *, fingerprint: str, where: Where | None = None) -> list[Hit]:
        """The `k` documents, or chunks of documents, nearest to `query` float32 [dimension] by cosine, best first.

        The search is exact, unless the table has a pgvector index. `fingerprint` is that of the query vector; if it is
        not the one that is served, the search is refused. `where` chooses documents by their fields, as in an index:
        {"lang": "en", "year": {"gte": 2000}}, or a function of the fields.
        """
        k, test = check_k(k), _test(where)
        return self._reading(lambda session: self._search(session, query, k, fingerprint, test))

    def _search(self, session: Session, query: np.ndarray, k: int, fingerprint: str, test: Test | None) -> list[Hit]:
        import numpy as np

        served = routed(session).query
        if served is None:
            raise NotFoundError(
                "store", "the store serves no vectors yet", advice="embed its documents: weft migrate STORE --to MODEL"
            )
        if fingerprint != served:
            raise FingerprintError(
                "store",
                f"the query is a vector of {fingerprint[:80]}, but the store serves {served}",
                advice="embed the query with the model that is served",
            )
        generation = generations.find(session, served)
        vector = check_vectors(np.asarray(query)[None], 1, generation.dimension)[0]
        chosen = None if test is None else _matching(session, test)
        best = self.dialect.nearest(session, generation.number, vector, k, chosen)
        if best is None:
            best = self._scan.nearest(self.dialect, session, generation, vector, k, chosen)
        sql = "SELECT id, text, fields, chunk_of, start_at, end_at FROM documents WHERE id IN ({ids})"
        rows = {row[0]: row[1:] for row in session.among(sql, [name for name, _ in best])}
        if len(rows) != len(best):
            raise StoreError("store", "the store is damaged: a vector has no document", advice="restore a backup")
        return [_hit(name, score, *rows[name]) for name, score in best]

    def _reading(self, work: Callable[[Session], T]) -> T:
        for _ in range(READ_TRIES - 1):
            with suppress(BusyError), self.transaction(READ) as session:
                return work(session)
        with self.transaction(READ) as session:
            return work(session)


def routed(session: Session) -> Route:
    """The route as the transaction sees it, read in one statement."""
    row = session.row(
        "SELECT s.fingerprint, m.state, m.source, m.target FROM served s LEFT JOIN migrations m ON m.open = 1"
    )
    if row is None:
        raise StoreError("store", "the store is damaged: the table served is empty", advice="restore a backup")
    served, state, source, target = row
    return route(served, None if state is None else Open(state_of(state), source, target))


def _check_fingerprints(now: Route, vectors: Mapping[str, np.ndarray]) -> None:
    strange = [name for name in vectors if name not in now.write]
    if strange:
        raise FingerprintError(
            "store",
            f"the store takes vectors of {' and '.join(now.write) or 'no model'}, not of {strange[0][:80]}",
            advice="read the route again",
        )
    if now.query is not None and now.query not in vectors:
        raise FingerprintError("store", f"documents need vectors of {now.query}, which is served, and none were given")


def _document(name: str, content: Content) -> str:
    """The id of the document that a text belongs to."""
    return name if content.chunk is None else content.chunk.document


def _rows(contents: Mapping[str, Content]) -> dict[str, tuple[Any, ...]]:
    """What WRITE needs for each text, and for each document that is stored in chunks."""
    made: dict[str, tuple[Any, ...]] = {}
    for name, (text, fields, chunk) in contents.items():
        place = (None, None, None) if chunk is None else tuple(chunk)
        made[name] = (name, text, 0, written_fields(name, fields), *place)
    for name, content in contents.items():
        if content.chunk is not None and content.chunk.document not in contents:
            made[content.chunk.document] = (content.chunk.document, "", 1, None, None, None, None)
        elif content.chunk is not None:
            what = f"is given both whole and in chunks (chunk {name[:80]!r})"
            raise InputError("store", what, field="document", given=content.chunk.document)
    return made


def _check_owners(held: Mapping[str, Held], owners: set[str]) -> None:
    """Refuse to write or delete a row of a document that is not among those that are written or deleted."""
    for name, row in held.items():
        if row.document not in owners:
            raise InputError(
                "store",
                f"the id {name[:80]!r} belongs to the document {row.document[:80]!r}, which is stored in chunks",
                advice="name that document, or choose another id",
            )


def _forget(session: Session, generation: Generation, rows: Mapping[str, Held]) -> None:
    """Remove deleted documents from a generation; those that waited or were skipped are skipped as deleted."""
    names = sorted(rows)
    generations.erase(session, generation, names)
    left = generations.waiting(session, generation, names) | generations.left_out(session, generation, names)
    skips = [(i, rows[i].revision + 1, Reason.CONTENT_DELETED.value, "") for i in names if i in left]
    generations.skip(session, generation, skips)


def _documents(session: Session, names: Sequence[str]) -> list[Document]:
    """The documents with these ids that exist, in this order, each with its whole text."""
    what = "SELECT id, text, revision, fields, chunk_of, start_at, deleted FROM documents WHERE"
    rows = {row[0]: row for row in session.among(f"{what} chunk_of IS NULL AND id IN ({{ids}})", names)}
    chunks: dict[str, list[tuple[Any, ...]]] = {}
    for row in session.among(f"{what} deleted = 0 AND chunk_of IN ({{ids}})", names):
        chunks.setdefault(row[4], []).append(row)
    found = []
    for name in names:
        parts = sorted(chunks.get(name, ()), key=lambda row: row[5])
        if parts:
            text = ""
            for part in parts:
                text += part[1][max(0, len(text) - part[5]) :]  # chunks overlap
            found.append(Document(name, text, rows[name][2], read_fields(parts[0][3]), len(parts)))
        elif name in rows and not rows[name][6]:
            found.append(Document(name, rows[name][1], rows[name][2], read_fields(rows[name][3])))
    return found


def _hit(name: str, score: float, text: str, fields: Any, owner: str | None, start: int, end: int) -> Hit:
    return Hit(name, score, text, read_fields(fields), None if owner is None else Chunk(owner, start, end))


def _test(where: Where | None) -> Test | None:
    """The condition on a document's fields; a condition that cannot be understood is refused."""
    from weft.embed.index.filters import compile_where

    try:
        return None if where is None else compile_where(where)
    except InputError as error:
        raise error.but(where="store") from None


def _matching(session: Session, test: Test) -> list[str]:
    """The ids of the texts whose document matches."""
    rows = session.rows("SELECT id, fields FROM documents WHERE deleted = 0")
    return [name for name, fields in rows if test(read_fields(fields))]
