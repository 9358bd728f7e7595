"""The cache on disk: an SQLite file in WAL mode that processes share, with a checksum in each row and a size limit.

Once `put` returns, its entries survive the end of the process, kill -9 included: the commit has reached the operating
system. (After a power cut the last commits may be missing; the file stays consistent.) A row is used only if its
checksum fits its key, fingerprint and numbers, so a damaged row is a miss and never a vector of another model.

Vectors are written and deleted in small transactions: SQLite's log (WAL) is as large as the largest of them.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from weft import flags
from weft.digest import framed
from weft.embed.cache.entries import CacheStats, Stored
from weft.embed.forks import close_before_forks
from weft.errors import FormatError, InputError

log = logging.getLogger("weft.embed")

MAX_BYTES = 1 << 30
WAIT_S = 30.0  # for the write lock, if another process holds it
ASK = 400  # keys per query; SQLite allows 999 and more
TOUCH_S = 3600  # an access time is updated once an hour at most: reading must not mean writing
SHRINK_WAIT_S = 0.5  # for readers of the log; if they take longer, a later call truncates it
KEEP = 0.9  # of the size limit, after eviction
STEP = 0.8  # of the excess is deleted at once, by the average row size: rows differ, and too many must not go
STEP_ROWS = 1024  # deleted in one transaction
ROW_BYTES = 128  # of a row, without the numbers and with its index entries
LOG_BYTES = 8 << 20  # of the log, and of one transaction; an eighth of the size limit if that is less
PAGE_BYTES = 16 << 10  # vectors have 1.5 to 4 kB: a page of 4 kB would hold two, or half of one
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
TABLES = {"models", "vectors"}
# Files that a thread of the parent was using when this process was forked: SQLite would write to them without locks.
_inherited: dict[tuple[int, int], sqlite3.Connection | None] = {}
UNUSABLE = (sqlite3.DatabaseError, InputError, FormatError)  # the file cannot be read, written or opened again
T = TypeVar("T")


class ModelStats(NamedTuple):
    """One model's share of the file; `used` is the last access to one of its vectors, in seconds since 1970.

    `name` is the model's name at the last `put`, "" if it was not given.
    """

    fingerprint: str
    vectors: int
    size_bytes: int
    used: int
    name: str
    dimension: int  # of the longest vector


class DiskCache:
    """Vectors in the file `path`, by default weft's own; beyond `max_bytes` the least recently used are evicted.

    The log beside the file is not counted: some MB, less for a small limit, briefly more while several processes write.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, max_bytes: int = MAX_BYTES) -> None:
        if not isinstance(max_bytes, int) or max_bytes < LEAST_BYTES:
            raise InputError("cache", f"must be at least {LEAST_BYTES}", given=max_bytes, field="max_bytes")
        self.path = (default_path() if path is None else Path(path)).absolute()  # the working directory may change
        self.max_bytes = max_bytes
        self.hits = self.misses = self.damaged = self.failed_writes = 0
        self._log_bytes = min(LOG_BYTES, max_bytes // 8)
        self._names: dict[str, str] = {}
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._owner = 0
        self._file: tuple[int, int] | None = None
        with self._connected():
            pass  # report now that a file is not a cache
        close_before_forks(self)

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        try:
            model, rows = self._rows(fingerprint, list(dict.fromkeys(keys)))
        except UNUSABLE as error:  # a damaged file, or another process that holds the lock for half a minute
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
        """The model's number, and the access time and entry of each key that is stored."""
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
        left = len(entries)
        largest = 4 * max((len(stored.vector) for _, stored in entries), default=0) + ROW_BYTES
        try:
            for part in _parts(entries, max(1, self._log_bytes // largest)):
                rows = [(key, now, write_entry(fingerprint, key, stored)) for key, stored in part]
                self._write(partial(_insert, fingerprint, self._names.get(fingerprint), rows))
                left -= len(rows)
                self._trim()
        except UNUSABLE as error:  # a full disk, a read-only or damaged file
            self.failed_writes += left
            log.warning("the embedding cache cannot be written: %s", error)

    def name_model(self, fingerprint: str, name: str) -> None:
        """Set the model's name for `models`, from the next `put` on."""
        self._names[fingerprint] = name

    def models(self) -> list[ModelStats]:
        """The models in the file, most recently used first."""
        asked = (
            "SELECT fingerprint, COUNT(*), SUM(LENGTH(key) + LENGTH(entry)), MAX(used), IFNULL(name, ''), "
            f"(MAX(LENGTH(entry)) - {HEADER.size + SUM_BYTES}) / 4 FROM vectors "
            "JOIN models ON models.id = vectors.model GROUP BY model ORDER BY MAX(used) DESC, fingerprint"
        )
        with self._readable() as connection:
            return [ModelStats(*row) for row in connection.execute(asked)]

    @property
    def stats(self) -> CacheStats:
        """Hits and misses of this object."""
        with self._lock:
            return CacheStats(self.hits, self.misses)

    def __len__(self) -> int:
        with self._readable() as connection:
            return int(connection.execute("SELECT COUNT(*) FROM vectors").fetchone()[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of the file that are in use."""
        with self._readable() as connection:
            return _live_bytes(connection)

    @property
    def file_bytes(self) -> int:
        """Bytes on disk: the file, including free pages, and the log beside it."""
        files = (self.path, self.path.with_name(self.path.name + "-wal"))
        size = 0
        for file in files:
            with suppress(OSError):  # the last process to close the file removes the log
                size += file.stat().st_size
        return size

    def prune(
        self, *, max_bytes: int | None = None, older_than_s: float | None = None, fingerprint: str | None = None
    ) -> int:
        """Delete vectors beyond `max_bytes`, unused for `older_than_s`, or of one model; returns how many."""
        for name, value in (("max_bytes", max_bytes), ("older_than_s", older_than_s)):
            if value is not None and not (type(value) in (int, float) and value >= 0):
                raise InputError("cache", "must be a number from 0 on", given=value, field=name)
        count = 0  # deleted by this call: other processes write and delete at the same time
        with _translated(self.path):
            if fingerprint is not None:
                count += self._delete("model IN (SELECT id FROM models WHERE fingerprint = ?)", fingerprint)
            if older_than_s is not None:
                count += self._delete("used < ?", int(time.time() - older_than_s))
            if max_bytes is not None:
                count += self._trim(max_bytes, max_bytes)
            self._shrink()
        return count

    def clear(self) -> int:
        """Delete everything; returns how many vectors."""
        with _translated(self.path):
            count = self._delete("TRUE")
            self._shrink()
        return count

    def _delete(self, which: str, *values: Any) -> int:
        """Delete rows, STEP_ROWS at a time, so that others can write in between and the log stays small."""
        some = f"DELETE FROM vectors WHERE rowid IN (SELECT rowid FROM vectors WHERE {which} LIMIT {STEP_ROWS})"
        return self._repeated(lambda connection: connection.execute(some, values).rowcount)

    def _repeated(self, change: Callable[[sqlite3.Connection], int]) -> int:
        """Repeat a change until it affects no rows; returns the number of rows in all."""
        count = 0
        while some := self._write(change):
            count += some
        return count

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        self._connection = None

    def hold_for_fork(self, seconds: float) -> bool:
        held = self._lock.acquire(timeout=seconds)
        if held:
            self._disconnect()
        return held

    def release_after_fork(self) -> None:
        self._lock.release()

    def renew_after_fork(self, closed: bool) -> None:
        self._lock = Lock()
        file = self._file or _identity(self.path)
        if not closed and file is not None:
            _inherited[file] = self._connection  # kept: closing it would touch the parent's log
            self._connection = None

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """The connection of this process, for one thread at a time. If the file was deleted, a new one is made: entries
        written to the old one would be lost."""
        with self._lock:
            if self._connection is None or self._owner != os.getpid() or self._file != _identity(self.path):
                self._disconnect()
                self._connection, self._owner = _connect(self.path, self._log_bytes), os.getpid()
                self._file = _identity(self.path)
            yield self._connection

    @contextmanager
    def _readable(self) -> Iterator[sqlite3.Connection]:
        with _translated(self.path), self._connected() as connection:
            yield connection

    def _write(self, change: Callable[[sqlite3.Connection], T], wait_s: float = WAIT_S) -> T:
        """Run a change in a transaction, waiting `wait_s` for the write lock; it is committed when this returns."""
        with self._connected() as connection:
            try:
                with _waiting(connection, wait_s):
                    connection.execute("BEGIN IMMEDIATE")  # Ctrl-C during this wait is raised after it
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
                self._write(lambda connection: connection.executemany(update, stale), wait_s=0)
            except sqlite3.DatabaseError as error:  # locked or read-only: the access time only affects eviction order
                log.debug("access times of the embedding cache were not updated: %s", error)

    def _trim(self, limit: int | None = None, goal: int | None = None) -> int:
        """If more than `limit` bytes are in use, delete the least recently used until at most `goal` are."""
        limit = self.max_bytes if limit is None else limit
        goal = int(self.max_bytes * KEEP) if goal is None else goal
        with self._connected() as connection:
            if _live_bytes(connection) <= limit:
                return 0
        count = self._repeated(partial(_delete_oldest, goal))
        self._shrink()
        return count

    def _shrink(self) -> None:
        """Return free pages and the log to the file system, and delete models without vectors."""
        self._write(lambda c: c.execute("DELETE FROM models WHERE id NOT IN (SELECT DISTINCT model FROM vectors)"))
        with self._connected() as connection:
            pages = self._log_bytes // PAGE_BYTES
            for _ in range(0, _pragma(connection, "freelist_count"), pages):
                connection.executescript(f"PRAGMA incremental_vacuum({pages});")  # `execute` stops after one page
            with _waiting(connection, SHRINK_WAIT_S):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def _waiting(connection: sqlite3.Connection, seconds: float) -> Iterator[None]:
    """Wait `seconds` for locks instead of WAIT_S."""
    if seconds != WAIT_S:
        connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")
    try:
        yield
    finally:
        if seconds != WAIT_S:
            connection.execute(f"PRAGMA busy_timeout = {WAIT_S * 1000:.0f}")


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into weft's, where they cannot be ignored."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise _out_of_reach(path, error) from None
    except sqlite3.DatabaseError as error:
        advice = "delete it; vectors are computed again when needed"
        raise FormatError("cache", f"{path} is damaged: {error}", advice=advice) from None


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
    hashed = blake2b(framed(fingerprint) + key + header, digest_size=SUM_BYTES)
    hashed.update(numbers)
    return hashed.digest()


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file, None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path, log_bytes: int) -> sqlite3.Connection:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _identity(path) in _inherited:
            raise OSError(errno.EBUSY, "it was in use when this process was forked", str(path))
        if path.exists() and not os.access(path, os.W_OK):  # report it now, not at every `put`
            raise OSError(errno.EROFS, "readonly file", str(path))
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _out_of_reach(path, error) from None
    try:
        _prepare(connection, path, log_bytes)
    except sqlite3.OperationalError as error:
        connection.close()
        raise _out_of_reach(path, error) from None
    except sqlite3.DatabaseError as error:
        connection.close()
        what = f"{path.name} is not an embedding cache: {error}"
        raise FormatError("cache", what, advice="give another file") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _out_of_reach(path: Path, error: OSError | sqlite3.Error) -> InputError:
    """The error for a file that cannot be written; a read-only one is refused too, since a reader writes to the WAL."""
    reason = getattr(error, "strerror", None) or error
    return InputError(
        "cache",
        f"{path} cannot be written: {reason}",
        advice="give a writable file, or 'memory', or no cache; WEFT_CACHE sets the folder of the default one",
    )


def _prepare(connection: sqlite3.Connection, path: Path, log_bytes: int) -> None:
    """Turn a new file into a cache; check an existing one."""
    connection.execute("BEGIN")  # a consistent view of both: another process may be creating the file
    version = _pragma(connection, "user_version")
    tables = _tables(connection)  # before anything is changed: the database may be another program's
    connection.execute("COMMIT")
    if tables - TABLES or (tables and version == 0):
        raise FormatError("cache", f"{path.name} is another program's database", advice="give another file")
    if version not in (0, VERSION):
        what = f"{path.name} has version {version}, this weft reads {VERSION}"
        raise FormatError("cache", what, advice="give another file")
    if not tables:  # these two have no effect after the first page is written
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {log_bytes}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {log_bytes // PAGE_BYTES}")
    if version == VERSION and _has_names(connection):
        return
    connection.execute("BEGIN IMMEDIATE")  # if two processes create the file, the second finds the tables
    for statement in SCHEMA:
        connection.execute(statement)
    if not _has_names(connection):  # files of earlier versions; those read files with the column too
        connection.execute("ALTER TABLE models ADD COLUMN name TEXT")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def _has_names(connection: sqlite3.Connection) -> bool:
    return any(column[1] == "name" for column in connection.execute("PRAGMA table_info(models)"))


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Retry while another process switches too: SQLite does not apply its busy timeout to this statement."""
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
    """The number of a fingerprint in the file; read each time, since another process may delete it."""
    row = connection.execute("SELECT id FROM models WHERE fingerprint = ?", (fingerprint,)).fetchone()
    return None if row is None else int(row[0])


def _insert(
    fingerprint: str, name: str | None, rows: list[tuple[bytes, int, bytes]], connection: sqlite3.Connection
) -> None:
    connection.execute("INSERT OR IGNORE INTO models (fingerprint) VALUES (?)", (fingerprint,))
    model = _model(connection, fingerprint)
    if name:
        connection.execute("UPDATE models SET name = ? WHERE id = ? AND name IS NOT ?", (name, model, name))
    insert = "INSERT OR REPLACE INTO vectors (key, used, entry, model) VALUES (?, ?, ?, ?)"
    connection.executemany(insert, ((*row, model) for row in rows))


def _delete_oldest(goal: int, connection: sqlite3.Connection) -> int:
    """Delete some of the least recently used if more than `goal` bytes are in use; returns how many."""
    live = _live_bytes(connection)
    (rows,) = connection.execute("SELECT COUNT(*) FROM vectors").fetchone()
    if live <= goal or not rows:
        return 0
    count = max(1, min(STEP_ROWS, int(STEP * rows * (live - goal) / live)))
    oldest = "SELECT rowid FROM vectors ORDER BY used, rowid LIMIT ?"
    return connection.execute(f"DELETE FROM vectors WHERE rowid IN ({oldest})", (count,)).rowcount


def _live_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _parts(items: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), count):
        yield items[start : start + count]
