"""A run that ends in an index: a folder that `weft search` answers from, with the name of its model inside.

The name is a convenience: what the model must be, the index's fingerprint and its canaries say. An index is in memory
while it is written, unlike the other targets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Spool
from weft.errors import FormatError, InputError, NotFoundError
from weft.weights.files import replacing

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.index import Index
    from weft.embed.pipeline.targets import About

ROWS = 4096  # added at once
MODEL_FILE = "embedder.json"
MODEL_OPTIONS = ("pooling", "normalise", "dimensions", "compute")
MAX_MODEL_BYTES = 1 << 16


def write_index(path: Path, source: Source, spool: Spool, about: About, embedder: BaseEmbedder) -> None:
    """Rows of the source as rows of an index: the text, and the other fields as metadata."""
    from weft.embed.index import Index

    if about.output_dtype not in ("f32", "f16"):
        raise InputError(
            f"[embed] an index keeps vectors of f32 or f16, and codes of its own: got {about.output_dtype}"
        )
    index = Index.from_embedder(embedder, storage=about.output_dtype)  # type: ignore[arg-type]
    rows = enumerate(source.rows())
    for records in spool.batches(ROWS):
        part = list(islice(rows, len(records)))
        ids = [row_id(number, row) for number, row in part]
        index.add(
            ids,
            records["vector"].astype("f4"),
            texts=[row[about.field] for _, row in part],
            metadata=[dict(_others(row, about.field)) for _, row in part],
        )
    index.save(path)


def row_id(number: int, row: Row) -> str | int:
    """A chunk's file and number, the row's own id, or its number."""
    if "path" in row and "chunk" in row:
        return f"{row['path']}#{row['chunk']}"
    own = row.get("id")
    return own if isinstance(own, (str, int)) and not isinstance(own, bool) else number


def _others(row: Row, field: str) -> Iterator[tuple[str, Any]]:
    plain = (str, int, float, bool, list, dict, type(None))
    return ((name, v if isinstance(v, plain) else str(v)) for name, v in row.items() if name != field)


def remember_model(path: Path, model: str, options: dict[str, Any]) -> None:
    """Write down which embedder the index of the folder `path` is for."""
    kept = {name: options[name] for name in MODEL_OPTIONS if options.get(name) is not None}
    with replacing(path / MODEL_FILE) as out:
        out.write(json.dumps({"model": model, **kept}, indent=1).encode() + b"\n")


def remembered_model(path: Path) -> tuple[str, dict[str, Any]]:
    """What `remember_model` wrote: a model's name, and options of `Embedder`."""
    try:
        with open(path / MODEL_FILE, "rb") as file:
            found = json.loads(file.read(MAX_MODEL_BYTES))
        model, options = found.pop("model"), {name: found[name] for name in MODEL_OPTIONS if name in found}
    except OSError:
        raise NotFoundError(f"[index] {path.name} does not say which model it is for; name it with --model") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FormatError(
            f"[{MODEL_FILE}] is not what `weft index build` writes; name the model with --model"
        ) from None
    return str(model), options


def open_searchable(path: Path, model: str | None = None, *, threads: int | None = None) -> Index:
    """The index in `path` with its embedder. A name from the folder itself is looked for on this machine only: what a
    folder says must not make anybody connect anywhere."""
    from weft.embed import Embedder
    from weft.embed.index import Index

    options: dict[str, Any] = {}
    if model is None:
        model, options = remembered_model(path)
        options["offline"] = True
    return Index.open(path, embedder=Embedder(model, threads=threads, **options), mapped=True)
