"""A run that ends in an index: a folder that `weft search` answers from, with the name of its model inside.

The name is a convenience: what the model must be, the index's fingerprint and its canaries say. An index is in memory
while it is written, unlike the other targets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.folder import Folder
from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Spool
from weft.embed.pipeline.targets import About, Target, paired, plain
from weft.embed.remote import Server, allowed
from weft.errors import FingerprintError, FormatError, InputError, NotFoundError, UnsupportedError, WeftError
from weft.weights.files import replacing

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.index import Index
    from weft.embed.service import Embedder

MODEL_FILE = "embedder.json"
REMOTE_OPTIONS: dict[str, type] = {"dimensions": int, "prompts": dict, "similarity": str}
MODEL_OPTIONS: dict[str, type] = {
    "pooling": str,
    "normalise": bool,
    "dimensions": int,
    "matryoshka": bool,
    "prompts": dict,
    "compute": str,
}
MAX_MODEL_BYTES = 1 << 16


class Searchable(Target):
    """Rows of the source as rows of an index: the text, and the other fields as metadata."""

    documents = True

    def __init__(self, path: Path, about: About, embedder: BaseEmbedder) -> None:
        super().__init__(path, about)
        self._embedder = embedder
        self._seen: dict[str | int, int] = {}

    def check(self) -> None:
        from weft.embed.index.files import check_is_free

        kept = self.about.output_dtype
        if kept not in ("f32", "f16"):
            raise InputError(f"[embed] an index keeps vectors of f32 or f16, and codes of its own: got {kept}")
        if self.about.fingerprint != str(self._embedder.fingerprint):
            raise InputError(
                "[embed] an index is searched with the model alone, and an adapter makes other vectors; "
                "leave it out, or write .sqlite, .parquet or another file"
            )
        check_is_free(self.path)

    def see(self, number: int, row: Row) -> None:
        from weft.embed.index.records import check_id

        try:
            id = check_id(row_id(number, row))
        except InputError as error:
            raise InputError(f"[embed] row {number + 1}: {str(error).removeprefix('[index] ')}") from None
        before = self._seen.setdefault(id, number)
        if before != number:
            raise InputError(
                f"[embed] rows {before + 1} and {number + 1} have the same id, {id!r} (the field 'id', or the number "
                "of the row where it has none); make them differ, or leave that field out"
            )

    def write(self, source: Source, spool: Spool) -> None:
        from weft.embed.index import Index

        field = self.about.field
        index = Index.from_embedder(self._embedder, storage=self.about.output_dtype)
        name = chunk_id if isinstance(source, Folder) else row_id
        first = 0
        for rows, records in paired(source, spool):
            index.add(
                [name(number, row) for number, row in enumerate(rows, first)],
                records["vector"].astype("f4"),
                texts=[row[field] for row in rows],
                metadata=[plain({name: value for name, value in row.items() if name != field}) for row in rows],
                fingerprint=self.about.fingerprint,
            )
            first += len(rows)
        index.save(self.path, told=lambda done, total: self.told(done))
        self._remember(source)

    def _remember(self, source: Source) -> None:
        """Write down which embedder the index is for, where it can be made again, and how documents were cut."""
        from weft.embed.remote import RemoteEmbedder
        from weft.embed.service import Embedder

        embedder, said = self._embedder, dict[str, Any]()
        if isinstance(embedder, RemoteEmbedder):
            said = {"model": embedder.model, "base_url": embedder.base_url, "dimensions": embedder.asked_dimensions}
            said |= {"prompts": dict(embedder.prompts), "similarity": embedder.similarity_name}
        elif isinstance(embedder, Embedder):
            info = {**embedder.info, "dimensions": embedder.dimension}
            said = {"model": lasting_name(embedder), **{name: info[name] for name in MODEL_OPTIONS}}
        else:
            (self.path / MODEL_FILE).unlink(missing_ok=True)
            return
        if isinstance(source, Folder):
            said |= {"chunk_tokens": source.chunking.tokens, "overlap": source.chunking.overlap}
        with replacing(self.path / MODEL_FILE) as out:
            out.write(json.dumps(said, indent=1).encode() + b"\n")


def lasting_name(embedder: Embedder) -> str:
    """The name of a model that leads to it from any folder.

    Where it was loaded from decides whether that is a path: a folder may be called as a model of the catalogue is.
    """
    located = embedder._located
    from_path = located.source in ("folder", "file")
    return str(Path(located.spec).expanduser().resolve()) if from_path else located.spec


def chunk_id(number: int, row: Row) -> str:
    """The file of a chunk, and which part of it."""
    return f"{row['path']}#{row['chunk']}"


def row_id(number: int, row: Row) -> str | int:
    """The row's own id, or its number."""
    own = row.get("id")
    return own if isinstance(own, (str, int)) and not isinstance(own, bool) else number


def remembered_model(path: Path) -> tuple[str, dict[str, Any]]:
    """What the index in `path` says of its embedder: a model's name, and options of `Embedder`; with `base_url` among
    them, of `RemoteEmbedder`."""
    try:
        with open(path / MODEL_FILE, "rb") as file:
            found = json.loads(file.read(MAX_MODEL_BYTES))
        kinds = {**REMOTE_OPTIONS, "base_url": str} if "base_url" in found else MODEL_OPTIONS
        model, options = found.pop("model"), {name: found[name] for name in kinds if found.get(name) is not None}
        if not all(isinstance(value, kinds[name]) for name, value in options.items()):
            raise ValueError("an option of another type")
    except OSError:
        raise NotFoundError(f"[index] {path.name} does not say which model it is for; name it with --model") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(
            f"[{MODEL_FILE}] is not what `weft index build` writes; name the model with --model"
        ) from None
    return str(model), options


def open_searchable(
    path: Path,
    model: str | None = None,
    *,
    threads: int | None = None,
    server: Server | None = None,
    verify: bool = False,
) -> Index:
    """The index in `path` with its embedder, made with the options that the index was made with.

    A `model` is where it is now, `server` the one that may be asked for it. A name from the folder itself is looked for
    on this machine only: what a folder says must not make anybody connect anywhere. Searches are exact, whatever graph
    lies there: to load it for a few questions takes longer than to read the rows.
    """
    from weft.embed.index import Index

    embedder = _embedder_of(path, model, threads, server)
    return Index.open(path, embedder=embedder, mapped=True, verify=verify, threads=threads)


def _embedder_of(path: Path, model: str | None, threads: int | None, server: Server | None) -> BaseEmbedder:
    from weft.embed import Embedder

    try:
        remembered, options = remembered_model(path)
    except WeftError:
        if model is None:
            raise
        if server is not None:
            return server.ask_for(model)
        return Embedder(model, threads=threads)
    url = options.pop("base_url", None)
    if url is not None:
        return allowed(server, url, model or remembered).ask_for(model or remembered, **options)
    if server is not None:
        raise InputError(f"[index] {path.name} is for {remembered}, a model on this machine; leave --base-url out")
    if model is None:
        return Embedder(remembered, threads=threads, offline=True, **options)
    try:
        return Embedder(model, threads=threads, **options)
    except (InputError, UnsupportedError) as error:  # another model need not take the options of the index's own
        raise FingerprintError(
            f"[index] {model} is not the model of {path.name}, {remembered}, or cannot be loaded as that was: {error}"
        ) from None
