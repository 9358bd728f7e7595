"""The program cache: prepared programs in weft's cache folder, so that a model is traced, rewritten and planned once.

A file's name is a hash of everything that decides the program: the source code that makes it, the config, the tensors
and the options. The first line has MAGIC and a hash of the rest. A file that cannot be read or written, or does not
match its hash, is ignored: the cache only saves time. Files are written under another name and renamed, so that no
process reads half of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path

from weft import digest, flags
from weft.errors import FormatError
from weft.runtime.prepared import Prepared

MAGIC = "weft-program 1"
MAX_FILES = 64
MAX_BYTES = 64 << 20  # of all files together
MAX_FILE_BYTES = 16 << 20
# What makes programs, and the version. Anything else in the package may change without making one anew.
SOURCES = ("__init__.py", "backends", "dtype.py", "graph", "models", "nn", "ops", "runtime")


def key_of(parts: Iterable[str]) -> str:
    """The name of the program that these decide; `parts` are whatever a program depends on beside weft itself."""
    hashed = blake2b(digest_size=16)
    digest.add(hashed, MAGIC, _sources(), *parts)
    return hashed.hexdigest()


def find(key: str) -> Prepared | None:
    """The program of this key, or None where there is none that can be used."""
    if not flags.get("WEFT_PROGRAM_CACHE"):
        return None
    path = folder() / key
    try:
        with open(path, "rb") as file:
            head = file.readline(256)
            rest = file.read(MAX_FILE_BYTES + 1)
        if head != _head(key, rest):
            return None
        about, text = rest.decode("utf-8").split("\n")
        prepared = Prepared.from_lines(about, text)
    except (OSError, ValueError, FormatError):
        return None
    with suppress(OSError):
        os.utime(path)  # used now: the oldest go first
    return prepared


def keep(key: str, prepared: Prepared) -> None:
    """Write a program to the cache, and delete the oldest files if there are too many."""
    if not flags.get("WEFT_PROGRAM_CACHE"):
        return
    rest = "\n".join(prepared.lines()).encode("utf-8")
    if len(rest) > MAX_FILE_BYTES:
        return
    place = folder()
    temporary = place / f".{key}.{os.urandom(4).hex()}.part"
    with suppress(OSError):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                file.write(_head(key, rest) + rest)
            os.replace(temporary, place / key)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _trim(place)


def folder() -> Path:
    """Where the programs are."""
    return flags.cache_folder() / "programs"


def _head(key: str, rest: bytes) -> bytes:
    return f"{MAGIC} {key} {blake2b(rest, digest_size=16).hexdigest()}\n".encode("ascii")


def _trim(place: Path) -> None:
    """Delete the oldest files beyond the limits; unfinished files that writers left behind get old and go too."""
    found = []
    for entry in os.scandir(place):
        with suppress(OSError):  # gone since it was listed
            stat = entry.stat(follow_symlinks=False)
            found.append((stat.st_mtime_ns, stat.st_size, entry.path))
    total = 0
    for count, (_, size, path) in enumerate(sorted(found, reverse=True), 1):
        total += size
        if count > MAX_FILES or total > MAX_BYTES:
            with suppress(OSError):
                os.unlink(path)


@lru_cache(maxsize=1)
def _sources() -> str:
    """A hash of the code that makes programs."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    hashed = blake2b(digest_size=16)
    for path in sorted(path for name in SOURCES for path in _python_files(os.path.join(root, name))):
        try:
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError:
            data = os.urandom(16)  # unknown code: nothing is found
        hashed.update(f"{os.path.relpath(path, root)} {len(data)} ".encode())
        hashed.update(data)
    return hashed.hexdigest()


def _python_files(place: str) -> Iterable[str]:
    if os.path.isfile(place):
        yield place
    for base, _, names in os.walk(place):
        yield from (os.path.join(base, name) for name in names if name.endswith(".py"))
