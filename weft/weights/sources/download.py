"""One file from one address to one place: resumed, retried, checked, and put there in a single rename.

The target either does not exist or holds the right bytes. Bytes gather in `<target>.<random>.part` beside it; a part
left by an interrupted run is taken over by the next one. Where locks work only one process at a time does this. Where
they do not, two writers of one part still write the same bytes at the same offsets (nothing is appended, nothing is
truncated), each checks the whole before its rename, and the one whose part was taken over starts again.
"""

import hashlib
import os
import secrets
import time
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import ChecksumError, DownloadError
from weft.frozen import frozen
from weft.weights.sources import transfer
from weft.weights.sources.folders import check_space, sync_folder
from weft.weights.sources.progress import Progress, silent

BLOCK = 1 << 20
ATTEMPTS = 5  # in a row without a new byte
ATTEMPTS_IN_ALL = 50
STALE_S = 86400.0  # parts older than this are removed when the next download of the file starts


@frozen
class Expected:
    """What the bytes must be: their number, and the digests that are known (SHA-256; git's SHA-1 of a blob)."""

    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def known(self) -> bool:
        return bool(self.sha256 or self.git_sha1)


class _Check:
    """Runs the digests of an `Expected` over bytes as they pass."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.size = 0
        self._sha256 = hashlib.sha256()
        # Git hashes a header with the length before the bytes; this names contents, it protects nothing.
        self._sha1 = hashlib.sha1(b"blob %d\0" % expected.size, usedforsecurity=False) if expected.git_sha1 else None

    def update(self, block: bytes) -> None:
        self.size += len(block)
        self._sha256.update(block)
        if self._sha1 is not None:
            self._sha1.update(block)

    def finish(self, name: str) -> None:
        """Raises ChecksumError unless everything fits."""
        given = {"bytes": self.size, "sha256": self._sha256.hexdigest()}
        wanted: dict[str, Any] = {"bytes": self.expected.size, "sha256": self.expected.sha256}
        if self._sha1 is not None:
            given["git sha1"], wanted["git sha1"] = self._sha1.hexdigest(), self.expected.git_sha1
        for key, value in wanted.items():
            if value is not None and value != given[key]:
                raise ChecksumError(
                    f"[download] {name} is not the file that was asked for: {key} {given[key]}, expected {value}; "
                    "nothing was kept, try again or use another source"
                )


def download(
    url: str, target: Path, expected: Expected, *, name: str, token: str | None = None, progress: Progress = silent
) -> None:
    """Fetch `url` into `target`. Returns at once where `target` already has the expected size.

    Interrupting leaves a part that the next call continues from; a part is only ever continued where a digest will
    prove the result.
    """
    if target.is_file() and _length(target) == expected.size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _claim(target, expected)
    check_space(target.parent, expected.size - _length(part), name)
    failures = 0
    for _ in range(ATTEMPTS_IN_ALL):
        before = _length(part)
        try:
            _receive(url, part, expected, name, token, progress)
            _place(part, target, expected)
            return
        except transfer.TransientError as error:
            failures = 1 if _length(part) > before else failures + 1
            if failures >= ATTEMPTS:
                raise DownloadError(f"{error}; gave up after {failures} attempts, a later run continues") from error
            time.sleep(transfer.backoff_s(failures, error.after_s))
        except transfer.UnreachableError:
            failures += 1
            if before == 0 or failures >= ATTEMPTS:
                raise  # a host that never answered gets no second chance here: another source may do
            time.sleep(transfer.backoff_s(failures))
    raise DownloadError(f"[download] {name}: the connection broke {ATTEMPTS_IN_ALL} times; a later run continues")


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _claim(target: Path, expected: Expected) -> Path:
    """A part of our own: the longest one left over, renamed (one process wins), or a new name."""
    own = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
    left = sorted(target.parent.glob(f"{target.name}.*.part"), key=_length, reverse=True)
    taken = False
    for part in left:
        try:
            if not taken and expected.known and 0 < _length(part) <= expected.size:
                os.rename(part, own)
                taken = True
            elif time.time() - part.stat().st_mtime > STALE_S:
                part.unlink()
        except FileNotFoundError:
            continue
    return own


def _receive(url: str, part: Path, expected: Expected, name: str, token: str | None, progress: Progress) -> None:
    """One request: continue `part` where it ends, to the end, and check the whole."""
    with open(part, "r+b" if part.exists() else "x+b") as file:
        check = _Check(expected)
        while block := file.read(BLOCK):
            check.update(block)
        resumed = check.size > 0
        progress(name, check.size, expected.size)
        if check.size < expected.size:
            headers = {"Range": f"bytes={check.size}-"} if check.size else {}
            try:
                with transfer.request(url, token=token, headers=headers) as response:
                    _match(response, check.size, expected.size, name)
                    _copy(response, file, check, name, progress)
            except transfer.RangeError:
                part.unlink(missing_ok=True)  # unlinked, never truncated: another process may be reading it
                raise
        file.flush()
        os.fsync(file.fileno())
    try:
        check.finish(name)
    except ChecksumError as error:
        part.unlink(missing_ok=True)
        if resumed:  # perhaps the old half was bad, not the new one: a fresh start decides
            raise transfer.TransientError(f"[download] {name} was damaged before this run; starting again") from error
        raise


def _match(response: Any, start: int, size: int, name: str) -> None:
    """Refuse a body that is not what was asked for: from byte `start` to the end of a file of `size` bytes.

    A server may ignore Range and send the whole file with status 200; appending that would corrupt the part.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise DownloadError(f"[download] {name} arrives with Content-Encoding {encoding}, which was not asked for")
    if start:
        if response.status != 206 or response.headers.get("Content-Range") != f"bytes {start}-{size - 1}/{size}":
            raise transfer.RangeError(f"[download] the server did not continue {name} at byte {start}")
        return
    length = response.headers.get("Content-Length")
    if response.status != 200 or length not in (None, str(size)):
        raise ChecksumError(f"[download] {name} has {length} bytes on the server, expected {size}; nothing was kept")


def _copy(response: Any, file: BinaryIO, check: _Check, name: str, progress: Progress) -> None:
    """The body into `file`, never more than expected; a body that ends early is a transient failure."""
    size = check.expected.size
    while check.size < size:
        block = transfer.read(response, min(BLOCK, size - check.size), partly=True)
        if not block:
            raise transfer.TransientError(f"[download] {name} ended at byte {check.size} of {size}")
        file.write(block)
        check.update(block)
        progress(name, check.size, size)


def _place(part: Path, target: Path, expected: Expected) -> None:
    try:
        os.replace(part, target)
    except FileNotFoundError:
        # Only without working locks: another process took the part over. Its result is as good, once it is there.
        if not target.is_file() or _length(target) != expected.size:
            raise transfer.TransientError(f"[download] another process took over {target.name}") from None
    sync_folder(target.parent)
