"""The store: documents, the vectors of one or two models, and one pointer that says whose are served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weft.embed.forks import close_before_forks
from weft.embed.stores import generations, schema
from weft.embed.stores.dialect import ALONE, FIRST, READ, SHARED, Dialect, Session
from weft.embed.stores.generations import Generation, Row
from weft.embed.stores.routing import Open, Route, route
from weft.embed.stores.scan import Scan
from weft.embed.stores.states import Reason, state_of
from weft.embed.stores.values import check_documents, check_k, check_model, check_vectors, checked_ids
from weft.errors import BusyError, FingerprintError, InputError, NotFoundError, StoreError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.stores.ledger import Ledger

T = TypeVar("T")
READ_TRIES = 3  # a reader may meet a generation at the moment it is dropped


class Document(NamedTuple):
    id: str
    text: str
    revision: int


class Hit(NamedTuple):
    id: str
    score: float
    text: str


class Store:
    """Documents and their vectors in a database; `open_store` makes one.

    A store may be used by several threads, which take turns, and by several processes. Whatever a method returned from
    is committed and synced.
    """

    def __init__(self, dialect: Dialect, *, create: bool, clock: Callable[[], float] | None = None) -> None:
        self.dialect = dialect
        self._session = dialect.session()
        self._lock = threading.RLock()
        self._clock = clock
        self._scan = Scan()
        self._is_inherited = False  # by a forked child, while a thread of the parent used the connection
        try:
            self._open(create)
        except BaseException:
            self.close()
            raise
        close_before_forks(self)

    def hold_for_fork(self, seconds: float) -> bool:
        held = self._lock.acquire(timeout=seconds)
        if held:
            self.dialect.let_go()
        return held

    def release_after_fork(self) -> None:
        self._lock.release()

    def renew_after_fork(self, closed: bool) -> None:
        self._lock = threading.RLock()
        self._is_inherited = not closed

    def _open(self, create: bool) -> None:
        with self._translated():
            version = self._version(create)
            self.dialect.adopt(self._session)
        if version < len(schema.STEPS):
            self._upgrade()

    def _version(self, create: bool) -> int:
        """How many steps of the schema the database has had; anything but a store of ours, or nothing, is refused."""
        tables = self.dialect.tables(self._session)
        if schema.MARK not in tables:
            if tables:
                raise StoreError(
                    f"[store] this database is not a store of weft's: it has {', '.join(sorted(tables)[:3])}"
                )
            if not create:
                raise NotFoundError("[store] there is no store in this database; open it with create=True to make one")
            return 0
        row = self._session.row(f"SELECT version FROM {schema.MARK}")
        if row is None or not isinstance(row[0], int):
            raise StoreError("[store] the store does not say its version; restore a copy")
        if row[0] > len(schema.STEPS):
            raise StoreError(f"[store] version {row[0]} of a store; this weft knows {len(schema.STEPS)}: update it")
        return row[0]

    def _upgrade(self) -> None:
        with self.transaction(FIRST) as session:
            at = self._version(create=True)  # again: another process may have been first
            for number, step in enumerate(schema.STEPS[at:], at + 1):
                for statement in step:
                    session.run(statement.replace("{id}", self.dialect.id_type))
                session.run(f"UPDATE {schema.MARK} SET version = ?", number)
            for found in generations.generations(session).values():  # of a store that was made before they were counted
                generations.watch(self.dialect, session, found)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self.dialect.errors as error:
            raise self.dialect.translate(error) from error

    @contextmanager
    def transaction(self, mode: str) -> Iterator[Session]:
        """The one way in: what happens inside is committed whole, or not at all."""
        if self._is_inherited:
            raise StoreError(
                "store",
                "it was in use when this process was forked, so its connection is the parent's",
                advice="use it in the parent, or start this process with the spawn method",
            )
        with self._lock, self._translated():
            try:
                self.dialect.begin(self._session, mode)
                yield self._session
                self._session.run("COMMIT")
            except BaseException:
                with suppress(*self.dialect.errors):
                    self._session.run("ROLLBACK")
                raise

    def now(self, session: Session) -> float:
        return self.dialect.now(session) if self._clock is None else self._clock()

    def close(self) -> None:
        with self._lock:  # a connection that is closed under a thread takes the process with it
            self.dialect.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def migrations(self) -> Ledger:
        """The record of migrations, and the moves between their states."""
        from weft.embed.stores.ledger import Ledger

        return Ledger(self)

    def route(self) -> Route:
        """Which fingerprint to ask, and which to write, as committed now."""
        with self.transaction(READ) as session:
            return routed(session)

    def adopt(self, fingerprint: str, dimension: int, model: str = "") -> None:
        """Serve vectors of this fingerprint from now on, in a store that has no documents yet.

        One that has documents gets its first vectors as it gets others: by a migration.
        """
        check_model(fingerprint, dimension, model)
        with self.transaction(ALONE) as session:
            now = routed(session)
            if now.query == fingerprint:
                return
            if now.write or session.row("SELECT id FROM documents LIMIT 1"):
                raise InputError(f"[store] {now.query or 'a store of documents'} is here already; migrate it instead")
            generations.create(self.dialect, session, fingerprint, dimension, model)
            session.run("UPDATE served SET fingerprint = ?", fingerprint)

    def generations(self) -> dict[str, Generation]:
        """The models whose vectors are here, by fingerprint."""
        with self.transaction(READ) as session:
            return generations.generations(session)

    def canaries(self, fingerprint: str) -> tuple[list[str], np.ndarray] | None:
        """Known texts and the vectors they had when they were kept; None where nobody did."""
        with self.transaction(READ) as session:
            return generations.canaries(session, generations.find(session, fingerprint))

    def keep_canaries(self, fingerprint: str, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Keep the vectors of known texts, so that whoever comes later can tell whether the model still is the one that
        made them; those that are kept stay."""
        with self.transaction(SHARED) as session:
            found = generations.find(session, fingerprint)
            made = check_vectors(vectors, len(texts), found.dimension)
            generations.keep_canaries(session, found, texts, made)

    def put(self, documents: Mapping[str, str], vectors: Mapping[str, np.ndarray]) -> None:
        """Add or replace documents (id to text) with their vectors: fingerprint to float32 [len(documents), dimension].

        Vectors of the fingerprint that is served are required. During a migration the other one's may come with them;
        where they do not, the documents wait for the migrator, and vectors of their older texts are gone. A
        fingerprint that the route does not write is refused: ask the route again.
        """
        check_documents(documents)
        order = sorted(documents)  # one order for everybody: nobody waits in a circle
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
        """Delete documents and their vectors; the number of those that were there. Their ids and revisions stay.

        `ids` are several, or one: a string is one id.
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
        """A document, or None."""
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
        """Every vector of a fingerprint in the order of ids: id, revision of its text, float32 [dimension].

        Rows are read in pages, each as it is committed at that moment, and nothing is held between two of them: others
        may write meanwhile. Vectors that are dropped meanwhile end it with FingerprintError.
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
        """The rows after the id `last`, of the generation that was read `before`."""
        found = generations.find(session, fingerprint)
        if before is not None and found != before:
            raise FingerprintError(f"[store] the vectors of {fingerprint[:80]} were replaced meanwhile")
        return found, generations.page(self.dialect, session, found, last)

    def search(self, query: np.ndarray, k: int = 10, *, fingerprint: str) -> list[Hit]:
        """The `k` documents nearest to `query` float32 [dimension] by cosine, best first.

        Every vector is compared, unless the table has an index of pgvector's. `fingerprint` says whose vector the query
        is; one that is not served is refused, never compared.
        """
        k = check_k(k)
        return self._reading(lambda session: self._search(session, query, k, fingerprint))

    def _search(self, session: Session, query: np.ndarray, k: int, fingerprint: str) -> list[Hit]:
        import numpy as np

        served = routed(session).query
        if served is None:
            raise NotFoundError("[store] nothing is served yet: no document has a vector")
        if fingerprint != served:
            raise FingerprintError(
                f"[store] {served} is served, and the query is of {fingerprint[:80]}; embed it again"
            )
        generation = generations.find(session, served)
        vector = check_vectors(np.asarray(query)[None], 1, generation.dimension)[0]
        best = self.dialect.nearest(session, generation.number, vector, k)
        if best is None:
            best = self._scan.nearest(self.dialect, session, generation, vector, k)
        texts = dict(session.among("SELECT id, text FROM documents WHERE id IN ({ids})", [row[0] for row in best]))
        if len(texts) != len(best):
            raise StoreError("[store] a vector has no document; restore a copy")
        return [Hit(name, score, texts[name]) for name, score in best]

    def _reading(self, work: Callable[[Session], T]) -> T:
        for _ in range(READ_TRIES - 1):
            with suppress(BusyError), self.transaction(READ) as session:
                return work(session)
        with self.transaction(READ) as session:
            return work(session)


def routed(session: Session) -> Route:
    """The route as a transaction sees it, in one statement."""
    row = session.row(
        "SELECT s.fingerprint, m.state, m.source, m.target FROM served s LEFT JOIN migrations m ON m.open = 1"
    )
    if row is None:
        raise StoreError("[store] the pointer is missing; restore a copy")
    served, state, source, target = row
    return route(served, None if state is None else Open(state_of(state), source, target))


def _check_fingerprints(now: Route, vectors: Mapping[str, np.ndarray]) -> None:
    strange = [name for name in vectors if name not in now.write]
    if strange:
        raise FingerprintError(
            f"[store] vectors of {strange[0][:80]} are not written; {' and '.join(now.write) or 'none'} are"
        )
    if now.query is not None and now.query not in vectors:
        raise FingerprintError(f"[store] {now.query} is served: documents need its vectors, and none came")
