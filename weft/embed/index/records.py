"""The id, metadata and text of a row: in memory, or read row by row from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.errors import FormatError, InputError
from weft.frozen import frozen

Id = str | int
MAX_ID_BYTES = 4096
LARGEST_ID = 2**63
MAX_DEPTH = 500  # of metadata: Python's JSON reader may fail on deeper values


class Record(NamedTuple):
    id: Id
    metadata: dict[str, Any]
    text: str | None


@frozen
class Hit:
    """One row of a search's result. Larger scores are nearer for cosine and dot, smaller ones for both distances."""

    id: Id
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)
    text: str | None = None


def check_id(given: Any) -> Id:
    """An id is a string or a 64-bit integer; "1" and 1 are different ids."""
    if isinstance(given, np.integer):
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise InputError("index", "must be a string or an integer", given=given, field="id")
    if isinstance(given, int) and not -LARGEST_ID <= given < LARGEST_ID:
        raise InputError("index", "must fit in 64 bits", given=given, field="id")
    if isinstance(given, str) and len(given.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise InputError("index", f"must have at most {MAX_ID_BYTES} bytes of UTF-8", given=given, field="id")
    return given


def make_record(id: Any, metadata: Mapping[str, Any] | None, text: str | None) -> Record:
    """A copy of the values given, as they would be read back from a file."""
    if text is not None and not isinstance(text, str):
        raise InputError("index", f"must be a string for id {id!r}", given=text, field="texts")
    if metadata is not None and not (isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)):
        what = f"must be a dictionary with strings as keys for id {id!r}"
        raise InputError("index", what, given=metadata, field="metadata")
    try:
        line = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False) if metadata else "{}"
        for part in (line, text or "", str(id)):
            part.encode("utf-8")  # Python strings may hold half of a surrogate pair, files may not
        copied = json.loads(line)
        if line.count("[") + line.count("{") > MAX_DEPTH and _is_deep(copied):
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError("index", f"the metadata or text of id {id!r} cannot be written as JSON: {error}") from None
    return Record(check_id(id), copied, text)


def _is_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(MAX_DEPTH + 1):
        held = [list(one.values()) if isinstance(one, dict) else one for one in layer if isinstance(one, (dict, list))]
        layer = [inner for group in held for inner in group]
    return bool(layer)


def to_line(record: Record) -> bytes:
    fields: dict[str, Any] = {"id": record.id}
    if record.metadata:
        fields["metadata"] = record.metadata
    if record.text is not None:
        fields["text"] = record.text
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def from_line(line: bytes, row: int, file: str) -> Record:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        raise FormatError(file, "is not JSON", field="record", index=row) from None
    if not isinstance(fields, dict) or "id" not in fields:
        raise FormatError(file, "has no id", field="record", index=row)
    metadata, text = fields.get("metadata", {}), fields.get("text")
    if not isinstance(metadata, dict) or not (text is None or isinstance(text, str)):
        raise FormatError(file, "must have an id, metadata and a text", field="record", index=row)
    try:
        return Record(check_id(fields["id"]), metadata, text)
    except InputError as error:
        raise FormatError(
            file, f"has a bad id: it {error.what}", given=error.given, field="record", index=row
        ) from None


class FileRecords:
    """Records in a mapped file, parsed when they are used: record i is the bytes offsets[i] to offsets[i + 1]."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray, file: str) -> None:
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(data) or np.any(np.diff(offsets) < 0):
            raise FormatError(file, "the offsets of records are not in order")
        self._data, self._offsets, self._file = data.data, offsets, file

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Record:
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return from_line(bytes(self._data[begin:end]), row, self._file)

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """The metadata of every row, read once: parsing all lines takes far longer than a search."""
        return [self[row].metadata for row in range(len(self))]
