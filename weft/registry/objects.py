"""The files of versions, in folders named after what they hold.

A tree is the set of files of one version: `trees/<digest>/`, whose digest is over the names, sizes and SHA-256 of all
its files. A tree is assembled in `staging/` and renamed, so it is there whole or not at all. Files that trees have in
common are one file on disk (a hard link), where the file system can.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path, PurePosixPath
from uuid import uuid4

from weft import digest
from weft.errors import ChecksumError, InputError, NotFoundError
from weft.frozen import frozen

TREES, STAGING = "trees", "staging"
LOCK = ".lock"
LEFT_OUT = ("training.safetensors",)  # the state of a run, for --resume: as large as the model, and no part of it
MAX_FILES = 10_000
_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")  # a model in several files
# sha256 of each file, and its size, by its name in the tree
Files = Mapping[str, tuple[str, int]]
Tell = Callable[[int], None]


@frozen
class Staged:
    """Files that are copied and hashed, and not yet in place."""

    folder: Path
    files: Files
    main: str  # the file that is loaded, "" for the folder itself

    @property
    def digest(self) -> str:
        return tree_digest(self.files)

    @property
    def size(self) -> int:
        return sum(size for _, size in self.files.values())


def tree_digest(files: Files) -> str:
    hashed = sha256()
    digest.add(hashed, "weft tree 1")
    for name in sorted(files):
        content, size = files[name]
        digest.add(hashed, name, str(size), content)
    return hashed.hexdigest()


def sources_of(source: Path) -> tuple[dict[str, Path], str]:
    """The files to take of a folder or file, by their names in the tree, and the one that is loaded."""
    if source.is_dir():
        found = {path.relative_to(source).as_posix(): path for path in sorted(_walk(source))}
        if not found:
            raise InputError("registry", f"{source} has no files")
        return found, ""
    if not source.is_file():
        raise NotFoundError("registry", f"no such file or folder: {source}")
    part = _PART.fullmatch(source.name)
    if part is None:
        return {source.name: source}, source.name
    names = [f"{part[1]}-{i:05}-of-{part[3]}.gguf" for i in range(1, int(part[3]) + 1)]
    missing = [name for name in names if not source.with_name(name).is_file()]
    if missing:
        raise NotFoundError("registry", f"{source.name} is one of {part[3]} files, and {missing[0]} is missing")
    return {name: source.with_name(name) for name in names}, names[0]


def _walk(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, also behind links to files; not hidden ones, and not links to folders."""
    count = 0
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(root, name)
            if not name.startswith(".") and name not in LEFT_OUT and path.is_file():
                count += 1
                if count > MAX_FILES:
                    raise InputError("registry", f"{folder} has more than {MAX_FILES} files", advice="add one model")
                yield path


class Objects:
    """The trees below a registry's folder."""

    def __init__(self, root: Path) -> None:
        self._trees = root / TREES
        self._staging = root / STAGING

    def tree(self, name: str) -> Path:
        return self._trees / name

    def begin(self) -> tuple[Path, Callable[[], None]]:
        """A new folder to stage files in, and what ends the lock on it. Call it inside a transaction, since `garbage`
        must not see the folder before it is locked."""
        folder = self._staging / uuid4().hex
        folder.mkdir(parents=True, mode=0o700)
        return folder, _locked(folder / LOCK)

    @contextmanager
    def staged(
        self, place: tuple[Path, Callable[[], None]], source: Path, *, link: bool, tell: Tell
    ) -> Iterator[Staged]:
        """Copies of the files of `source`, hashed; removed at the end if they were not put in place."""
        folder, release = place
        try:
            sources, main = sources_of(source)
            content = folder / "files"
            content.mkdir()
            files = {}
            for name, path in sources.items():
                target = content.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                files[name] = _taken(path, target, link, tell)
            for one in {content, *(p for p in content.rglob("*") if p.is_dir())}:
                sync(one)
            yield Staged(content, files, main)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            release()

    def share(self, staged: Staged, known: Mapping[str, Path]) -> None:
        """Replace copies by links to files of other trees with the same content; `known` has them by SHA-256."""
        for name, (content, size) in staged.files.items():
            other, own = known.get(content), staged.folder / name
            with suppress(OSError):
                if other is None or other.stat().st_size != size or _hashed(other, _silent)[0] != content:
                    continue
                linked = own.with_name(f"{own.name}.linked")
                os.link(other, linked)
                os.replace(linked, own)

    def is_damaged(self, staged: Staged) -> bool:
        """Whether this tree is in place with other bytes than it had. Reads all of it."""
        target = self.tree(staged.digest)
        return target.exists() and not _is_whole(target, staged.files)

    def place(self, staged: Staged, *, damaged: bool) -> None:
        """Put a tree in place, unless it is there and not `damaged`. Call it inside a transaction."""
        target = self.tree(staged.digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if not damaged:
                return
            os.rename(target, self._staging / f"damaged-{uuid4().hex}")
        os.rename(staged.folder, target)
        sync(target.parent)

    def verify(self, name: str, files: Files, tell: Tell | None = None) -> Path:
        """The tree's folder; ChecksumError unless every byte is what was added."""
        folder = self.tree(name)
        for path, (content, size) in files.items():
            file = folder / path
            found = _hashed(file, tell or _silent) if file.is_file() else ("no file", 0)
            if found != (content, size):
                what = f"{file} is not what was added: SHA-256 {found[0][:12]}, {content[:12]} was recorded"
                advice = "add the version's files again under a new version; then mark this one archived"
                raise ChecksumError("registry", what, advice=advice)
        return folder

    def garbage(self, kept: set[str]) -> list[Path]:
        """Trees that are not in `kept`, and what killed processes left in the staging folder."""
        trees = [path for path in _entries(self._trees) if path.name not in kept]
        return trees + [path for path in _entries(self._staging) if not _in_use(path)]

    def remove(self, path: Path) -> None:
        """Remove garbage: a tree is first renamed, so that a kill does not leave half of it in its place."""
        if path.parent == self._trees:
            self._staging.mkdir(parents=True, exist_ok=True, mode=0o700)
            aside = self._staging / f"removed-{uuid4().hex}"
            os.rename(path, aside)
            path = aside
        shutil.rmtree(path, ignore_errors=True)


def _is_whole(folder: Path, files: Files) -> bool:
    try:
        return all(_hashed(folder / name, _silent) == expected for name, expected in files.items())
    except OSError:
        return False


def size_of(path: Path) -> int:
    """Bytes that removing `path` frees: files with other links stay."""
    total = 0
    for file in path.rglob("*"):
        with suppress(OSError):
            found = file.lstat()
            total += found.st_size if stat.S_ISREG(found.st_mode) and found.st_nlink == 1 else 0
    return total


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []


def _taken(source: Path, target: Path, link: bool, tell: Tell) -> tuple[str, int]:
    """Copy or link a file; its SHA-256 and size. A copy is read-only and on the disk."""
    if link:
        with suppress(OSError):
            os.link(os.path.realpath(source), target)
            return _hashed(target, tell)
    hashed, size = sha256(), 0
    with open(source, "rb") as reading, open(target, "xb") as writing:
        while block := reading.read(digest.BLOCK):
            hashed.update(block)
            writing.write(block)
            size += len(block)
            tell(len(block))
        writing.flush()
        os.fsync(writing.fileno())
    target.chmod(0o444)
    return hashed.hexdigest(), size


def _hashed(path: Path, tell: Tell) -> tuple[str, int]:
    hashed, size = sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(digest.BLOCK):
            hashed.update(block)
            size += len(block)
            tell(len(block))
    return hashed.hexdigest(), size


def _silent(count: int) -> None: ...


def sync(folder: Path) -> None:
    """Make renames in `folder` survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _locked(path: Path) -> Callable[[], None]:
    """Hold a lock that ends with this process, however it ends; returns what releases it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX)
    return lambda: os.close(handle)


def _in_use(folder: Path) -> bool:
    """Whether a living process works in this part of the staging folder."""
    try:
        import fcntl
    except ImportError:  # Windows: an open file cannot be removed there
        return (folder / LOCK).exists()
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # removed, damaged, or its maker was killed before it had the lock
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(handle)
