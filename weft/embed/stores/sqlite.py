"""A store in one SQLite file: WAL, every commit synced to the disk."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.stores.dialect import READ, Session
from weft.errors import BusyError, InputError, NotAStoreError, NotFoundError, StoreError, WeftError

if TYPE_CHECKING:
    import numpy as np

WAIT_S = 30.0  # for another process's transaction
PAUSE_S = 0.02  # between two attempts where SQLite itself does not wait
# In SQLite's messages; Python has its error codes only since 3.11.
CORRUPT, NOT_A_DATABASE = ("malformed", "could not decode"), "not a database"


class Sqlite:
    """The dialect of a file."""

    id_type = "TEXT COLLATE BINARY"
    for_update = ""  # a writing transaction locks the whole file
    errors: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError)  # the latter for a damaged text

    def __init__(self, path: Path, *, create: bool) -> None:
        self.name = path.name
        self._waited_s = 0.0  # for the lock of another process, without success
        self._is_closed = self._is_let_go = False
        if path.is_dir():
            raise InputError(
                "store",
                f"{path} is a folder; a store is a SQLite file",
                advice="give the path of a file, or open an index with weft.Index.open",
            )
        if not create and not path.is_file():
            raise NotFoundError("store", f"{path} does not exist", advice="create a store: open_store(…, create=True)")
        self._path = path.resolve()
        self._connect("rwc" if create else "rw")

    def _connect(self, mode: str) -> None:
        address = f"{self._path.as_uri()}?mode={mode}"
        try:
            self.connection = sqlite3.connect(
                address, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError("store", f"cannot open {self._path}: {error}") from None

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
        session.run("PRAGMA synchronous = FULL")  # commits survive a power cut
        session.run("PRAGMA trusted_schema = OFF")  # the file may come from anywhere
        session.run("PRAGMA cell_size_check = ON")

    def _use_wal(self, session: Session) -> None:
        """Switch to WAL. SQLite does not wait for a lock here, as it does for other statements, so this does."""
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
            raise StoreError("store", f"{self.name} is damaged: a vector is not float32", advice="restore a backup")
        return np.frombuffer(value, "<f4")

    def as_bytes(self, column: str) -> str:
        return f"CAST({column} AS BLOB)"

    def watch(self, number: int) -> tuple[str, ...]:
        counted = f"BEGIN UPDATE generations SET changes = changes + 1 WHERE number = {number}; END"
        return tuple(
            f"CREATE TRIGGER IF NOT EXISTS watch_{number}_{verb} AFTER {verb} ON vectors_{number} {counted}"
            for verb in ("insert", "update", "delete")
        )

    def nearest(self, session: Session, number: int, query: np.ndarray, k: int, chosen: Sequence[str] | None) -> None:
        return None

    def translate(self, error: Exception) -> WeftError:
        if _is_held(error):
            waited = f"waited {self._waited_s:.1f} s for the lock"
            return BusyError("store", f"{self.name} is locked by another process ({waited})", advice="try again")
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return StoreError("store", f"the store {self.name} is closed", advice="open it again")
        if NOT_A_DATABASE in str(error):
            return NotAStoreError(
                "store",
                f"{self.name} is not a SQLite file, or its header is damaged",
                advice="give another file, or restore a backup",
            )
        if isinstance(error, UnicodeDecodeError) or any(said in str(error) for said in CORRUPT):
            return StoreError("store", f"{self.name} is damaged: {error}", advice="restore a backup")
        return StoreError("store", f"SQLite failed on {self.name}: {error}")

    def let_go(self) -> None:
        if not self._is_closed and not self._is_let_go and not self.connection.in_transaction:
            self.connection.close()
            self._is_let_go = True

    def close(self) -> None:
        self._is_closed = True
        self.connection.close()


def _is_held(error: Exception) -> bool:
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))
