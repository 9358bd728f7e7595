"""The ledger of a labelling: what was reserved, sent, paid and received, in one SQLite file.

The cost of a request's worst case is on disk before the request is sent, and the reply's bytes are on disk before
anything else is done with them. What was sent and has no reply (the process was killed, the connection broke) counts as
paid in full: a server may have charged it. So the sum in the file is never below the true one.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weft.errors import BusyError, FormatError, InputError
from weft.frozen import frozen

FILE = "ledger.sqlite"
VERSION = 1
# States of an attempt. `sent` is also what a killed process leaves; the next one turns it into `lost`.
SENT, PAID, UNREADABLE, LOST, REFUSED = "sent", "paid", "unreadable", "lost", "refused"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS attempts (id INTEGER PRIMARY KEY, key TEXT NOT NULL, state TEXT NOT NULL, "
    "reserved INTEGER NOT NULL, cost INTEGER NOT NULL, input_tokens INTEGER, output_tokens INTEGER, status INTEGER, "
    "body BLOB, note TEXT, began REAL NOT NULL, ended REAL)",
    "CREATE INDEX IF NOT EXISTS attempts_key ON attempts (key, state)",
    "CREATE TABLE IF NOT EXISTS totals (one INTEGER PRIMARY KEY CHECK (one = 1), cost INTEGER NOT NULL)",
    "INSERT OR IGNORE INTO totals VALUES (1, 0)",
)


@frozen
class Kept:
    """A paid reply: its bytes, what it cost and the tokens it was charged for."""

    body: bytes
    cost: int
    input_tokens: int
    output_tokens: int


class Ledger:
    """The file `folder`/ledger.sqlite; one process at a time writes to it. Any thread may call it."""

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise InputError("distill", "is a file", field="output", given=str(folder), advice="name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / FILE
        self._lock = threading.Lock()
        self._hold = _held(folder / f"{FILE}.lock")
        try:
            self._db = sqlite3.connect(self.path, timeout=30.0, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")  # a commit survives a power cut, too
            found = self._db.execute("PRAGMA user_version").fetchone()[0]
            if found not in (0, VERSION):
                raise FormatError(FILE, f"must be {VERSION}", field="version", given=found, advice="use a newer weft")
            with self._writing():
                for line in SCHEMA:
                    self._db.execute(line)
                self._db.execute(f"PRAGMA user_version = {VERSION}")
                note = "the process ended before the reply"
                self._db.execute("UPDATE attempts SET state = ?, note = ? WHERE state = ?", (LOST, note, SENT))
        except sqlite3.DatabaseError as error:
            self._hold.close()
            raise FormatError(FILE, f"cannot be read: {error}", advice="choose another folder") from None
        except BaseException:
            self._hold.close()
            raise

    def close(self) -> None:
        with self._lock:
            self._db.close()
        self._hold.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @property
    def cost(self) -> int:
        """What all requests have cost, those under way and those without a reply at their worst."""
        with self._lock:
            return int(self._db.execute("SELECT cost FROM totals").fetchone()[0])

    def reserve(self, key: str, worst: int, cap: int | None) -> int | None:
        """The number of a new attempt, or None if its worst case would exceed the cap."""
        with self._writing():
            before = self._db.execute("SELECT cost FROM totals").fetchone()[0]
            if cap is not None and before + worst > cap:
                return None
            made = self._db.execute(
                "INSERT INTO attempts (key, state, reserved, cost, began) VALUES (?, ?, ?, ?, ?)",
                (key, SENT, worst, worst, time.time()),
            )
            self._db.execute("UPDATE totals SET cost = cost + ?", (worst,))
            return int(made.lastrowid or 0)

    def settle(
        self,
        number: int,
        state: str,
        cost: int | None = None,
        *,
        tokens: tuple[int, int] = (0, 0),
        status: int | None = None,
        body: bytes | None = None,
        note: str | None = None,
    ) -> None:
        """The end of an attempt; `cost` None keeps what was reserved."""
        with self._writing():
            (before,) = self._db.execute("SELECT cost FROM attempts WHERE id = ?", (number,)).fetchone()
            now = before if cost is None else cost
            self._db.execute(
                "UPDATE attempts SET state = ?, cost = ?, input_tokens = ?, output_tokens = ?, status = ?, body = ?, "
                "note = ?, ended = ? WHERE id = ?",
                (state, now, *tokens, status, body, note, time.time(), number),
            )
            self._db.execute("UPDATE totals SET cost = cost + ?", (now - before,))

    def paid(self, key: str) -> Kept | None:
        """The reply to this request, if there is one."""
        with self._lock:
            row = self._db.execute(
                "SELECT body, cost, input_tokens, output_tokens FROM attempts WHERE key = ? AND state = ? "
                "ORDER BY id LIMIT 1",
                (key, PAID),
            ).fetchone()
        return None if row is None else Kept(*row)

    def keys_paid(self) -> set[str]:
        """All requests that have a reply."""
        with self._lock:
            return {row[0] for row in self._db.execute("SELECT DISTINCT key FROM attempts WHERE state = ?", (PAID,))}

    def summary(self) -> dict[str, dict[str, Any]]:
        """By state: how many attempts, and what they cost."""
        asked = (
            "SELECT state, count(*), sum(cost), sum(coalesce(input_tokens, 0)), sum(coalesce(output_tokens, 0)) "
            "FROM attempts GROUP BY state ORDER BY state"
        )
        with self._lock:
            rows = self._db.execute(asked).fetchall()
        names = ("attempts", "cost", "input_tokens", "output_tokens")
        return {state: dict(zip(names, numbers)) for state, *numbers in rows}


class _Hold:
    """A file that one process holds, until it ends."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def take(self) -> bool:
        try:
            import fcntl
        except ImportError:  # Windows
            import msvcrt

            try:
                msvcrt.locking(self._handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            except OSError:
                return False
            return True
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def _held(path: Path) -> _Hold:
    if path.parent.exists() and not path.parent.is_dir():
        raise InputError("distill", f"{path.parent} is a file", field="output", advice="name a folder")
    hold = _Hold(path)
    if not hold.take():
        hold.close()
        raise BusyError("distill", f"another process is labelling in {path.parent}", advice="wait until it ends")
    return hold
