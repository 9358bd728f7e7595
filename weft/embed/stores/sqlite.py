"""A store in one SQLite file: WAL, every commit synced to the disk."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.stores.dialect import READ, Session
from weft.errors import BusyError, InputError, NotFoundError, StoreError, WeftError

if TYPE_CHECKING:
    import numpy as np

WAIT_S = 30.0  # for another process's transaction
PAUSE_S = 0.02  # between two attempts where SQLite itself does not wait
DAMAGED = ("malformed", "not a database", "could not decode")  # SQLITE_CORRUPT and NOTADB; codes came with Python 3.11


class Sqlite:
    """The dialect of a file."""

    id_type = "TEXT COLLATE BINARY"
    for_update = ""  # a writing transaction holds the whole file
    errors: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError)  # the other: of a damaged text

    def __init__(self, path: Path, *, create: bool) -> None:
        self.where = path.name
        self._waited_s = 0.0  # for another process, and in vain
        self._is_closed = self._is_let_go = False
        if path.is_dir():
            raise InputError(f"[store] {path} is a folder, as an index of vectors is; a store is a SQLite file")
        if not create and not path.is_file():
            raise NotFoundError(f"[store] no such file: {path}")
        self._path = path.resolve()
        self._connect("rwc" if create else "rw")

    def _connect(self, mode: str) -> None:
        address = f"{self._path.as_uri()}?mode={mode}"
        try:
            self.connection = sqlite3.connect(
                address, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"[store] {self._path} cannot be opened: {error}") from None

    def session(self) -> Session:
        def run(sql: str, values: Any) -> Any:
            began = time.monotonic()
            try:
                return self.connection.execute(sql, values)
            except sqlite3.OperationalError as error:
                if _is_held(error):
                    self._waited_s = time.monotonic() - began
                raise

        def run_each(sql: str, values: Any) -> Any:
            return self.connection.executemany(sql, values)

        return Session(run, run_each)

    def adopt(self, session: Session) -> None:
        self._use_wal(session)
        session.run("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
        session.run("PRAGMA trusted_schema = OFF")  # the file may come from anywhere
        session.run("PRAGMA cell_size_check = ON")

    def _use_wal(self, session: Session) -> None:
        """Without the wait that SQLite has for other statements: it says at once that the file is held."""
        began = time.monotonic()
        while True:
            try:
                session.run("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                self._waited_s = time.monotonic() - began
                if not _is_held(error) or self._waited_s >= WAIT_S:
                    raise
                time.sleep(PAUSE_S)

    def tables(self, session: Session) -> set[str]:
        return {name for (name,) in session.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def begin(self, session: Session, mode: str) -> None:
        if self._is_let_go and not self._is_closed:
            self._connect("rw")
            self.adopt(session)
            self._is_let_go = False
        session.run("BEGIN" if mode == READ else "BEGIN IMMEDIATE")

    def now(self, session: Session) -> float:
        return time.time()

    def vector_type(self, dimension: int) -> str:
        return "BLOB"

    def pack(self, vector: np.ndarray) -> Any:
        return vector.astype("<f4", copy=False).tobytes()

    def unpack(self, value: Any) -> np.ndarray:
        import numpy as np

        if not isinstance(value, bytes) or len(value) % 4:
            raise StoreError(f"[store] {self.where} is damaged: a vector is not float32; restore a copy")
        return np.frombuffer(value, "<f4")

    def as_bytes(self, column: str) -> str:
        return f"CAST({column} AS BLOB)"

    def watch(self, number: int) -> tuple[str, ...]:
        counted = f"BEGIN UPDATE generations SET changes = changes + 1 WHERE number = {number}; END"
        return tuple(
            f"CREATE TRIGGER IF NOT EXISTS watch_{number}_{verb} AFTER {verb} ON vectors_{number} {counted}"
            for verb in ("insert", "update", "delete")
        )

    def nearest(self, session: Session, number: int, query: np.ndarray, k: int) -> None:
        return None

    def translate(self, error: Exception) -> WeftError:
        if _is_held(error):
            return BusyError(f"[store] {self.where} was held by another process for {self._waited_s:.1f} s; try again")
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return StoreError(f"[store] the store in {self.where} was closed; open it again")
        if isinstance(error, UnicodeDecodeError) or any(said in str(error) for said in DAMAGED):
            return StoreError(f"[store] {self.where} is damaged or no SQLite file: {error}; restore a copy")
        return StoreError(f"[store] {self.where}: {error}")

    def let_go(self) -> None:
        if not self._is_closed and not self._is_let_go and not self.connection.in_transaction:
            self.connection.close()
            self._is_let_go = True

    def close(self) -> None:
        self._is_closed = True
        self.connection.close()


def _is_held(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))
