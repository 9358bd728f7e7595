"""What is embedded: rows of a file, each an object with a text, read one by one and always in the same order."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.pipeline.folder import Chunking

Row = dict[str, Any]
FIELD = "text"
FIELD_BYTES = 64 << 20  # of one CSV field; Python's own limit is 128 kB, which documents are over
PARQUET_ROWS = 1024  # read at once
SHOWN_FIELDS = 10  # in a message


class Source:
    """Rows of a file; `field` of each is the text. `total` says how many there are, once somebody has counted.

    `left_out` names the files of a folder that are no documents, and says why.
    """

    total: int | None = None
    own_rows = False  # made here and not read, so that nothing is wrong with them
    began_as: dict[str, Any] | None = None  # its identity when a run began

    def __init__(self, path: Path, field: str = FIELD) -> None:
        self.path = path
        self.field = field
        self.left_out: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.path.name

    def leave_out(self, *outputs: Path) -> None:
        """Say what a run writes, so that it does not read it."""

    def identity(self) -> dict[str, Any]:
        """What tells this source from another, and from itself after a change."""
        found = self._stat()
        return {"path": str(self.path.resolve()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}

    def _stat(self) -> os.stat_result:
        """Of a file that is read more than once: a pipe is empty the second time, or keeps its reader waiting."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise NotFoundError(f"[input] {self.path} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise InputError(
                f"[input] {self.path} is a pipe or a device, which can be read once only; pipe it into standard input "
                "(`-i -`), or save it as a file"
            )
        return found

    def rows(self, start: int = 0) -> Iterator[Row]:
        """All rows but the first `start`."""
        return islice(self._rows(), start, None)

    def _rows(self) -> Iterator[Row]:
        """A line is a row, empty ones included."""
        return ({self.field: line} for _, line in self._lines())

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Lines and their numbers from 1, without what ends them; "\\n" and "\\r\\n" end one, and nothing else."""
        try:
            with open(self.path, "rb") as file:
                for number, data in enumerate(file, 1):
                    yield number, self._decoded(data.removesuffix(b"\n").removesuffix(b"\r"), number)
        except OSError as error:
            raise NotFoundError(f"[input] {self.path} cannot be read: {error.strerror}") from None

    def _decoded(self, data: bytes, number: int) -> str:
        try:
            return data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                f"[input] {self.name} line {number} is not UTF-8 at byte {error.start}; convert it"
            ) from None

    def checked(self, row: Row, where: str) -> Row:
        if not isinstance(row, dict):
            raise InputError(f"[embed] {where} is {type(row).__name__}; an object with a text is wanted")
        if not isinstance(row.get(self.field), str):
            held = f"; it is {type(row[self.field]).__name__}" if self.field in row else _fields_of(row)
            raise InputError(
                f"[embed] {where} has no text in the field {self.field!r}{held}: name another with --field"
            )
        return row


def _fields_of(row: Row) -> str:
    shown = ", ".join(repr(name) for name in list(row)[:SHOWN_FIELDS]) + (" …" if len(row) > SHOWN_FIELDS else "")
    return f"; there are {shown}" if row else "; there are no fields"


class JsonLines(Source):
    """An object a line; empty lines are none."""

    def _rows(self) -> Iterator[Row]:
        for number, line in self._lines():
            if line.strip():
                yield self.parse(line, f"{self.name} line {number}")

    def parse(self, line: str, where: str) -> Row:
        try:
            row = json.loads(line)
            if "\\u" in line:  # the only way to half a character in a file that is UTF-8
                json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise InputError(f"[embed] {where} has half of a character alone, {half}; repair it") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"[embed] {where} is not JSON: {error}; JSON lines are wanted, an object each") from None
        return self.checked(row, where)


class Csv(Source):
    """Rows under a line of names; `.tsv` has tabs."""

    def _rows(self) -> Iterator[Row]:
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_BYTES))
        separator = "\t" if self.path.suffix.lower() == ".tsv" else ","
        try:
            with open(self.path, "rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, delimiter=separator, strict=True)  # None names what is over
                _check_names(self.name, reader.fieldnames or ())
                for row in reader:
                    where = f"{self.name} line {reader.line_num}"
                    if None in row or None in row.values():
                        raise InputError(f"[embed] {where} has not as many fields as the first line has names")
                    yield self.checked(row, where)
        except OSError as error:
            raise NotFoundError(f"[input] {self.path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError(f"[input] {self.name} is not UTF-8; convert it") from None
        except csv.Error as error:
            raise InputError(f"[embed] {self.name} is not CSV at line {reader.line_num}: {error}") from None


class Parquet(Source):
    """Rows of a Parquet file (the extra `parquet`)."""

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, row in enumerate(self._from(start), start + 1):
            yield self.checked(row, f"{self.name} row {number}")

    def _from(self, start: int) -> Iterator[Row]:
        """Row groups that are not wanted are not read."""
        file = self.open()
        first = 0
        for group in range(file.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            if first + count > start:
                batches = file.iter_batches(batch_size=PARQUET_ROWS, row_groups=[group])
                rows = (row for batch in batches for row in self._objects(batch))
                yield from islice(rows, max(0, start - first), None)
            first += count

    def _objects(self, batch: Any) -> Iterator[Row]:
        names = batch.schema.names
        columns = [self._values(name, column) for name, column in zip(names, batch.columns)]
        return (dict(zip(names, values)) for values in zip(*columns))

    def _values(self, name: str, column: Any) -> list[Any]:
        """A column as Python has it; times that are finer or further than Python's are text."""
        import pyarrow

        nested = pyarrow.types.is_nested(column.type)
        try:
            if not nested and "[ns" in str(column.type):  # as text whether or not pandas, which has them, is there
                return list(column.cast("string").to_pylist())
            try:
                return list(column.to_pylist())
            except OverflowError:
                return list(column.cast("string").to_pylist())
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                f"[embed] {self.name}: the column {name!r} of {column.type} cannot be read: {error}; leave it out"
            ) from None

    def open(self) -> Any:
        """The file as pyarrow has it."""
        arrow = parquet()
        self._stat()
        try:
            file = arrow.ParquetFile(self.path, memory_map=True)
        except (ValueError, OSError) as error:
            raise InputError(f"[input] {self.name} is not a Parquet file: {error}") from None
        _check_names(self.name, file.schema_arrow.names)
        return file


def _check_names(file: str, names: Sequence[str]) -> None:
    """Of two columns with one name, one would be lost."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(f"[embed] {file} has two columns called {twice[0]!r}; rename one")


def parquet() -> Any:
    """pyarrow's module of that name."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise NotFoundError("[embed] Parquet files need pyarrow; pip install weft-engine[parquet]") from None
    return pyarrow.parquet


KINDS: dict[str, type[Source]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".csv": Csv,
    ".tsv": Csv,
    ".parquet": Parquet,
}
DOCUMENTS = (".md", ".markdown", ".rst")  # one text, and not a text a line
REFUSED = {  # endings of what would be read as lines that nobody wrote
    ".json": "write an object a line and call it .jsonl, or name their field with --field",
    **dict.fromkeys((".pdf", ".docx", ".odt", ".html", ".htm"), "take its text out first"),
    **dict.fromkeys((".gz", ".zip", ".zst", ".bz2", ".xz"), "unpack it first"),
    ".xlsx": "save it as CSV first",
}


def open_source(
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    embedder: BaseEmbedder | None = None,
    chunking: Chunking | None = None,
) -> Source:
    """The source at `path`: by its ending JSON lines, CSV or Parquet, a document, else lines of text; a folder of
    documents.

    Documents are cut by the tokens of `embedder`. A `field` means that a file of unknown ending has JSON lines.
    """
    place = Path(path)
    ending = place.suffix.lower()
    if place.is_dir() or (field is None and ending in DOCUMENTS):
        from weft.embed.pipeline.folder import Folder

        if embedder is None:
            raise InputError(f"[embed] {place.name or place} is cut by tokens, for which an embedder is needed")
        return Folder(place, embedder, chunking)
    if field is None and ending in REFUSED:
        raise InputError(f"[embed] {place.name} is not a file of texts; {REFUSED[ending]}")
    kind = KINDS.get(ending, Source if field is None else JsonLines)
    return kind(place, field or FIELD)
