"""The store: documents, the vectors of one or two models, and the pointer to the fingerprint that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weft.embed.stores import generations
from weft.embed.stores.database import Database
from weft.embed.stores.dialect import ALONE, READ, SHARED, Dialect, Session
from weft.embed.stores.generations import Generation, Row
from weft.embed.stores.ledger import Ledger
from weft.embed.stores.scan import Scan
from weft.embed.stores.states import Open, Reason, Route, route, state_of
from weft.embed.stores.values import check_documents, check_k, check_model, check_vectors, checked_ids
from weft.errors import BusyError, FingerprintError, InputError, NotFoundError, StoreError

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
READ_TRIES = 3  # a generation may be dropped while it is read


class Document(NamedTuple):
    id: str
    text: str
    revision: int


class Hit(NamedTuple):
    id: str
    score: float
    text: str


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

    def put(self, documents: Mapping[str, str], vectors: Mapping[str, np.ndarray]) -> None:
        """Add or replace documents (id to text) with their vectors: fingerprint to float32 [len(documents), dimension].

        Vectors of the fingerprint that is served are required. During a migration the caller may bring those of the
        other one; where it does not, the documents wait for the migrator, and the vectors of their older texts are
        deleted. A fingerprint that the route does not write is refused: read the route again.
        """
        check_documents(documents)
        order = sorted(documents)  # all writers lock in this order: no deadlocks
        places = {name: at for at, name in enumerate(documents)}
        with self.transaction(SHARED) as session:
            now = routed(session)
            _check_fingerprints(now, vectors)
            known = generations.generations(session)
            made = {name: check_vectors(v, len(places), known[name].dimension) for name, v in vectors.items()}
            session.each(
                "INSERT INTO documents (id, text, revision, deleted) VALUES (?, ?, 1, 0) ON CONFLICT (id) "
                "DO UPDATE SET text = excluded.text, revision = documents.revision + 1, deleted = 0",
                [(name, documents[name]) for name in order],
            )
            revisions = dict(session.among("SELECT id, revision FROM documents WHERE id IN ({ids})", order))
            for name in now.write:
                if name in made:
                    rows = [(i, revisions[i], made[name][places[i]]) for i in order]
                    generations.write(self.dialect, session, known[name], rows)
                else:
                    generations.wait(session, known[name], order)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete documents and their vectors, and return how many existed. Their ids and revisions stay.

        A string is one id.
        """
        order = sorted(set(checked_ids(ids)))
        with self.transaction(SHARED) as session:
            now = routed(session)
            known = generations.generations(session)
            live = "SELECT id, revision FROM documents WHERE deleted = 0 AND id IN ({ids}) ORDER BY id "
            found = session.among(live + self.dialect.for_update, order)
            gone = [row[0] for row in found]
            session.each(
                "UPDATE documents SET deleted = 1, text = '', revision = revision + 1 WHERE id = ?",
                [(i,) for i in gone],
            )
            for generation in (known[name] for name in now.write):
                generations.erase(session, generation, gone)
                left = generations.waiting(session, generation, gone) | generations.left_out(session, generation, gone)
                rows = [(i, revision + 1, Reason.CONTENT_DELETED.value, "") for i, revision in found if i in left]
                generations.skip(session, generation, rows)
            return len(gone)

    def get(self, name: str) -> Document | None:
        """The document with this id, or None."""
        (name,) = checked_ids([name])
        with self.transaction(READ) as session:
            row = session.row("SELECT id, text, revision FROM documents WHERE id = ? AND deleted = 0", name)
            return None if row is None else Document(*row)

    def count(self) -> int:
        """How many documents there are."""
        with self.transaction(READ) as session:
            row = session.row("SELECT count(*) FROM documents WHERE deleted = 0")
            assert row
            return int(row[0])

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

    def search(self, query: np.ndarray, k: int = 10, *, fingerprint: str) -> list[Hit]:
        """The `k` documents nearest to `query` float32 [dimension] by cosine, best first.

        The search is exact, unless the table has a pgvector index. `fingerprint` is that of the query vector; if it is
        not the one that is served, the search is refused.
        """
        k = check_k(k)
        return self._reading(lambda session: self._search(session, query, k, fingerprint))

    def _search(self, session: Session, query: np.ndarray, k: int, fingerprint: str) -> list[Hit]:
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
        best = self.dialect.nearest(session, generation.number, vector, k)
        if best is None:
            best = self._scan.nearest(self.dialect, session, generation, vector, k)
        texts = dict(session.among("SELECT id, text FROM documents WHERE id IN ({ids})", [row[0] for row in best]))
        if len(texts) != len(best):
            raise StoreError("store", "the store is damaged: a vector has no document", advice="restore a backup")
        return [Hit(name, score, texts[name]) for name, score in best]

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
