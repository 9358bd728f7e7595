"""Which source reads a file and which target writes one, chosen by the ending of its name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from weft.embed.pipeline.sources import FIELD, Csv, JsonLines, Parquet, Source
from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.pipeline.folder import Chunking
    from weft.embed.pipeline.targets import About, Target
    from weft.embed.pipeline.walking import Selection

SOURCES: dict[str, type[Source]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".csv": Csv,
    ".tsv": Csv,
    ".parquet": Parquet,
}
DOCUMENTS = (".md", ".markdown", ".rst")  # one document, not a text per line
REFUSED = {  # endings of files that are not lines of text, and what to do with them
    ".json": "write one object per line and name it .jsonl, or give --field if it has JSON lines",
    **dict.fromkeys((".pdf", ".docx", ".odt", ".html", ".htm"), "extract its text first"),
    **dict.fromkeys((".gz", ".zip", ".zst", ".bz2", ".xz"), "unpack it first"),
    ".xlsx": "save it as CSV first",
}
ENDINGS = {  # of outputs
    **{f".{name}": name for name in ("npy", "jsonl", "parquet", "sqlite", "index")},
    ".txt": "text",
    ".db": "sqlite",
}


def open_source(
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    embedder: BaseEmbedder | None = None,
    chunking: Chunking | None = None,
    selection: Selection | None = None,
) -> Source:
    """The source at `path`: by its ending JSON lines, CSV, Parquet, a document, or else lines of text; a folder is read
    as documents.

    Documents are cut into chunks with the tokenizer of `embedder`; `selection` says which files of a folder are read.
    With `field`, a file of unknown ending is read as JSON lines.
    """
    place = Path(path)
    ending = place.suffix.lower()
    if place.is_dir() or (field is None and ending in DOCUMENTS):
        from weft.embed.pipeline.folder import Folder

        if embedder is None:
            raise InputError("embed", f"{place.name or place} is cut into chunks of tokens, which needs an embedder")
        return Folder(place, embedder, chunking, selection)
    if field is None and ending in REFUSED:
        raise InputError("embed", f"{place.name} is not a file of texts", advice=REFUSED[ending])
    kind = SOURCES.get(ending, Source if field is None else JsonLines)
    return kind(place, field or FIELD)


def open_target(path: Path, form: str | None, about: About, embedder: BaseEmbedder) -> Target:
    """The target that writes `path` in `form`, or in the form of its ending; an index is built for `embedder`."""
    if path.parent != Path() and not path.parent.is_dir():
        raise NotFoundError("embed", f"{path.parent} is not a folder", advice="create it, or write elsewhere")
    chosen = form or ENDINGS.get(path.suffix.lower())
    if chosen == "index":
        from weft.embed.pipeline.indexing import Searchable

        return Searchable(path, about, embedder)
    if chosen == "parquet":
        from weft.embed.pipeline.columns import Columns

        return Columns(path, about)
    from weft.embed.pipeline.targets import FORMS

    if chosen not in FORMS:
        raise InputError("embed", f"the name of the output must end in {', '.join(sorted(ENDINGS))}", given=path.name)
    return FORMS[chosen](path, about)
