"""Pages on disk: a directory of files, one a page, shared by processes and found again after a restart.

A checkpoint of recurrent state is a file beside that of the page it comes after.

A file is written under another name and then renamed, so it is there whole or not at all; it carries the tokens it is
for and a checksum over everything, and whatever does not fit is deleted and counts as absent. The oldest by last use go
first when the directory outgrows its limit.
"""

from __future__ import annotations

import contextlib
import os
import queue
import struct
import threading
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from weft.errors import InputError

_MAGIC = b"weftpag1"  # the last character is the version
_HEAD = struct.Struct("<8sIQ")  # magic, bytes of text, bytes of the page
_CHECK = 16
DEFAULT_LIMIT = 4 << 30
_WAITING = 64  # pages to be written; more are not kept
_WAITING_SLOTS = 8  # of these files, checkpoints: each is as large as many pages
_KINDS = (".page", ".slot")  # as the names of files end


class PagedState(Protocol):
    """What the store asks of a decoder."""

    @property
    def page_bytes(self) -> int: ...

    @property
    def slot_bytes(self) -> int:
        """The size of a slot; 0 for models without recurrent state."""

    @property
    def state_fingerprint(self) -> str:
        """Everything but the tokens that decides the bits of a page."""

    def read_page(self, page: int) -> bytes: ...

    def write_page(self, page: int, data: bytes) -> None: ...

    def read_slot(self, slot: int) -> bytes: ...

    def write_slot(self, slot: int, data: bytes) -> None: ...


class PrefixStore:
    """The pages of one decoder's state in `directory`, at most `limit` bytes of them. Writing is done by a thread."""

    def __init__(self, directory: str | Path, decoder: PagedState, *, limit: int = DEFAULT_LIMIT) -> None:
        if limit < 1:
            raise InputError("prefix store", "must be at least 1 byte", field="prefix_bytes", given=limit)
        self.decoder = decoder
        self._limit = limit
        self._home = Path(directory) / decoder.state_fingerprint
        try:
            self._home.mkdir(parents=True, exist_ok=True)
            self.secret = _secret(Path(directory))
        except OSError as error:
            what = f"{directory} cannot be used: {error.strerror}"
            raise InputError("prefix store", what, advice="give a directory that can be written to") from error
        self._total = self._sweep()
        self._queue: queue.Queue[tuple[Path, bytes, bytes] | None] = queue.Queue(_WAITING)
        self._slots_waiting = threading.BoundedSemaphore(_WAITING_SLOTS)
        self._thread: threading.Thread | None = None
        self.dropped = 0  # pages that came faster than they could be written
        self.damaged = 0  # files that were not what they should have been

    def read(self, key: bytes, text: bytes, *, kind: str = "page") -> bytes | None:
        """The last page of `text`, or the recurrent state after it (`kind` "slot"); None when it is not here."""
        path = self._path(key, kind)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        page = _unpack(data, text, self.decoder.page_bytes if kind == "page" else self.decoder.slot_bytes)
        if isinstance(page, str):
            if page != "other text":  # a hash collision: the file is not damaged
                self.damaged += 1
                with contextlib.suppress(OSError):
                    path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return page

    def write(self, key: bytes, text: bytes, read: Callable[[int], bytes], index: int, *, kind: str = "page") -> None:
        """Copy what `read` gives for the page or slot `index` and write it soon; nothing when it is there already."""
        path = self._path(key, kind)
        if path.exists():
            return
        if self._queue.full() or (kind == "slot" and not self._slots_waiting.acquire(blocking=False)):
            self.dropped += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="weft-prefix-store", daemon=True)
            self._thread.start()
        self._queue.put((path, text, read(index)))

    def close(self) -> None:
        """Return when everything that was handed over is on disk."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _path(self, key: bytes, kind: str = "page") -> Path:
        return self._home / f"{key.hex()}.{kind}"

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            path, text, content = item
            with contextlib.suppress(OSError):  # a full disk costs hits, nothing else
                self._write_one(path, text, content)
            if path.suffix == ".slot":
                self._slots_waiting.release()

    def _write_one(self, path: Path, text: bytes, page: bytes) -> None:
        body = _HEAD.pack(_MAGIC, len(text), len(page)) + text + page
        unfinished = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}{path.suffix}.part")
        try:
            with unfinished.open("wb") as file:
                file.write(body)
                file.write(blake2b(body, digest_size=_CHECK).digest())
            unfinished.replace(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._total += len(body) + _CHECK
        if self._total > self._limit:
            self._total = self._sweep()

    def _sweep(self) -> int:
        """Delete what was cut off, and the longest unused while there is too much; the bytes that are left.

        Other processes write here too, so the directory is read anew.
        """
        pages: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._home):
            with contextlib.suppress(OSError):  # another process has deleted it
                facts = entry.stat()
                if entry.name.endswith(".part") and not _alive(entry.name):
                    os.unlink(entry.path)
                elif entry.name.endswith(_KINDS):
                    pages.append((facts.st_mtime, facts.st_size, entry.path))
        total = sum(size for _, size, _ in pages)
        if total > self._limit:
            for _, size, path in sorted(pages):
                with contextlib.suppress(OSError):
                    os.unlink(path)
                total -= size
                if total <= self._limit * 9 // 10:
                    break
        return total


def _unpack(data: bytes, text: bytes, page_bytes: int) -> bytes | str:
    """The page in a file's bytes, or what is wrong with them."""
    if len(data) < _HEAD.size + _CHECK:
        return "too short"
    magic, text_bytes, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or size != page_bytes or len(data) != _HEAD.size + text_bytes + size + _CHECK:
        return "another format or size"
    if blake2b(memoryview(data)[:-_CHECK], digest_size=_CHECK).digest() != data[-_CHECK:]:
        return "checksum"
    start = _HEAD.size + text_bytes
    return data[start : start + size] if data[_HEAD.size : start] == text else "other text"


def _alive(name: str) -> bool:
    """Whether the process that writes the file `name` (hash.pid-thread.part) still runs."""
    try:
        os.kill(int(name.split(".")[1].split("-")[0]), 0)
    except (ValueError, IndexError, ProcessLookupError):
        return False
    except OSError:
        return True
    return True


def _secret(directory: Path) -> bytes:
    """The key of the directory's hashes; the first process to use the directory makes it."""
    path = directory / "secret"
    if not path.exists():
        unfinished = directory / f"secret.{os.getpid()}-{threading.get_ident()}.part"
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(os.urandom(32))
        with contextlib.suppress(FileExistsError):
            os.link(unfinished, path)
        unfinished.unlink()
    secret = path.read_bytes()
    if len(secret) != 32:
        raise InputError(
            "prefix store", f"{path} is damaged: {len(secret)} bytes, not 32", advice="delete the directory"
        )
    return secret
