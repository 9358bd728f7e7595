"""Database connections and forks.

SQLite has its locks on a file once for a process. After a fork it takes those of the parent for the child's, which has
none: another process may then remove the log that the child writes to, and what the child commits is lost. A socket
would be shared by two processes. So whoever keeps a connection lets go of it before a fork, and opens it again when it
is used; a lock that a thread has at that moment, which the child has not, would never be given back there.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import Protocol
from weakref import WeakSet

WAIT_S = 30.0  # for a thread that is in the middle of something: as long as it may wait for another process


class Connected(Protocol):
    """What keeps a connection."""

    def hold_for_fork(self, seconds: float) -> bool:
        """Wait at most so long until no thread uses the connection, keep them out and let go of it; False in vain."""

    def release_after_fork(self) -> None:
        """Let threads in again, in the parent."""

    def renew_after_fork(self) -> None:
        """In the child, whether it was held or not: no other thread is there."""


_known: WeakSet[Connected] = WeakSet()
_lock = Lock()  # of `_known`, and while a fork is under way
_held: list[tuple[Connected, bool]] = []


def let_go_at_forks(one: Connected) -> None:
    """From now on `one` is asked before every fork."""
    with _lock:
        _known.add(one)


def _before() -> None:
    _lock.acquire()
    _held.extend((one, one.hold_for_fork(WAIT_S)) for one in list(_known))


def _after_in_parent() -> None:
    for one, held in _held:
        if held:
            one.release_after_fork()
    _held.clear()
    _lock.release()


def _after_in_child() -> None:
    for one, _ in _held:
        one.renew_after_fork()
    _held.clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
