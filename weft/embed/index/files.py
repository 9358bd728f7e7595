"""The folder of an index: `index.json` says what is there, the other files are arrays.

A save writes new files beside the old ones, each with the generation in its name, and commits them by renaming the
header. A reader opens all files before it reads the first, so it sees either the old index or the new one. Nothing in
a folder is trusted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from weft.digest import of_file
from weft.errors import BusyError, FormatError, InputError, NotFoundError
from weft.frozen import frozen

HEADER, FORMAT, VERSION = "index.json", "weft-index", 1
MAX_HEADER = 1 << 20
MAX_COUNT = 1 << 32
MAX_FILES = 64  # in a header; a reader has all of them open at once
# Do not follow links, do not wait for the writer of a FIFO, do not convert line ends: where the system has the flag.
PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
STRAY_SECONDS = 3600  # age at which files of a save that never ended are removed
PIECE = 1 << 22
RESTORE = "restore the folder from a copy, or build the index again"


@frozen
class Saved:
    """A header: `about` describes the index, `files` has the name, size and SHA-256 of each file by its role."""

    folder: Path
    about: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def path(self, role: str) -> Path:
        return self.folder / str(self.files[role]["name"])

    @property
    def names(self) -> set[str]:
        return {str(entry["name"]) for entry in self.files.values()}


class Writer:
    """One save: files by role, then `commit`. BusyError where the folder no longer holds the save `expected`."""

    def __init__(self, folder: Path, expected: Saved | None = None) -> None:
        self.folder, self._expected = folder, expected
        self.generation = secrets.token_hex(8)
        self._files: dict[str, dict[str, Any]] = {}
        self.saved: Saved | None = None  # once it is in place
        check_is_free(folder)
        self._check_place()

    def _check_place(self) -> None:
        check_header_is_ours(self.folder)
        if self._expected is None or not (self.folder / HEADER).exists():
            return
        if self._named_by_header() != self._expected.names:
            raise BusyError(
                "index",
                f"{self.folder} was changed by another save since this index was opened from it or saved to it",
                advice="open it again and repeat the change, or save with overwrite=True, which discards that save",
            )

    def write(self, role: str, pieces: Iterable[bytes | memoryview]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{role}-{self.generation}.bin"
        digest, size = hashlib.sha256(), 0
        with open(path, "wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                size += len(piece)
            file.flush()
            os.fsync(file.fileno())
        self._files[role] = {"name": path.name, "bytes": size, "sha256": digest.hexdigest()}

    def array(self, role: str, array: np.ndarray) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self.write(role, (flat[at : at + PIECE].data for at in range(0, len(flat), PIECE)))

    def adopt(self, role: str, path: Path) -> None:
        """Make a file that somebody else wrote part of the save."""
        with open(path, "rb") as file:
            self._files[role] = {"name": path.name, "bytes": path.stat().st_size, "sha256": of_file(file)}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._abandon()

    def _abandon(self) -> None:
        """Remove the files of this save, unless its header is in place already."""
        named = self._named_by_header()
        for path in self.folder.glob(f"*{self.generation}*"):
            if path.name not in named:
                with suppress(OSError):  # a later save removes it
                    path.unlink()

    def commit(self, about: dict[str, Any]) -> None:
        """Replace the folder's index by this one, and remove the files of the old one."""
        header = {"format": FORMAT, "version": VERSION, **about, "files": self._files}
        staged = self.folder / f"{HEADER}.{self.generation}"
        with open(staged, "w", encoding="utf-8") as file:
            json.dump(header, file, ensure_ascii=False, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        with _alone_in(self.folder):
            self._check_place()  # again: another save may have been committed since this one began
            before = self._named_by_header()
            os.replace(staged, self.folder / HEADER)
        self.saved = Saved(self.folder, about, self._files)
        _sync_folder(self.folder)
        self._remove(before)

    def _named_by_header(self) -> set[str]:
        try:
            return read_header(self.folder).names
        except (FormatError, NotFoundError):
            return set()

    def _remove(self, before: set[str]) -> None:
        """Remove the files that the old header named, and files of unfinished saves that are older than an hour."""
        kept = {str(entry["name"]) for entry in self._files.values()}
        for path in self.folder.iterdir():
            if path.name in kept or not is_ours(path.name):
                continue
            try:
                if path.name in before or time.time() - path.stat().st_mtime > STRAY_SECONDS:
                    path.unlink()
            except OSError:
                pass  # another process has removed it


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock: of two saves that both find the folder as expected, one would be lost silently."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def is_ours(name: str) -> bool:
    """Whether a name is one that a save gives: role-generation.bin, or a header that was not renamed yet."""
    stem, dot, ending = name.rpartition(".")
    generation = ending if stem == HEADER else stem.rpartition("-")[2] if dot and ending == "bin" else ""
    return len(generation) == 16 and all(letter in "0123456789abcdef" for letter in generation)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_header(folder: Path) -> Saved:
    """The folder's header; every entry of `files` is checked to be a plain name in this folder, a size, a digest."""
    path = folder / HEADER
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_HEADER + 1)
    except (FileNotFoundError, NotADirectoryError):
        what = f"{folder} is not an index: it has no {HEADER}" if folder.is_dir() else f"{folder} does not exist"
        raise NotFoundError("index", what, advice="give the folder of an index, or build one there first") from None
    if len(raw) > MAX_HEADER:
        raise FormatError(HEADER, f"it is larger than {MAX_HEADER} bytes")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise FormatError(HEADER, "it is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FormatError(HEADER, "it is not the header of a weft index")
    if header.get("version") != VERSION:
        what = f"must be {VERSION}, the version that this weft reads"
        raise FormatError(HEADER, what, given=header.get("version"), field="version", advice="upgrade weft")
    files = header.pop("files", None)
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise FormatError(HEADER, f"must be an object of at most {MAX_FILES} files", field="files")
    for role, entry in files.items():
        _check_entry(role, entry)
    return Saved(folder, header, files)


def _check_entry(role: str, entry: Any) -> None:
    good = (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and is_ours(entry["name"])
        and "/" not in entry["name"]
        and "\0" not in entry["name"]
        and type(entry.get("bytes")) is int
        and entry["bytes"] >= 0
        and isinstance(entry.get("sha256"), str)
    )
    if not good:
        raise FormatError(HEADER, "must be a file name, a size and a SHA-256", given=entry, field=f"files.{role[:40]}")


def number(about: dict[str, Any], name: str, most: int, least: int = 0) -> int:
    """A whole number of the header from `least` to `most`."""
    value = about.get(name)
    if type(value) is not int or not least <= value <= most:
        raise FormatError(HEADER, f"must be a whole number from {least} to {most}", given=value, field=name)
    return value


class Opened:
    """Files of a save, all opened at once: they stay readable if another save removes them."""

    def __init__(self, saved: Saved, roles: Iterable[str]) -> None:
        self.saved = saved
        with ExitStack() as stack:
            self._files = {role: stack.enter_context(_opened(saved, role)) for role in roles}
            self._stack = stack.pop_all()

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._stack.close()

    def array(self, role: str, shape: tuple[int, ...], kind: Any, *, mapped: bool, verify: bool) -> np.ndarray:
        """An array of exactly this shape, read or mapped; `verify` compares its digest first."""
        wanted = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
        file = self.checked(role, wanted, verify=verify)
        if wanted == 0:
            return np.empty(shape, kind)
        if mapped:
            return np.memmap(file, kind, "r", shape=shape)
        array = np.fromfile(file, kind)
        if array.size * array.itemsize != wanted:
            raise FormatError(self.saved.path(role).name, "the file changed while it was read", advice="try again")
        return array.reshape(shape)

    def size(self, role: str) -> int:
        return os.fstat(self._files[role].fileno()).st_size

    def checked(self, role: str, size: int | None = None, *, verify: bool) -> BinaryIO:
        """The file of a role, at its beginning; its size is checked, and with `verify` its digest."""
        file, entry, name = self._files[role], self.saved.files[role], self.saved.path(role).name
        found = self.size(role)
        if found != entry["bytes"] or (size is not None and found != size):
            wanted = entry["bytes"] if size is None else size
            raise FormatError(name, f"the file has {found} bytes instead of {wanted}", advice=RESTORE)
        if verify and of_file(file) != entry["sha256"]:
            raise FormatError(name, f"the file is damaged: its SHA-256 is not the one in {HEADER}", advice=RESTORE)
        file.seek(0)
        return file


def _opened(saved: Saved, role: str) -> BinaryIO:
    """A plain file of the folder; links are refused, and FIFOs, which would wait for a writer."""
    if role not in saved.files:
        raise FormatError(HEADER, f"has no entry {role[:40]!r}", field="files")
    path = saved.path(role)
    try:
        handle = os.open(path, PLAIN)
    except FileNotFoundError:
        raise FormatError(path.name, "the file is missing", advice=RESTORE) from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FormatError(path.name, "it is a link; the files of an index must be in its folder") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FormatError(path.name, "it is not a regular file")
    return os.fdopen(handle, "rb")


def check_folder(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError("index", "must be a folder such as 'notes.index'", given=path, field="path")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError("index", f"{folder} is a file; an index is a folder", advice="give another path")
    return folder


def check_header_is_ours(folder: Path) -> None:
    """Refuse a folder whose index.json belongs to something else; damaged or newer headers may be replaced."""
    try:
        with open(folder / HEADER, "rb") as file:
            raw = file.read(MAX_HEADER)
    except (FileNotFoundError, NotADirectoryError):
        return
    except IsADirectoryError:
        raw = b""
    if f'"{FORMAT}"'.encode() not in raw:
        raise InputError(
            "index",
            f"{folder} has an {HEADER} that is not the header of a weft index, and saving would replace it",
            advice="give another folder",
        )


def check_is_free(folder: Path) -> None:
    """Refuse a folder that has other files in it; it may be missing, empty or an index."""
    held = [path.name for path in folder.iterdir()] if check_folder(folder).is_dir() else []
    check_header_is_ours(folder)
    if HEADER not in held and not all(map(is_ours, held)):  # a save that was killed leaves such files
        raise InputError(
            "index", f"{folder} has other files in it", advice="give a new or empty folder, or that of an index"
        )
