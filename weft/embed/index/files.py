"""The folder of an index: `index.json` says what is there, the other files are arrays.

A save writes new files beside the old ones, each with the generation in its name, and commits them by renaming the
header. A reader opens all files before it reads one, so that it sees the old index or the new one, whatever happens in
between. Nothing in a folder is trusted.
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
MAX_FILES = 64  # that a header names; a reader has them open at once
# Where the system has them: no links, no waiting for the writer of a FIFO, bytes as they are.
PLAIN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
STRAY_SECONDS = 3600  # files of a save that never ended, by their age
PIECE = 1 << 22


@frozen
class Saved:
    """A header: `about` is the index's own, `files` says the size and the SHA-256 of each file by its role."""

    folder: Path
    about: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)

    def path(self, role: str) -> Path:
        return self.folder / str(self.files[role]["name"])

    @property
    def names(self) -> set[str]:
        return {str(entry["name"]) for entry in self.files.values()}


class Writer:
    """One save: files by role, then `commit`. A folder that no longer holds what is `expected` is a BusyError."""

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
                f"[index] {self.folder} was saved by somebody else since this index was opened from it, or saved to "
                "it; open it again and repeat the change, or save with overwrite=True, which loses what they saved"
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
        """A file that something else wrote, made part of the save."""
        with open(path, "rb") as file:
            self._files[role] = {"name": path.name, "bytes": path.stat().st_size, "sha256": of_file(file)}

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            self._abandon()

    def _abandon(self) -> None:
        """Remove what this save wrote, unless its header is in place already."""
        named = self._named_by_header()
        for path in self.folder.glob(f"*{self.generation}*"):
            if path.name not in named:
                with suppress(OSError):  # what stays is removed by a later save
                    path.unlink()

    def commit(self, about: dict[str, Any]) -> None:
        """From here on the folder holds this index; the files of the one before are removed."""
        header = {"format": FORMAT, "version": VERSION, **about, "files": self._files}
        staged = self.folder / f"{HEADER}.{self.generation}"
        with open(staged, "w", encoding="utf-8") as file:
            json.dump(header, file, ensure_ascii=False, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        with _alone_in(self.folder):
            self._check_place()  # again: another save may have ended since this one began
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
        """The files that the old header named, and what saves that never ended left behind an hour ago or more."""
        kept = {str(entry["name"]) for entry in self._files.values()}
        for path in self.folder.iterdir():
            if path.name in kept or not is_ours(path.name):
                continue
            try:
                if path.name in before or time.time() - path.stat().st_mtime > STRAY_SECONDS:
                    path.unlink()
            except OSError:
                pass  # somebody else was faster


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """While no other save is here: or two would find the folder as they expect it, and one would be lost unsaid."""
    try:
        import fcntl
    except ImportError:  # Windows has none
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
    """Whether a save gave a file this name: role, generation, ending; or a header that was not renamed."""
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
    """The header, with every entry of `files` looked at: a plain name in this folder, a size, a digest."""
    path = folder / HEADER
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_HEADER + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"[index] no index in {folder}: there is no {HEADER}") from None
    if len(raw) > MAX_HEADER:
        raise FormatError(f"[{HEADER}] is larger than {MAX_HEADER} bytes")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise FormatError(f"[{HEADER}] is not JSON") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FormatError(f"[{HEADER}] is not the header of a weft index")
    if header.get("version") != VERSION:
        raise FormatError(f"[{HEADER}] version {header.get('version')!r}; this weft reads {VERSION}")
    files = header.pop("files", None)
    if not isinstance(files, dict) or len(files) > MAX_FILES:
        raise FormatError(f"[{HEADER}] names no files, or more than {MAX_FILES}")
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
        raise FormatError(f"[{HEADER}] the entry of {role[:40]!r} is not a name, a size and a digest")


def number(about: dict[str, Any], name: str, most: int) -> int:
    """A whole number of the header from 0 to `most`."""
    value = about.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise FormatError(f"[{HEADER}] {name} is {str(value)[:40]}; a number up to {most} is wanted")
    return value


class Opened:
    """Files of a save, all opened at once: what another save removes after that is still read to its end."""

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
        """An array of exactly this shape, read or mapped. With `verify` its digest is compared first."""
        wanted = int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize
        file = self.checked(role, wanted, verify=verify)
        if wanted == 0:
            return np.empty(shape, kind)
        if mapped:
            return np.memmap(file, kind, "r", shape=shape)
        array = np.fromfile(file, kind)
        if array.size * array.itemsize != wanted:
            raise FormatError(f"[{self.saved.path(role).name}] changed while it was read")
        return array.reshape(shape)

    def size(self, role: str) -> int:
        return os.fstat(self._files[role].fileno()).st_size

    def checked(self, role: str, size: int | None = None, *, verify: bool) -> BinaryIO:
        """A file, at its beginning, that has the size it should have, and with `verify` the digest."""
        file, entry, name = self._files[role], self.saved.files[role], self.saved.path(role).name
        found = self.size(role)
        if found != entry["bytes"] or (size is not None and found != size):
            raise FormatError(f"[{name}] has {found} bytes; {entry['bytes'] if size is None else size} are wanted")
        if verify and of_file(file) != entry["sha256"]:
            raise FormatError(f"[{name}] is damaged: its SHA-256 is not the one in {HEADER}")
        file.seek(0)
        return file


def _opened(saved: Saved, role: str) -> BinaryIO:
    """A plain file of the folder: no link, and no FIFO, at which opening would wait for a writer."""
    if role not in saved.files:
        raise FormatError(f"[{HEADER}] names no file for {role[:40]}")
    path = saved.path(role)
    try:
        handle = os.open(path, PLAIN)
    except FileNotFoundError:
        raise FormatError(f"[{path.name}] is missing") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FormatError(f"[{path.name}] is a link; files of an index lie in its folder") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FormatError(f"[{path.name}] is not a file")
    return os.fdopen(handle, "rb")


def check_folder(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise InputError(f"[index] the folder is {path!r:.40}; name one, as 'notes.index'")
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"[index] {folder} is a file; an index is a folder")
    return folder


def check_header_is_ours(folder: Path) -> None:
    """A file with the name of a header is one, though it be damaged or a newer weft's: no other is replaced."""
    try:
        with open(folder / HEADER, "rb") as file:
            raw = file.read(MAX_HEADER)
    except (FileNotFoundError, NotADirectoryError):
        return
    except IsADirectoryError:
        raw = b""
    if f'"{FORMAT}"'.encode() not in raw:
        raise InputError(
            f"[index] {folder} holds an {HEADER} that is not an index's, and would be replaced; name another folder"
        )


def check_is_free(folder: Path) -> None:
    """A folder that is not there, is empty or holds an index: one with other things in it is somebody's."""
    held = [path.name for path in folder.iterdir()] if check_folder(folder).is_dir() else []
    check_header_is_ours(folder)
    if HEADER not in held and not all(map(is_ours, held)):  # a save that was killed leaves such files
        raise InputError(f"[index] {folder} is a folder with other things in it; name one that is new, or an index")
