"""Database connections and forks.

SQLite tracks its file locks per process. A forked child inherits that record but not the locks: it would write without
them, and another process may then remove the log that the child writes to, with everything the child has committed. A
socket would be shared by two processes. So connections are closed before a fork and opened again when they are next
used. A fork waits at most LONGEST_S for threads that are using one; a connection that is still in use then works on in
the parent and is refused in the child (docs/decisions/0031).
"""

from __future__ import annotations

import os
import time
from threading import Lock
from typing import Protocol
from weakref import WeakSet

LONGEST_S = 1.0  # for all connections together


class Connected(Protocol):
    """An object that keeps a connection."""

    def hold_for_fork(self, seconds: float) -> bool:
        """Wait until no thread uses the connection, then close it and keep threads out; False after `seconds`."""

    def release_after_fork(self) -> None:
        """Let threads in again, in the parent; called only if `hold_for_fork` returned True."""

    def renew_after_fork(self, closed: bool) -> None:
        """Make a new lock, in the child, where no other thread runs. If the connection was not `closed`, the inherited
        one must not be used, nor another to the same database be opened."""


_known: WeakSet[Connected] = WeakSet()
_lock = Lock()  # guards `_known`, and is held during a fork
_held: list[tuple[Connected, bool]] = []


def close_before_forks(one: Connected) -> None:
    """Close the connection of `one` before every fork from now on."""
    with _lock:
        _known.add(one)


def _before() -> None:
    _lock.acquire()
    until = time.monotonic() + LONGEST_S
    _held.extend((one, one.hold_for_fork(max(0.0, until - time.monotonic()))) for one in list(_known))


def _after_in_parent() -> None:
    for one, held in _held:
        if held:
            one.release_after_fork()
    _held.clear()
    _lock.release()


def _after_in_child() -> None:
    for one, held in _held:
        one.renew_after_fork(held)
    _held.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
