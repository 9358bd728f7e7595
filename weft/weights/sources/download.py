"""Downloads one file: resumed, retried, checked, and moved to its place in a single rename.

The target either does not exist or holds the right bytes. The download is written to `<target>.<random>.part` beside
it; the next run takes over the part of an interrupted one. Where locks work, only one process at a time does this.
Where they do not, two writers of one part still write the same bytes at the same offsets (nothing is appended or
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
ATTEMPTS = 5  # in a row that brought no new byte
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
    """Computes the digests of an `Expected` while bytes arrive."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.size = 0
        self._sha256 = hashlib.sha256()
        # Git hashes a header with the length before the bytes. SHA-1 only identifies contents here.
        self._sha1 = hashlib.sha1(b"blob %d\0" % expected.size, usedforsecurity=False) if expected.git_sha1 else None

    def update(self, block: bytes) -> None:
        self.size += len(block)
        self._sha256.update(block)
        if self._sha1 is not None:
            self._sha1.update(block)

    def finish(self, name: str) -> None:
        """Raise ChecksumError unless size and digests are the expected ones."""
        given = {"bytes": self.size, "sha256": self._sha256.hexdigest()}
        wanted: dict[str, Any] = {"bytes": self.expected.size, "sha256": self.expected.sha256}
        if self._sha1 is not None:
            given["git sha1"], wanted["git sha1"] = self._sha1.hexdigest(), self.expected.git_sha1
        for key, value in wanted.items():
            if value is not None and value != given[key]:
                raise ChecksumError(
                    "download",
                    f"{name} is not the expected file: {key} {given[key]}, expected {value}",
                    advice="nothing was kept: try again, or use another source",
                )


def download(
    url: str, target: Path, expected: Expected, *, name: str, token: str | None = None, progress: Progress = silent
) -> None:
    """Download `url` to `target`. Returns at once if `target` already has the expected size.

    An interrupted call leaves a part that the next call resumes. A part is resumed only if a digest is known, which
    then checks the result.
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
                advice = f"gave up after {failures} attempts; another run resumes here"
                raise DownloadError(error.where, error.what, advice=advice) from error
            time.sleep(transfer.backoff_s(failures, error.after_s))
        except transfer.UnreachableError:
            failures += 1
            if before == 0 or failures >= ATTEMPTS:
                raise  # no byte so far: rather than wait for this host, the caller tries another source
            time.sleep(transfer.backoff_s(failures))
    what = f"{name}: the connection broke {ATTEMPTS_IN_ALL} times"
    raise DownloadError("download", what, advice="another run resumes here")


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _claim(target: Path, expected: Expected) -> Path:
    """The path of our own part: the longest leftover, renamed so that one process wins, or a new name."""
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
    """One request: resume `part` where it ends, and check the whole file."""
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
        if resumed:  # the part of the earlier run may be what is damaged: download all of it again
            raise transfer.TransientError("download", f"{name} was damaged before this run; starting again") from error
        raise


def _match(response: Any, start: int, size: int, name: str) -> None:
    """Refuse a response that is not bytes `start` to the end of a file of `size` bytes.

    A server may ignore Range and send the whole file with status 200; appending that would corrupt the part.
    """
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise DownloadError("download", f"{name} was sent with Content-Encoding {encoding}, which was not requested")
    if start:
        if response.status != 206 or response.headers.get("Content-Range") != f"bytes {start}-{size - 1}/{size}":
            raise transfer.RangeError("download", f"the server did not resume {name} at byte {start}")
        return
    length = response.headers.get("Content-Length")
    if response.status != 200 or length not in (None, str(size)):
        what = f"{name} has {length} bytes on the server, expected {size}"
        raise ChecksumError("download", what, advice="nothing was kept")


def _copy(response: Any, file: BinaryIO, check: _Check, name: str, progress: Progress) -> None:
    """Write the body to `file`, never more than expected; a body that ends early is a transient failure."""
    size = check.expected.size
    while check.size < size:
        block = transfer.read(response, min(BLOCK, size - check.size), partly=True)
        if not block:
            raise transfer.TransientError("download", f"{name} ended at byte {check.size} of {size}")
        file.write(block)
        check.update(block)
        progress(name, check.size, size)


def _place(part: Path, target: Path, expected: Expected) -> None:
    try:
        os.replace(part, target)
    except FileNotFoundError:
        # Without working locks, another process may have taken the part over; its result is as good as ours.
        if not target.is_file() or _length(target) != expected.size:
            raise transfer.TransientError("download", f"another process took over {target.name}") from None
    sync_folder(target.parent)
