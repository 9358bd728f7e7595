"""What belongs to a row beside its vector: its id, metadata and text. In memory, or read row by row from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.errors import FormatError, InputError

Id = str | int
MAX_ID_BYTES = 4096
LARGEST_ID = 2**63
MAX_DEPTH = 500  # of metadata: what is deeper, Python's reader of JSON may not read back


class Record(NamedTuple):
    id: Id
    metadata: dict[str, Any]
    text: str | None


def check_id(given: Any) -> Id:
    """An id is a string or a whole number of 64 bits, and stays what it is: "1" and 1 are different."""
    if isinstance(given, np.integer):
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise InputError(f"[index] an id is a string or an integer, not {type(given).__name__}")
    if isinstance(given, int) and not -LARGEST_ID <= given < LARGEST_ID:
        raise InputError(f"[index] the id {given} does not fit 64 bits")
    if isinstance(given, str) and len(given.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
        raise InputError(f"[index] an id of {len(given)} characters; at most {MAX_ID_BYTES} bytes")
    return given


def make_record(id: Any, metadata: Mapping[str, Any] | None, text: str | None) -> Record:
    """A copy of what was given, as a file would give it back."""
    if text is not None and not isinstance(text, str):
        raise InputError(f"[index] the text of {id!r} is {type(text).__name__}; texts are strings")
    if metadata is not None and not (isinstance(metadata, Mapping) and all(isinstance(key, str) for key in metadata)):
        raise InputError(f"[index] the metadata of {id!r} is not a dictionary with names as keys")
    try:
        line = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False) if metadata else "{}"
        for part in (line, text or "", str(id)):
            part.encode("utf-8")  # half of a surrogate pair is text to Python and to no file
        copied = json.loads(line)
        if line.count("[") + line.count("{") > MAX_DEPTH and _is_deep(copied):
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"[index] the metadata or text of {id!r} cannot be written as JSON: {error}") from None
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
        raise FormatError(f"[{file}] the record of row {row} is not JSON") from None
    if not isinstance(fields, dict) or "id" not in fields:
        raise FormatError(f"[{file}] the record of row {row} has no id")
    metadata, text = fields.get("metadata", {}), fields.get("text")
    if not isinstance(metadata, dict) or not (text is None or isinstance(text, str)):
        raise FormatError(f"[{file}] the record of row {row} is not an id, metadata and a text")
    try:
        return Record(check_id(fields["id"]), metadata, text)
    except InputError as error:
        raise FormatError(f"[{file}] row {row}: {error}") from None


class FileRecords:
    """Records in a mapped file, parsed when they are asked for: `offsets` [n + 1] says where each begins."""

    def __init__(self, data: np.ndarray, offsets: np.ndarray, file: str) -> None:
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(data) or np.any(np.diff(offsets) < 0):
            raise FormatError(f"[{file}] the places of records are not in order")
        self._data, self._offsets, self._file = data.data, offsets, file

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: int) -> Record:
        begin, end = int(self._offsets[row]), int(self._offsets[row + 1])
        return from_line(bytes(self._data[begin:end]), row, self._file)

    @cached_property
    def metadata(self) -> list[dict[str, Any]]:
        """That of every row, read once: parsing all lines takes far longer than a search."""
        return [self[row].metadata for row in range(len(self))]
