"""Rows to learn from, of JSON lines, CSV and Parquet files or of Python objects, each with its place for messages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.embed.pipeline.sources import Csv, JsonLines, Parquet, Source
from weft.errors import MISSING, InputError, NotFoundError, WeftError
from weft.frozen import frozen

Fields = Mapping[str, Any]
SHOWN_FIELDS = 10  # in a message


@frozen
class Row:
    """One row: its fields, and where it is from (`file`, and line or row `number`)."""

    fields: Fields
    file: str
    unit: str
    number: int

    def fault(self, what: str, *, given: Any = MISSING, advice: str | None = None) -> InputError:
        """The error to raise about this row."""
        return InputError(self.file, what, field=self.unit, index=self.number, given=given, advice=advice)

    def blamed(self, error: WeftError) -> WeftError:
        """An error that something else found in this row, with the row's place."""
        subject = f"{error.field} " if error.field else ""
        return error.but(where=self.file, what=f"{subject}{error.what}", field=self.unit, index=self.number)

    @property
    def named_fields(self) -> str:
        """The names of its fields, for a message."""
        names = [repr(name) for name in self.fields]
        return ", ".join(names[:SHOWN_FIELDS]) + (" …" if len(names) > SHOWN_FIELDS else "") if names else "none"


Data = str | os.PathLike[str] | Iterable[Fields] | Iterable[Row]


class _Objects:
    """Rows need no text field: any object is a row, and its place is kept until the next is read."""

    place = ("row", 0)
    name: str

    def checked(self, row: Any, unit: str, number: int) -> Any:
        self.place = (unit, number)
        if not isinstance(row, dict):
            raise InputError(self.name, "must be an object", field=unit, index=number, given=row)
        return row


class _JsonLines(_Objects, JsonLines): ...


class _Csv(_Objects, Csv): ...


class _Parquet(_Objects, Parquet): ...


KINDS: dict[str, type[Any]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), _JsonLines),
    **dict.fromkeys((".csv", ".tsv"), _Csv),
    ".parquet": _Parquet,
}


def read_rows(data: Data) -> Iterator[Row]:
    """The rows of a file, by the ending of its name, or of objects. Rows that were read before keep their places."""
    if not isinstance(data, (str, os.PathLike)):
        for number, fields in enumerate(data, 1):
            if isinstance(fields, Row):
                yield fields
                continue
            if not isinstance(fields, Mapping):
                raise InputError("data", "must be an object", field="row", index=number, given=fields)
            yield Row(fields, "data", "row", number)
        return
    path = Path(data)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "there is no such file"
        raise NotFoundError("data", f"{path}: {what}", advice="name a .jsonl, .csv or .parquet file")
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        advice = "write one object per line and name the file .jsonl"
        raise InputError("data", f"the name must end in {', '.join(KINDS)}", given=path.name, advice=advice)
    source: Any = kind(path)
    for fields in source.rows():
        yield Row(_without_none(fields) if kind is _Parquet else fields, path.name, *source.place)


def _without_none(value: Any) -> Any:
    """Parquet writes None for a field that an object does not have."""
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def listed(row: Row, field: str) -> Any:
    """A field whose value is a list: JSON text in a CSV file."""
    value = row.fields[field]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise row.fault(f"has text in the field {field!r} that is not JSON: {error}", given=value) from None
    if not isinstance(value, list) or not value:
        raise row.fault(f"must have a list that is not empty in the field {field!r}", given=value)
    return value


__all__ = ["Data", "Row", "Source", "listed", "read_rows"]
