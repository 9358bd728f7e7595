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


class Sqlite:
    """The dialect of a file."""

    id_type = "TEXT COLLATE BINARY"
    for_update = ""  # a writing transaction holds the whole file
    errors: tuple[type[Exception], ...] = (sqlite3.Error, UnicodeDecodeError)  # the other: of a damaged text

    def __init__(self, path: Path, *, create: bool) -> None:
        self.where = path.name
        if path.is_dir():
            raise InputError(f"[store] {path} is a folder, as an index of vectors is; a store is a SQLite file")
        if not create and not path.is_file():
            raise NotFoundError(f"[store] no such file: {path}")
        address = f"{path.resolve().as_uri()}?mode={'rwc' if create else 'rw'}"
        try:
            self.connection = sqlite3.connect(
                address, uri=True, timeout=WAIT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise StoreError(f"[store] {path} cannot be opened: {error}") from None

    def session(self) -> Session:
        return Session(self.connection.execute, self.connection.executemany)

    def adopt(self, session: Session) -> None:
        session.run("PRAGMA journal_mode = WAL")
        session.run("PRAGMA synchronous = FULL")  # what was acknowledged survives a power cut
        session.run("PRAGMA trusted_schema = OFF")  # the file may come from anywhere
        session.run("PRAGMA cell_size_check = ON")

    def tables(self, session: Session) -> set[str]:
        return {name for (name,) in session.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def begin(self, session: Session, mode: str) -> None:
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

    def version(self, session: Session) -> tuple[int, int]:
        found = session.row("PRAGMA data_version")  # counts what other connections commit
        assert found
        return int(found[0]), self.connection.total_changes  # and this one's own, those undone included

    def nearest(self, session: Session, number: int, query: np.ndarray, k: int) -> None:
        return None

    def translate(self, error: Exception) -> WeftError:
        if "locked" in str(error) or "busy" in str(error):
            return BusyError(f"[store] {self.where} was held by another process for {WAIT_S:.0f} s; try again")
        if isinstance(error, sqlite3.ProgrammingError) and "closed database" in str(error):
            return StoreError(f"[store] the store in {self.where} was closed; open it again")
        if isinstance(error, sqlite3.OperationalError):
            return StoreError(f"[store] {self.where}: {error}")
        return StoreError(f"[store] {self.where} is damaged or no SQLite file: {error}; restore a copy")

    def close(self) -> None:
        self.connection.close()
