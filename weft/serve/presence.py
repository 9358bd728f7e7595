"""The servers that run on this machine: each keeps a locked file with its address. An unlocked file is stale."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from weft import flags
from weft.errors import UnsupportedError
from weft.frozen import frozen


@frozen
class Presence:
    """A running server."""

    pid: int
    host: str
    port: int
    started: float
    socket: str = ""  # the path of a Unix socket, in place of host and port
    certificate: str = ""  # the path of the certificate, if the server speaks TLS

    @property
    def where(self) -> str:
        """The argument of `weft stop`: the path of its socket, or its port."""
        return self.socket or str(self.port)

    @property
    def url(self) -> str:
        """The URL at which this machine reaches it."""
        if self.socket:
            return f"unix:{self.socket}"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://[{host}]:{self.port}" if ":" in host else f"{scheme}://{host}:{self.port}"


def folder() -> Path:
    return flags.cache_folder() / "serve"


def _lock(descriptor: int) -> bool:
    """Lock a file for as long as it is open; False if another process holds the lock."""
    try:
        import fcntl
    except ImportError:
        raise UnsupportedError("serve", "this system has no POSIX file locks") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def announced(host: str, port: int, socket: str = "", certificate: str = "") -> Iterator[None]:
    """Let `weft ps` and `weft stop` find this process."""
    folder().mkdir(parents=True, exist_ok=True, mode=0o700)
    name = f"socket-{sha256(socket.encode()).hexdigest()[:16]}" if socket else str(port)
    path = folder() / f"{name}.json"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if _lock(descriptor):
            said = json.dumps(asdict(Presence(os.getpid(), host, port, time.time(), socket, certificate)))
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, said.encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def running() -> list[Presence]:
    """The running servers, by port and path; stale files are deleted."""
    found = []
    for path in sorted(folder().glob("*.json")) if folder().is_dir() else []:
        if (presence := _read(path)) is not None:
            found.append(presence)
    return sorted(found, key=lambda one: (one.port, one.socket))


def alive(presence: Presence) -> bool:
    """Whether that server still runs."""
    return any(one == presence for one in running())


def _read(path: Path) -> Presence | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        if _lock(descriptor):
            path.unlink(missing_ok=True)
            return None
        said = json.loads(os.pread(descriptor, 4096, 0))
        paths = str(said.get("socket", "")), str(said.get("certificate", ""))
        return Presence(int(said["pid"]), str(said["host"]), int(said["port"]), float(said["started"]), *paths)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    finally:
        os.close(descriptor)
