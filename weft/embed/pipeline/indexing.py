"""The index target: a folder that `weft search` reads, with the name of its model inside.

The name is a convenience: the index's fingerprint and canaries decide whether a model fits. Unlike other targets, an
index is in memory while it is written.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.earlier import Earlier, built_from
from weft.embed.pipeline.folder import Folder
from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Known, Spool
from weft.embed.pipeline.targets import About, Target, paired
from weft.embed.pipeline.writers import plain
from weft.embed.remote import Server, allowed
from weft.errors import FingerprintError, FormatError, InputError, NotFoundError, UnsupportedError, WeftError
from weft.weights.files import replacing

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.index import Index

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
    """Rows of an index: the text of each source row, and its other fields as metadata."""

    documents = True

    def __init__(self, path: Path, about: About, embedder: BaseEmbedder) -> None:
        super().__init__(path, about)
        self._embedder = embedder
        self._seen: dict[str | int, int] = {}
        self._earlier: Earlier | None = None
        self._built: dict[str, Any] = {}

    def check(self) -> None:
        from weft.embed.index.files import check_is_free

        kept = self.about.output_dtype
        if kept not in ("f32", "f16"):
            raise InputError("embed", "must be f32 or f16 for an index", field="output_dtype", given=kept)
        if self.about.fingerprint != str(self._embedder.fingerprint):
            raise InputError(
                "embed",
                "an index is searched without an adapter, which makes other vectors",
                advice="leave the adapter out, or write .sqlite, .parquet or another file",
            )
        check_is_free(self.path)

    def known(self, source: Source, how: Mapping[str, Any], *, replace: bool) -> Known | None:
        self._built = built_from(source, how)
        self._earlier = Earlier.found(self.path)
        if self._earlier is None:
            return None
        if not replace:
            now = _described(self._embedder).get("model")
            self._earlier.check(source, self.about, now, _model_before(self.path))
        return self._earlier.known(self.about, how)

    def see(self, number: int, row: Row) -> None:
        from weft.embed.index.records import check_id

        try:
            id = check_id(row_id(number, row))
        except InputError as error:
            what = error.what if error.field is None else f"has a field {error.field!r} that {error.what}"
            raise error.but(where="embed", field="row", index=number + 1, what=what) from None
        before = self._seen.setdefault(id, number)
        if before != number:
            raise InputError(
                "embed",
                f"has the same id as row {before + 1} (its field 'id', or else its number)",
                field="row",
                index=number + 1,
                given=id,
                advice="give every row its own id, or remove that field",
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
        self._save(index)
        self._remember(source)

    def _save(self, index: Index) -> None:
        """Save the index, unless the one in the folder already has the same rows; a graph that is there is kept."""
        from weft.embed.index.graph import has_usearch

        earlier, graph = self._earlier, None
        if earlier is not None:
            self.removed = earlier.gone(index)
            if earlier.equals(index):
                return
            graph = True if earlier.has_graph and has_usearch() else None
        index._built = self._built
        index.save(self.path, graph=graph, on_progress=lambda done, total: self.progress(done))

    def _remember(self, source: Source) -> None:
        """Store which embedder the index is for, if it can be loaded again, and how documents were cut."""
        cut = source.chunking if isinstance(source, Folder) else None
        more = {} if cut is None else {"chunk_tokens": cut.tokens, "overlap": cut.overlap}
        remember(self.path, self._embedder, **more)


def remember(path: Path, embedder: BaseEmbedder, **more: Any) -> None:
    """Store which embedder the index at `path` is for, if it can be loaded again."""
    said = _described(embedder)
    if not said:
        (path / MODEL_FILE).unlink(missing_ok=True)
        return
    with replacing(path / MODEL_FILE) as out:
        out.write(json.dumps({**said, **more}, indent=1).encode() + b"\n")


def _described(embedder: BaseEmbedder) -> dict[str, Any]:
    """The name and the options with which an embedder can be loaded again; empty for one of another program."""
    from weft.embed.remote import RemoteEmbedder
    from weft.embed.service import Embedder

    if isinstance(embedder, RemoteEmbedder):
        said = {"model": embedder.model, "base_url": embedder.base_url, "dimensions": embedder.asked_dimensions}
        return {**said, "prompts": dict(embedder.prompts), "similarity": embedder.similarity_name}
    if isinstance(embedder, Embedder):
        info = {**embedder.info, "dimensions": embedder.dimension}
        return {"model": embedder.lasting_name, **{name: info[name] for name in MODEL_OPTIONS}}
    return {}


def chunk_id(number: int, row: Row) -> str:
    """The path of a chunk's file, and the number of the chunk."""
    return f"{row['path']}#{row['chunk']}"


def row_id(number: int, row: Row) -> str | int:
    """The row's own id, or its number."""
    own = row.get("id")
    return own if isinstance(own, (str, int)) and not isinstance(own, bool) else number


def remembered_model(path: Path) -> tuple[str, dict[str, Any]]:
    """The model's name and options stored in the index at `path`: options of `Embedder`, or with `base_url` among them,
    of `RemoteEmbedder`."""
    try:
        with open(path / MODEL_FILE, "rb") as file:
            found = json.loads(file.read(MAX_MODEL_BYTES))
        kinds = {**REMOTE_OPTIONS, "base_url": str} if "base_url" in found else MODEL_OPTIONS
        model, options = found.pop("model"), {name: found[name] for name in kinds if found.get(name) is not None}
        if not all(isinstance(value, kinds[name]) for name, value in options.items()):
            raise ValueError("an option has the wrong type")
    except OSError:
        raise NotFoundError(
            "index", f"{path.name} does not name the model it was built with", advice="name it with --model"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(
            MODEL_FILE, "is damaged or was not written by `weft index build`", advice="name the model with --model"
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
    """The index at `path` with its embedder, loaded with the options that the index was built with.

    `model` is where the model is now; only `server` may be connected to. A model that only the folder names is looked
    for on this machine: the content of a folder must not cause network access. Searches are exact, even if the index
    has a graph: loading it for a few queries takes longer than reading the rows.
    """
    from weft.embed.index import Index

    embedder = _embedder_of(path, model, threads, server)
    _check_model(path, embedder)
    try:
        return Index.open(path, embedder=embedder, mapped=True, verify=verify, threads=threads)
    except FingerprintError as error:
        named = _described(embedder).get("model")
        if named is None or named != _model_before(path):
            raise
        raise error.but(advice=f"load {named} as it was, or {_again(path, embedder)}") from None


def _check_model(path: Path, embedder: BaseEmbedder) -> None:
    """Refuse a model that did not build the index, with the names of both."""
    from weft.embed.index.canaries import fingerprint_of, scheme_of
    from weft.embed.index.files import read_header

    own, now = read_header(path).about.get("fingerprint"), fingerprint_of(embedder)
    if not own or not now or own == now or not isinstance(own, str) or scheme_of(own) != scheme_of(now):
        return  # Index.open says what else is wrong
    said, before = _described(embedder), _model_before(path)
    named = said.get("model", "the embedder")
    if named == before:
        changed = f"the model {named} of {said['base_url']}" if "base_url" in said else f"the files of {named}"
        raise FingerprintError(
            "index",
            f"{changed} changed since {path.name} was built",
            advice=f"restore the model, or {_again(path, embedder)}",
        )
    raise FingerprintError(
        "index",
        f"{named} is another model than the one that built the index {path.name}{f', {before}' if before else ''}",
        advice="leave --model out, or build the index again with it",
    )


def _again(path: Path, embedder: BaseEmbedder) -> str:
    """How to build the index at `path` again: the command, if the index says what it was built from."""
    from weft.embed.index.files import read_header

    built, said = read_header(path).about.get("built"), _described(embedder)
    if not isinstance(built, dict) or "source" not in built or "base_url" in said:
        return "build the index again"
    places = (shlex.quote(str(part)) for part in (built["source"], path, said["model"]))
    return "build it again: weft index build {} --output {} --model {} --replace".format(*places)


def _model_before(path: Path) -> str | None:
    """The name of the model that built the index at `path`, if the index has it."""
    try:
        return remembered_model(path)[0]
    except WeftError:
        return None


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
        raise InputError(
            "index", f"{path.name} was built with {remembered}, a local model", advice="leave --base-url out"
        )
    if model is None:
        return Embedder(remembered, threads=threads, offline=True, **options)
    try:
        return Embedder(model, threads=threads, **options)
    except (InputError, UnsupportedError) as error:  # another model may not support the options of the index's own
        why = error.what if error.field is None else f"{error.field} {error.what}"
        raise FingerprintError(
            "index",
            f"{model} is not the model of {path.name}, {remembered}: it cannot be loaded with the same options ({why})",
            advice="give the model that built the index",
        ) from error
