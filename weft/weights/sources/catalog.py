"""The models weft knows by name: what they are, where they come from, and the bytes they must be.

The list is catalog.json beside this file. An entry pins its files once (name, size, SHA-256); every source of the entry
must deliver exactly those bytes, so it does not matter which one did. A digest is listed if it was computed from a
package that carries the file, or if independent projects publish it for the same commit; otherwise it is left out. A
file without one is fetched at the pinned commit; its digest is recorded on this machine at the first download
(`remember`), and every later download must deliver the same bytes.

Sources are tried in the order they are listed:

    hub:org/name@commit                     the files by name, at a commit of a hub repository
    pypi:package==version!folder/           the files under a folder of a wheel
    pypi:package==version!folder/file.gguf  one file of a wheel
    pypi:one==1.0,two==1.0!*.bin            one file, joined from the matching member of each wheel in turn
    pypi:part{1..22}==1.0!*.bin             the same, for packages that are numbered
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from weft.digest import of_file
from weft.errors import FormatError, NotFoundError, WeftError
from weft.frozen import frozen
from weft.weights.sources.folders import inside, weft_cache

KINDS = ("embed", "generate")
POOLINGS = ("mean", "cls", "last")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
# How the names of embedding models begin that exist only as services: of OpenAI, Google, Mistral, Voyage, Cohere
SERVED = ("text-embedding-", "gemini-embedding-", "mistral-embed", "voyage-", "embed-english-", "embed-multilingual-")

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB = re.compile(r"hub:([\w.-]+/[\w.-]+)@([0-9a-f]{40})")
_RUN = re.compile(r"\{(\d{1,3})\.\.(\d{1,3})\}")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+_-]+")


@frozen
class File:
    """One file; `bytes` and `sha256` are None where nobody has published them."""

    name: str
    bytes: int | None = None
    sha256: str | None = None


@frozen
class HubSource:
    repo: str
    revision: str

    def __str__(self) -> str:
        return f"hub:{self.repo}@{self.revision}"


@frozen
class PackageSource:
    """Wheels on the package index; `member` is a folder (ends in /), a file, or a pattern with one `*`."""

    written: str
    member: str

    @cached_property
    def packages(self) -> tuple[str, ...]:
        """Every package as name==version, in order."""
        names: list[str] = []
        for item in self.written.split(","):
            run = _RUN.search(item)
            numbers = range(int(run[1]), int(run[2]) + 1) if run else ()
            names += [_RUN.sub(str(number), item) for number in numbers] if run else [item]
        return tuple(names)

    def __str__(self) -> str:
        return f"pypi:{self.written}!{self.member}"


@frozen
class Entry:
    """One model of the catalogue. Fields that a kind of model does not have are None.

    A `gated` model can be downloaded only with the token of somebody who accepted the licence on its page.
    """

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
    matryoshka: bool = False  # trained so that vectors can be shortened
    ending: str | None = None  # the token that every text ends with, even if the files do not say so
    chat_template: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)  # the makers' settings, where the files carry none
    gated: bool = False
    note: str = ""

    @property
    def bytes(self) -> int:
        """Bytes of all files, as far as their sizes are known."""
        return sum(file.bytes or 0 for file in self.known())

    @property
    def pinned(self) -> bool:
        """Whether the catalogue itself says what every byte must be."""
        return all(file.bytes and file.sha256 for file in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Twelve hex digits that change whenever a pinned file does; names the folder in weft's cache."""
        lines = sorted(f"{file.name} {file.bytes} {file.sha256}\n" for file in self.files)
        if not self.pinned:
            lines += [f"{source}\n" for source in self.sources]  # the commit pins the files that have no digest
        import hashlib

        return hashlib.sha256("".join(lines).encode()).hexdigest()[:12]

    def home(self) -> Path:
        """The entry's folder in weft's cache, for files that did not come from the hub."""
        return weft_cache() / "models" / self.name / self.fingerprint

    def path(self, folder: Path) -> Path:
        """What to load once the files are in `folder`: the first GGUF file, else the folder itself."""
        ggufs = [file.name for file in self.files if file.name.endswith(".gguf")]
        return folder / ggufs[0] if ggufs else folder

    def complete(self, folder: Path) -> bool:
        """Whether every file is in `folder` and has the right size (digests were checked at the download)."""
        sizes = [(_size(folder / file.name), file.bytes) for file in self.known()]
        return all(size >= 0 and wanted in (None, size) for size, wanted in sizes)

    def known(self) -> tuple[File, ...]:
        """The files, with sizes and digests of the catalogue or, where it has none, of the first download."""
        if self.pinned:
            return self.files
        first = _read_record(self._record())
        return tuple(first.get(file.name, file) if file.sha256 is None else file for file in self.files)

    def remember(self, folder: Path) -> None:
        """Record the digests of files without a published one, unless that was done before."""
        path, first = self._record(), _read_record(self._record())
        open_files = [file.name for file in self.files if file.sha256 is None and file.name not in first]
        if not open_files:
            return
        rows = [vars(file) for file in first.values()]
        rows += [{"name": name, "bytes": _size(folder / name), "sha256": _sha256(folder / name)} for name in open_files]
        weft_cache(create=True)
        path.parent.mkdir(exist_ok=True)
        own = path.with_name(f"{path.name}.{os.getpid()}.new")
        own.write_text(json.dumps({"files": rows}, indent=1) + "\n", encoding="utf-8")
        os.replace(own, path)

    def _record(self) -> Path:
        return weft_cache() / "first-use" / f"{self.name}-{self.fingerprint}.json"


def _read_record(path: Path) -> dict[str, File]:
    """What `remember` wrote; empty if it cannot be read."""
    try:
        rows = json.loads(path.read_bytes())["files"]
        return {row["name"]: _parse_file(row, path.name) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, WeftError):
        return {}


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return of_file(file)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _require(ok: bool, where: str, what: str) -> None:
    if not ok:
        raise FormatError("catalog.json", f"{where}: {what}")


def parse_source(text: str) -> HubSource | PackageSource:
    """A source as it is written in the data file; see the top of this file."""
    if hub := _HUB.fullmatch(text):
        return HubSource(*hub.groups())
    written, mark, member = text.removeprefix("pypi:").partition("!")
    _require(text.startswith("pypi:") and bool(mark and member), text, "neither hub:org/name@commit nor pypi:…!member")
    source = PackageSource(written, member)
    fine = bool(source.packages) and all(_REQUIREMENT.fullmatch(name) for name in source.packages)
    _require(fine, text, "packages are written name==version")
    return source


def _parse_file(row: dict[str, Any], where: str) -> File:
    name, size, digest = row["name"], row.get("bytes"), row.get("sha256")
    inside(Path(), name)
    _require(size is None or (isinstance(size, int) and size > 0), where, f"{name} has a malformed size")
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
    wrong = set(entry.sampling) - set(SAMPLING)
    _require(not wrong, where, f"unknown keys {sorted(wrong)} in sampling")
    _require(bool(entry.files and entry.sources), where, "at least one file and one source")
    for source in entry.sources:
        if isinstance(source, PackageSource):
            _require(entry.pinned, where, "files from packages need their size and sha256")
            if source.member.endswith("/"):
                _require(len(source.packages) == 1, where, "a folder must come from one package")
            else:
                _require(len(entry.files) == 1, where, "a source of one member needs exactly one file")
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
    """The error for an unknown name, with the nearest known names."""
    import difflib

    if fold(name).startswith(SERVED):
        return NotFoundError(
            "models",
            f"no such model: {name!r} exists only as a service, so there are no files to download",
            advice=f"call the service with weft.RemoteEmbedder({name!r}, base_url=…, api_key=…)",
        )
    table = {fold(alias): entry.name for entry in entries() for alias in (entry.name, *entry.aliases)}
    near = list(dict.fromkeys(table[key] for key in difflib.get_close_matches(fold(name), table, n=3, cutoff=0.5)))
    hint = f"did you mean {' or '.join(near)}?" if near else f"known names: {', '.join(sorted(set(table.values())))}"
    return NotFoundError(
        "models", f"no such model: {name!r}", advice=f"{hint} (a folder, a file and org/name work too)"
    )
