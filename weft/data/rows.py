"""A data set in memory: its rows, the text that each is compared by, and files with a manifest."""

from __future__ import annotations

import json
import os
import re
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft import __version__
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.rows import Data, Row, listed, read_rows
from weft.weights.files import replacing

FORMAT = "weft-data 1"
TEXTS = ("text", "prompt", "input", "question", "query", "anchor", "sentence")  # the first that a row has is its text
WORD = re.compile(r"\w+")
BATCH = 1000  # rows between two moves of a bar


@frozen(eq=False)
class DataSet:
    """Rows, the text of each, and what is written down of where they are from."""

    rows: Sequence[Row]
    texts: Sequence[str]
    source: Mapping[str, Any]


def read_set(data: Data, fields: Sequence[str] = ()) -> DataSet:
    """All rows of a file or of Python; InputError where there is none, or one has no text."""
    rows = list(read_rows(data))
    if not rows:
        raise InputError("data", "there is no row", field="data")
    source: dict[str, Any] = {"rows": len(rows)}
    if isinstance(data, (str, os.PathLike)):
        source = {"file": Path(data).name, "sha256": file_digest(Path(data)), **source}
    else:
        hashed = sha256()
        for row in rows:
            hashed.update(line_of(row))
        source = {"sha256": hashed.hexdigest(), **source}
    return DataSet(rows, [text_of(row, fields) for row in rows], source)


def text_of(row: Row, fields: Sequence[str] = ()) -> str:
    """What a row is compared by: these fields, or the first known one, or what the user says in its messages."""
    if fields:
        missing = [name for name in fields if not isinstance(row.fields.get(name), (str, int, float))]
        if missing:
            raise row.fault(f"has no text or number in the field {missing[0]!r} (it has {row.named_fields})")
        return "\n".join(str(row.fields[name]) for name in fields)
    for name in TEXTS:
        if isinstance(row.fields.get(name), str):
            return str(row.fields[name])
    if "messages" in row.fields:
        said = [one for one in listed(row, "messages") if isinstance(one, Mapping) and one.get("role") == "user"]
        return "\n".join(str(one.get("content", "")) for one in said)
    advice = "name its fields with --field"
    raise row.fault(f"has none of the fields {', '.join(TEXTS)}, messages (it has {row.named_fields})", advice=advice)


def folded(text: str) -> str:
    """A text without what makes no difference to a reader: case, width and kinds of space."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> list[str]:
    return WORD.findall(folded(text))


def line_of(row: Row) -> bytes:
    return json_line(dict(row.fields))


def json_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def write_rows(path: Path, rows: Iterable[Row]) -> dict[str, Any]:
    """Write rows as lines of JSON; what the manifest says of the file."""
    return write_lines(path, map(line_of, rows))


def write_lines(path: Path, lines: Iterable[bytes]) -> dict[str, Any]:
    hashed, count = sha256(), 0
    with replacing(path) as out:
        for line in lines:
            out.write(line)
            hashed.update(line)
            count += 1
    return {"file": path.name, "rows": count, "sha256": hashed.hexdigest()}


def write_manifest(
    path: Path, tool: str, sources: Mapping[str, Any], options: Mapping[str, Any], outputs: Mapping[str, Any]
) -> None:
    """What was done: with these options, from these sources to these files."""
    made = {
        "format": FORMAT,
        "weft": __version__,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "tool": tool,
        "options": dict(options),
        "sources": dict(sources),
        "outputs": dict(outputs),
    }
    with replacing(path) as out:
        out.write(json.dumps(made, indent=2, ensure_ascii=False).encode() + b"\n")


def manifest_of(path: Path) -> Path:
    """Where the manifest of a file is."""
    return path.with_name(f"{path.stem}.manifest.json")


def check_output(path: Path, data: Data) -> Path:
    """InputError where the file that is to be written is the one that is read, or a folder."""
    same = isinstance(data, (str, os.PathLike)) and os.path.realpath(data) == os.path.realpath(path)
    if same or path.is_dir():
        what = "is the file that is read" if same else "is a folder"
        raise InputError("data", f"{path} {what}", field="output", advice="name another file")
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        raise InputError("data", "the name must end in .jsonl", field="output", given=path.name)
    if not path.parent.is_dir():
        raise InputError("data", f"there is no folder {path.parent}", field="output", advice="make it first")
    return path


def file_digest(path: Path) -> str:
    from weft import digest

    with open(path, "rb") as file:
        return digest.of_file(file)


@contextmanager
def counted(total: int, progress: bool | None, what: str) -> Iterator[Iterator[int]]:
    """The numbers of all rows, with a bar where there are many."""
    from weft.progress import shown

    batches = [(first, min(first + BATCH, total)) for first in range(0, total, BATCH)]
    yield (number for first, last in shown(batches, total, progress, what) for number in range(first, last))
