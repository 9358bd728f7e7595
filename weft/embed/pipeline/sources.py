"""Sources: rows of a file, each an object with a text, read one by one and always in the same order."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from weft.errors import InputError, NotFoundError

Row = dict[str, Any]
FIELD = "text"
FIELD_BYTES = 64 << 20  # of one CSV field; Python's own limit of 128 kB is too small for documents
PARQUET_ROWS = 1024  # read at once
SHOWN_FIELDS = 10  # in a message


class Source:
    """Rows of a file, here a text per line; `field` of each row is the text. `total` is their number once counted.

    `left_out` maps the files of a folder that are not read as documents to the reason.
    """

    total: int | None = None
    own_rows = False  # made here rather than read, so they need no checks
    began_as: dict[str, Any] | None = None  # the identity at the start of a run

    def __init__(self, path: Path, field: str = FIELD) -> None:
        self.path = path
        self.field = field
        self.left_out: dict[str, str] = {}

    @property
    def name(self) -> str:
        return self.path.name

    def leave_out(self, *outputs: Path) -> None:
        """Exclude what a run writes from what it reads."""

    def identity(self) -> dict[str, Any]:
        """What identifies this source and changes when its content does."""
        found = self._stat()
        return {"path": str(self.path.resolve()), "bytes": found.st_size, "modified_ns": found.st_mtime_ns}

    def _stat(self) -> os.stat_result:
        """The status of the path, which must be a regular file or a folder: a pipe cannot be read more than once."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise NotFoundError("input", f"cannot read {self.path}: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
            raise InputError(
                "input",
                f"{self.path} is a pipe or a device, which can be read only once",
                advice="pipe it into standard input (`-i -`), or save it as a file",
            )
        return found

    def rows(self, start: int = 0) -> Iterator[Row]:
        """All rows but the first `start`."""
        return islice(self._rows(), start, None)

    def _rows(self) -> Iterator[Row]:
        """Every line is a row, empty ones included."""
        return ({self.field: line} for _, line in self._lines())

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Line numbers from 1, and lines without their ends: "\\n" or "\\r\\n", and nothing else."""
        try:
            with open(self.path, "rb") as file:
                for number, data in enumerate(file, 1):
                    yield number, self._decoded(data.removesuffix(b"\n").removesuffix(b"\r"), number)
        except OSError as error:
            raise NotFoundError("input", f"cannot read {self.path}: {error.strerror}") from None

    def _decoded(self, data: bytes, number: int) -> str:
        try:
            return data.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(
                self.name, f"is not UTF-8 at byte {error.start}", field="line", index=number, advice="convert the file"
            ) from None

    def checked(self, row: Row, unit: str, number: int) -> Row:
        """The row, which is `unit` ("line" or "row") `number` of the file, if it is an object with a text."""
        if not isinstance(row, dict):
            raise InputError(
                self.name, f"must be an object with a field {self.field!r}", field=unit, index=number, given=row
            )
        if self.field not in row:
            raise InputError(
                self.name,
                f"has no field {self.field!r}; its fields are {_fields_of(row)}",
                field=unit,
                index=number,
                advice="name the field of the text with --field",
            )
        if not isinstance(row[self.field], str):
            raise InputError(
                self.name,
                f"has no text in the field {self.field!r}",
                field=unit,
                index=number,
                given=row[self.field],
                advice="name the field of the text with --field",
            )
        return row


def _fields_of(row: Row) -> str:
    shown = ", ".join(repr(name) for name in list(row)[:SHOWN_FIELDS]) + (" …" if len(row) > SHOWN_FIELDS else "")
    return shown or "none"


class JsonLines(Source):
    """An object per line; empty lines are ignored."""

    def _rows(self) -> Iterator[Row]:
        for number, line in self._lines():
            if line.strip():
                yield self.parse(line, number)

    def parse(self, line: str, number: int) -> Row:
        try:
            row = json.loads(line)
            if "\\u" in line:  # only an escape can have half of a surrogate pair in a UTF-8 file
                json.dumps(row, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(error.object[error.start]):04x}"
            raise InputError(
                self.name, f"has half of a surrogate pair, {half}", field="line", index=number, advice="remove it"
            ) from None
        except (ValueError, RecursionError) as error:
            raise InputError(
                self.name,
                f"is not JSON: {error}",
                field="line",
                index=number,
                advice="write one JSON object per line",
            ) from None
        return self.checked(row, "line", number)


class Csv(Source):
    """Rows below a line of column names; `.tsv` files are separated by tabs."""

    def _rows(self) -> Iterator[Row]:
        csv.field_size_limit(max(csv.field_size_limit(), FIELD_BYTES))
        separator = "\t" if self.path.suffix.lower() == ".tsv" else ","
        try:
            with open(self.path, "rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as file:
                reader = csv.DictReader(file, delimiter=separator, strict=True)  # surplus values are under None
                _check_names(self.name, reader.fieldnames or ())
                for row in reader:
                    if None in row or None in row.values():
                        raise InputError(
                            self.name,
                            "has more or fewer values than the first line has names",
                            field="line",
                            index=reader.line_num,
                        )
                    yield self.checked(row, "line", reader.line_num)
        except OSError as error:
            raise NotFoundError("input", f"cannot read {self.path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise InputError("input", f"{self.name} is not UTF-8", advice="convert it") from None
        except csv.Error as error:
            raise InputError(self.name, f"is not CSV: {error}", field="line", index=reader.line_num) from None


class Parquet(Source):
    """Rows of a Parquet file (the extra `parquet`)."""

    def rows(self, start: int = 0) -> Iterator[Row]:
        for number, row in enumerate(self._from(start), start + 1):
            yield self.checked(row, "row", number)

    def _from(self, start: int) -> Iterator[Row]:
        """The rows from `start` on; row groups before it are not read."""
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
        """A column as Python values; times that Python cannot represent become text."""
        import pyarrow

        nested = pyarrow.types.is_nested(column.type)
        try:
            if not nested and "[ns" in str(column.type):  # as text, whether or not pandas is installed
                return list(column.cast("string").to_pylist())
            if nested and "time64[ns" in str(column.type):  # with pandas installed, pyarrow drops the nanoseconds
                raise ValueError("times of nanoseconds inside another type")
            try:
                return list(column.to_pylist())
            except OverflowError:
                return list(column.cast("string").to_pylist())
        except (ValueError, NotImplementedError) as error:
            raise InputError(
                self.name, f"cannot read the column {name!r} of {column.type}: {error}", advice="remove the column"
            ) from None

    def open(self) -> Any:
        """The file, opened by pyarrow."""
        arrow = parquet()
        self._stat()
        try:
            file = arrow.ParquetFile(self.path, memory_map=True)
        except (ValueError, OSError) as error:
            raise InputError("input", f"{self.name} is not a Parquet file: {error}") from None
        _check_names(self.name, file.schema_arrow.names)
        return file


def _check_names(file: str, names: Sequence[str]) -> None:
    """Refuse two columns of the same name: one would be lost."""
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if twice:
        raise InputError(file, f"has two columns named {twice[0]!r}", advice="rename one")


def parquet() -> Any:
    """The module pyarrow.parquet."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise NotFoundError(
            "embed", "Parquet files need pyarrow, which is not installed", advice="pip install weft-engine[parquet]"
        ) from None
    return pyarrow.parquet
