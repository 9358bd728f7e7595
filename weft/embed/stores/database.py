"""A store's database: opened, upgraded, and used in transactions by threads that take turns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from weft.embed.forks import close_before_forks
from weft.embed.stores import generations, schema
from weft.embed.stores.dialect import FIRST, Dialect, Session
from weft.errors import NotAStoreError, NotFoundError, StoreError

Self = TypeVar("Self", bound="Database")


class Database:
    """A database that has the tables of a store.

    Several threads may use it, and several processes. Whatever a transaction has committed is synced to disk.
    """

    def __init__(self, dialect: Dialect, *, create: bool, clock: Callable[[], float] | None = None) -> None:
        self.dialect = dialect
        self._session = dialect.session()
        self._lock = threading.RLock()
        self._clock = clock
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
        """How many steps of the schema the database has had: 0 for an empty one. A database of another program is
        refused."""
        tables = self.dialect.tables(self._session)
        if schema.MARK not in tables:
            if tables:
                found = ", ".join(sorted(tables)[:3])
                raise NotAStoreError(
                    "store",
                    f"{self.dialect.name} is not a weft store: it has the tables of another program ({found})",
                    advice="give another file or schema",
                )
            if not create:
                raise NotFoundError(
                    "store", f"{self.dialect.name} has no store", advice="create one: open_store(…, create=True)"
                )
            return 0
        row = self._session.row(f"SELECT version FROM {schema.MARK}")
        if row is None or not isinstance(row[0], int):
            raise StoreError("store", "the store's version is missing or damaged", advice="restore a backup")
        if row[0] > len(schema.STEPS):
            raise StoreError(
                "store",
                f"this store has version {row[0]}; this weft reads versions up to {len(schema.STEPS)}",
                advice="update weft",
            )
        return row[0]

    def _upgrade(self) -> None:
        with self.transaction(FIRST) as session:
            at = self._version(create=True)  # again: another process may have upgraded it first
            for number, step in enumerate(schema.STEPS[at:], at + 1):
                for statement in step:
                    session.run(statement.replace("{id}", self.dialect.id_type))
                session.run(f"UPDATE {schema.MARK} SET version = ?", number)
            for found in generations.generations(session).values():  # older stores have no triggers that count changes
                generations.watch(self.dialect, session, found)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self.dialect.errors as error:
            raise self.dialect.translate(error) from error

    @contextmanager
    def transaction(self, mode: str) -> Iterator[Session]:
        """A transaction, which is the only way to the data: all of the block is committed, or nothing."""
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
        """Seconds since 1970."""
        return self.dialect.now(session) if self._clock is None else self._clock()

    def close(self) -> None:
        with self._lock:  # SQLite crashes the process when a connection is closed while a thread uses it
            self.dialect.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
