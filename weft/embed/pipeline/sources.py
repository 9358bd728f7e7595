"""What is embedded: rows of a file, each an object with a text, read one by one and always in the same order."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
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


class Source:
    """Rows of a file; `field` of each is the text. `skipped` counts files of a folder that are no text."""

    skipped = 0

    def __init__(self, path: Path, field: str = FIELD) -> None:
        self.path = path
        self.field = field

    @property
    def name(self) -> str:
        return self.path.name

    def identity(self) -> dict[str, Any]:
        """What tells this source from another, and from itself after a change."""
        found = self._stat()
        return {"path": str(self.path.resolve()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}

    def _stat(self) -> os.stat_result:
        try:
            return self.path.stat()
        except OSError as error:
            raise NotFoundError(f"[input] {self.path} cannot be read: {error.strerror}") from None

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
        if not isinstance(row, dict) or not isinstance(row.get(self.field), str):
            raise InputError(f"[embed] {where} has no text in the field {self.field!r}; name another with --field")
        return row


class JsonLines(Source):
    """An object a line; empty lines are none."""

    def _rows(self) -> Iterator[Row]:
        for number, line in self._lines():
            if line.strip():
                yield self.parse(line, f"{self.name} line {number}")

    def parse(self, line: str, where: str) -> Row:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"[embed] {where} is not JSON: {error}") from None
        return self.checked(row, where)


class Csv(Source):
    """Rows under a line of names; `.tsv` has tabs."""

    def _rows(self) -> Iterator[Row]:
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_BYTES))
        separator = "\t" if self.path.suffix.lower() == ".tsv" else ","
        try:
            with open(self.path, "rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, delimiter=separator, strict=True, restkey="")
                for row in reader:
                    where = f"{self.name} line {reader.line_num}"
                    if "" in row or None in row.values():
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
                rows = (row for batch in batches for row in batch.to_pylist())
                yield from islice(rows, max(0, start - first), None)
            first += count

    def open(self) -> Any:
        """The file as pyarrow has it."""
        arrow = parquet()
        self._stat()
        try:
            return arrow.ParquetFile(self.path, memory_map=True)
        except (ValueError, OSError) as error:
            raise InputError(f"[input] {self.name} is not a Parquet file: {error}") from None


def parquet() -> Any:
    """pyarrow's module of that name."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise NotFoundError("[embed] Parquet files need pyarrow; pip install weft[parquet]") from None
    return pyarrow.parquet


KINDS: dict[str, type[Source]] = {
    ".jsonl": JsonLines,
    ".ndjson": JsonLines,
    ".csv": Csv,
    ".tsv": Csv,
    ".parquet": Parquet,
}


def open_source(
    path: str | os.PathLike[str],
    *,
    field: str | None = None,
    embedder: BaseEmbedder | None = None,
    chunking: Chunking | None = None,
) -> Source:
    """The source at `path`: by its ending JSON lines, CSV or Parquet, else lines of text; a folder of documents.

    A folder's documents are cut by the tokens of `embedder`. A `field` means that a file of unknown ending has JSON
    lines.
    """
    place = Path(path)
    if place.is_dir():
        from weft.embed.pipeline.folder import Folder

        assert embedder is not None, "documents are cut by tokens"
        return Folder(place, embedder, chunking)
    kind = KINDS.get(place.suffix.lower(), Source if field is None else JsonLines)
    return kind(place, field or FIELD)
