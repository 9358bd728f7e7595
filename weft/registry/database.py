"""The registry's database: SQLite in WAL mode, shared by processes; every change is one transaction.

A commit has reached the disk when a call returns (synchronous = FULL). Events can only be added: triggers refuse to
change or delete one, whoever asks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.errors import BusyError, NotFoundError, RegistryError

FILE = "registry.db"
WAIT_S = 60.0  # for the write lock, if another process holds it
FORMAT = 1
APPLICATION = 0x77656674  # "weft", in the header of the file
SCHEMA = """
CREATE TABLE names (name TEXT PRIMARY KEY, kind TEXT NOT NULL, created INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE trees (digest TEXT PRIMARY KEY, files TEXT NOT NULL, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE versions (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL REFERENCES names (name),
  version TEXT NOT NULL,
  state TEXT NOT NULL,
  tree TEXT NOT NULL REFERENCES trees (digest),
  main TEXT NOT NULL,
  base TEXT,
  data TEXT,
  description TEXT NOT NULL,
  created INTEGER NOT NULL,
  UNIQUE (name, version)
);
CREATE UNIQUE INDEX one_production ON versions (name) WHERE state = 'production';
CREATE TABLE parents (
  child INTEGER NOT NULL REFERENCES versions (id),
  parent INTEGER NOT NULL REFERENCES versions (id),
  role TEXT NOT NULL,
  PRIMARY KEY (child, parent, role)
) WITHOUT ROWID;
CREATE TABLE evaluations (
  id INTEGER PRIMARY KEY,
  version INTEGER NOT NULL REFERENCES versions (id),
  metric TEXT NOT NULL,
  value REAL NOT NULL,
  data TEXT NOT NULL,
  at INTEGER NOT NULL
);
CREATE TABLE placements (
  name TEXT NOT NULL REFERENCES names (name),
  alias TEXT NOT NULL,
  depth INTEGER NOT NULL,
  version INTEGER NOT NULL REFERENCES versions (id),
  at INTEGER NOT NULL,
  PRIMARY KEY (name, alias, depth)
) WITHOUT ROWID;
CREATE TABLE shadows (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL REFERENCES names (name),
  alias TEXT NOT NULL,
  candidate INTEGER NOT NULL REFERENCES versions (id),
  baseline INTEGER NOT NULL REFERENCES versions (id),
  limits TEXT NOT NULL,
  counts TEXT NOT NULL,
  verdict TEXT NOT NULL,
  reason TEXT NOT NULL,
  started INTEGER NOT NULL,
  ended INTEGER
);
CREATE UNIQUE INDEX one_shadow ON shadows (name) WHERE ended IS NULL;
CREATE TABLE events (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at INTEGER NOT NULL,
  name TEXT NOT NULL,
  version TEXT NOT NULL,
  action TEXT NOT NULL,
  detail TEXT NOT NULL
);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_remain BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
"""
_inherited: list[sqlite3.Connection] = []  # of a parent process: closing one here would release the parent's locks


class Database:
    """The connection of this process to a registry, used by one thread at a time."""

    def __init__(self, folder: Path, *, create: bool) -> None:
        self.path = folder / FILE
        self._create = create
        self._turn = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        with self.reading():
            pass  # report now that there is none, or that it is something else

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the database and changes nothing."""
        with self._turn, self._told():
            connection = self._connected()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction alone with the database: committed when the block ends, undone if it raises."""
        with self._turn, self._told():
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        with self._turn:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors of SQLite as errors of weft."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                what = f"another process has been writing to {self.path} for {WAIT_S:g} s"
                raise BusyError("registry", what, advice="try again later") from error
            raise RegistryError("registry", f"{self.path} cannot be used: {error}") from error
        except sqlite3.DatabaseError as error:
            raise RegistryError("registry", f"{self.path} is damaged or not a registry: {error}") from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None and self._owner != os.getpid():
            _inherited.append(self._connection)
            self._connection = None
        if self._connection is None:
            self._connection, self._owner = self._opened(), os.getpid()
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        if not self.path.is_file():
            if not self._create:
                advice = (
                    "add a version with `weft registry add`, or name another folder with --registry or WEFT_REGISTRY"
                )
                raise NotFoundError("registry", f"there is no registry in {self.path.parent}", advice=advice)
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
        try:
            for pragma in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF", "cell_size_check = ON"):
                connection.execute(f"PRAGMA {pragma}")
            _ensure_schema(connection, self.path)
        except BaseException:
            connection.close()
            raise
        return connection


def _ensure_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new registry, in one transaction; refuse other files and newer formats."""
    if _format(connection, path) == FORMAT:
        return
    _wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _format(connection, path) == 0:  # another process may have been first
            for statement in _statements(SCHEMA):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _format(connection: sqlite3.Connection, path: Path) -> int:
    """The format of the registry in this file, 0 for an empty file."""
    application, found, tables = _marks(connection)
    if application == APPLICATION:
        if found != FORMAT:
            advice = "use the weft that wrote it, or a newer one"
            raise RegistryError("registry", f"{path} has format {found}; this weft reads {FORMAT}", advice=advice)
        return found
    if tables:
        raise RegistryError("registry", f"{path} is a database of another program", advice="choose another folder")
    return 0


def _marks(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """The application, the format and the number of tables, all at one moment.

    Between two statements of its own another process may have made the tables: a file without an application before and
    with tables after would look like another program's.
    """
    whole = not connection.in_transaction
    if whole:
        connection.execute("BEGIN")
    try:
        queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT COUNT(*) FROM sqlite_master")
        application, found, tables = (int(connection.execute(query).fetchone()[0]) for query in queries)
    finally:
        if whole and connection.in_transaction:
            connection.execute("COMMIT")
    return application, found, tables


def _wal(connection: sqlite3.Connection) -> None:
    """Several processes that make a new registry at once may see it locked: SQLite does not wait for this change."""
    import time

    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script; a trigger contains semicolons of its own."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def rows(connection: sqlite3.Connection, query: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(query, values).fetchall()


def one(connection: sqlite3.Connection, query: str, *values: Any) -> tuple[Any, ...] | None:
    found: tuple[Any, ...] | None = connection.execute(query, values).fetchone()
    return found
