"""The cache on disk: an SQLite file in WAL mode that processes share, a checksum in each row, a cap on its size.

What `put` returned from survives the end of the process, kill -9 included: a commit has reached the system's own memory
by then. (After a power cut the last commits may be missing; the file stays whole.) A row counts only if its checksum is
right for its key, its fingerprint and its numbers, so damage is a miss and a vector of another model cannot come out.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from weft import flags
from weft.embed.cache.entries import Stored
from weft.errors import FormatError, InputError

log = logging.getLogger("weft.embed")

MAX_BYTES = 1 << 30
WAIT_S = 30.0  # for another process that writes
ASK = 400  # keys in one question; SQLite takes 999 and more
TOUCH_S = 3600  # a hit is written down once an hour: reading must not mean writing
KEEP = 0.9  # of the cap, when it was reached
PAGE_BYTES = 16 << 10  # vectors have 1.5 to 4 kB, and a page of 4 kB would hold two or half of one
LEAST_BYTES = 1 << 20
VERSION = 1
HEADER = struct.Struct("<IIII")  # dimension, tokens, dropped, windows
SUM_BYTES = 16
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE)",
    "CREATE TABLE IF NOT EXISTS vectors (key BLOB NOT NULL, model INTEGER NOT NULL, used INTEGER NOT NULL, "
    "entry BLOB NOT NULL, PRIMARY KEY (key, model))",
    "CREATE INDEX IF NOT EXISTS vectors_used ON vectors (used)",
)
T = TypeVar("T")


class ModelStats(NamedTuple):
    """What one model has in the file; `used` is when one of its vectors was last asked for, in seconds since 1970."""

    fingerprint: str
    vectors: int
    size_bytes: int
    used: int


class DiskCache:
    """Vectors in the file `path`, by default weft's own; the least recently used go when it has `max_bytes`."""

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        if max_bytes < LEAST_BYTES:
            raise InputError(f"[cache] max_bytes is {max_bytes}; at least {LEAST_BYTES} are needed")
        self.path = default_path() if path is None else Path(path)
        self.max_bytes = max_bytes
        self.hits = self.misses = self.damaged = self.failed_writes = 0
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        with self._connected():
            pass  # a file that is no cache is told now

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        try:
            model, rows = self._rows(fingerprint, list(dict.fromkeys(keys)))
        except sqlite3.DatabaseError as error:  # a damaged file, or others who write for half a minute
            log.warning("the embedding cache cannot be read: %s", error)
            model, rows = None, {}
        found = [self._read(fingerprint, key, rows.get(key)) for key in keys]
        if model is not None:
            self._touch(model, rows)
        hits = sum(entry is not None for entry in found)
        with self._lock:
            self.hits, self.misses = self.hits + hits, self.misses + len(found) - hits
        return found

    def _rows(self, fingerprint: str, keys: list[bytes]) -> tuple[int | None, dict[bytes, tuple[int, bytes]]]:
        """The model's number, and when each of its keys that are there was used, with its entry."""
        rows: dict[bytes, tuple[int, bytes]] = {}
        with self._connected() as connection:
            model = _model(connection, fingerprint)
            for part in _parts(keys if model is not None else [], ASK):
                marks = ",".join("?" * len(part))
                asked = f"SELECT key, used, entry FROM vectors WHERE model = ? AND key IN ({marks})"
                rows.update((key, (used, entry)) for key, used, entry in connection.execute(asked, (model, *part)))
        return model, rows

    def put(self, fingerprint: str, entries: Sequence[tuple[bytes, Stored]]) -> None:
        now = int(time.time())
        rows = [(key, now, write_entry(fingerprint, key, stored)) for key, stored in entries]
        if not rows:
            return

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR IGNORE INTO models (fingerprint) VALUES (?)", (fingerprint,))
            model = _model(connection, fingerprint)
            insert = "INSERT OR REPLACE INTO vectors (key, used, entry, model) VALUES (?, ?, ?, ?)"
            connection.executemany(insert, ((*row, model) for row in rows))

        try:
            self._write(write)
            self._trim()
        except sqlite3.DatabaseError as error:  # a full disk, a file that may only be read or is damaged
            self.failed_writes += len(rows)
            log.warning("the embedding cache cannot be written: %s", error)

    def models(self) -> list[ModelStats]:
        """What is there, most recently used first."""
        asked = (
            "SELECT fingerprint, COUNT(*), SUM(LENGTH(key) + LENGTH(entry)), MAX(used) FROM vectors "
            "JOIN models ON models.id = vectors.model GROUP BY model ORDER BY MAX(used) DESC, fingerprint"
        )
        with self._connected() as connection:
            return [ModelStats(*row) for row in connection.execute(asked)]

    def __len__(self) -> int:
        with self._connected() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM vectors").fetchone()[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that are in use."""
        with self._connected() as connection:
            return _live_bytes(connection)

    def prune(
        self, *, max_bytes: int | None = None, older_than_s: float | None = None, fingerprint: str | None = None
    ) -> int:
        """Delete what is over `max_bytes`, was not used for so long, or is of one model; how many went."""
        before = len(self)
        if fingerprint is not None:
            chosen = "SELECT id FROM models WHERE fingerprint = ?"
            self._write(lambda c: c.execute(f"DELETE FROM vectors WHERE model IN ({chosen})", (fingerprint,)))
        if older_than_s is not None:
            oldest = int(time.time() - older_than_s)
            self._write(lambda c: c.execute("DELETE FROM vectors WHERE used < ?", (oldest,)))
        if max_bytes is not None:
            self._trim(max_bytes, max_bytes)
        self._shrink()
        return before - len(self)

    def clear(self) -> int:
        """Delete everything; how many vectors went."""
        count = len(self)
        self._write(lambda c: c.execute("DELETE FROM vectors"))
        self._shrink()
        return count

    def close(self) -> None:
        """Let go of the file; using the cache opens it again."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        self._connection = None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, one thread at a time; a forked child opens its own."""
        with self._lock:
            if self._connection is None or self._owner != os.getpid():
                self._connection, self._owner = _connect(self.path), os.getpid()
            yield self._connection

    def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """Make a change whole or not at all; it is there for everyone once this returns."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = change(connection)
                connection.execute("COMMIT")
                return result
            except BaseException:
                if connection.in_transaction:  # Ctrl-C may come after the commit
                    connection.execute("ROLLBACK")
                raise

    def _read(self, fingerprint: str, key: bytes, row: tuple[int, bytes] | None) -> Stored | None:
        if row is None:
            return None
        stored = read_entry(fingerprint, key, row[1])
        self.damaged += stored is None
        return stored

    def _touch(self, model: int, rows: dict[bytes, tuple[int, bytes]]) -> None:
        now = int(time.time())
        stale = [(now, key, model) for key, (used, _) in rows.items() if used < now - TOUCH_S]
        if stale:
            try:
                update = "UPDATE vectors SET used = ? WHERE key = ? AND model = ?"
                self._write(lambda connection: connection.executemany(update, stale))
            except sqlite3.DatabaseError as error:  # others write, or nobody may: it is only an order
                log.debug("uses of the embedding cache were not written down: %s", error)

    def _trim(self, limit: int | None = None, goal: int | None = None) -> None:
        """Delete the least recently used until no more than `goal` bytes are in use, if there are more than `limit`."""
        limit = self.max_bytes if limit is None else limit
        goal = int(self.max_bytes * KEEP) if goal is None else goal
        with self._connected() as connection:
            if _live_bytes(connection) <= limit:
                return

        def delete(connection: sqlite3.Connection) -> None:
            while (over := _live_bytes(connection) - goal) > 0:
                row = connection.execute("SELECT COUNT(*), AVG(LENGTH(entry)) FROM vectors").fetchone()
                if not row[0]:
                    return
                count = max(1, min(row[0], int(over / (row[1] + 64))))
                oldest = "SELECT rowid FROM vectors ORDER BY used, rowid LIMIT ?"
                connection.execute(f"DELETE FROM vectors WHERE rowid IN ({oldest})", (count,))

        self._write(delete)
        self._shrink()

    def _shrink(self) -> None:
        """Give pages that hold nothing back to the file system, and models without vectors with them."""
        self._write(lambda c: c.execute("DELETE FROM models WHERE id NOT IN (SELECT DISTINCT model FROM vectors)"))
        with self._connected() as connection:
            connection.executescript("PRAGMA incremental_vacuum;")  # `execute` stops after one page
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def default_path() -> Path:
    """The file in weft's cache folder."""
    return flags.cache_folder() / "embeddings.sqlite"


def write_entry(fingerprint: str, key: bytes, stored: Stored) -> bytes:
    """A row's content: header, checksum, float32 numbers."""
    import numpy as np

    numbers = np.ascontiguousarray(stored.vector, "<f4").tobytes()
    header = HEADER.pack(len(stored.vector), stored.tokens, stored.dropped, stored.windows)
    return header + _sum(fingerprint, key, header, numbers) + numbers


def read_entry(fingerprint: str, key: bytes, data: bytes) -> Stored | None:
    """What `write_entry` wrote for this fingerprint and key; None for anything else."""
    import numpy as np

    start = HEADER.size + SUM_BYTES
    if len(data) < start:
        return None
    header, numbers = data[: HEADER.size], data[start:]
    dimension, tokens, dropped, windows = HEADER.unpack(header)
    if len(numbers) != 4 * dimension or data[HEADER.size : start] != _sum(fingerprint, key, header, numbers):
        return None
    return Stored(np.frombuffer(numbers, "<f4").astype(np.float32), tokens, dropped, windows)


def _sum(fingerprint: str, key: bytes, header: bytes, numbers: bytes) -> bytes:
    name = fingerprint.encode()
    hashed = blake2b(len(name).to_bytes(8, "little") + name + key + header, digest_size=SUM_BYTES)
    hashed.update(numbers)
    return hashed.digest()


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise FormatError(f"[cache] {path.name} cannot be opened: {error}") from None
    try:
        _prepare(connection, path)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise FormatError(f"[cache] {path.name} is not an embedding cache: {error}; give another file") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Turn a new file into a cache; check one that is there."""
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, VERSION):
        raise FormatError(f"[cache] {path.name} has version {version}, this weft reads {VERSION}; give another file")
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute(
        "PRAGMA auto_vacuum = INCREMENTAL"
    )  # these two before the first page is written, or it means nothing
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    if version == VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")  # of two that make the file, the second finds it made
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if tables - {"models", "vectors"}:
        raise FormatError(f"[cache] {path.name} is a database of something else; give another file")
    for statement in (*SCHEMA, f"PRAGMA user_version = {VERSION}", "COMMIT"):
        connection.execute(statement)


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """SQLite does not wait here for others who do the same at this moment."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.01)


def _model(connection: sqlite3.Connection, fingerprint: str) -> int | None:
    """The number of a fingerprint in the file; asked each time, since another process may delete it."""
    row = connection.execute("SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)).fetchone()
    return None if row is None else int(row[0])


def _live_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        int(connection.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _parts(items: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
