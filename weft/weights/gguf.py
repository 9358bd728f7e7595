"""GGUF: reader of versions 2 and 3, little-endian, split files included. The writer is in gguf_export.

A file is a header (magic, version, counts), key-value metadata, one record per tensor, padding, then the data. Every
count, length and offset is checked against the limits below and against the rest of the file before it is used.
"""

import os
import re
import struct
from pathlib import Path
from typing import Any, NoReturn

from weft.dtype import BY_GGUF, DType
from weft.errors import FormatError, UnsupportedError
from weft.weights import gguf_meta as meta
from weft.weights.files import MappedFile, TensorFile, TensorInfo
from weft.weights.gguf_meta import Metadata, StringArray, Value

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_KEY = 65_535
MAX_NAME = 63
MAX_STRING = 16 << 20
MAX_ARRAY = 64 << 20
MAX_METADATA = 256 << 20
MAX_DIMS = 4
MIN_ALIGNMENT, DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 8, 32, 1 << 20
ALIGNMENT_RULE = f"must be a power of two, {MIN_ALIGNMENT} to {MAX_ALIGNMENT}"
MAX_SPLITS = 4_096
CUT_SHORT = "is the file complete?"

# The fewest bytes that a record can have: a count cannot exceed the rest of the file divided by this.
_MIN_KEY_RECORD = 8 + 1 + 4 + 1
_MIN_TENSOR_RECORD = 8 + 1 + 4 + 8 + 4 + 8
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_SCALARS = {kind: struct.Struct("<" + form) for kind, form in enumerate("BbHhIif???Qqd") if form != "?"}

_SPLIT_NAME = re.compile(r"(?P<stem>.+)-[0-9]{5}-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)


def open_gguf(path: str | os.PathLike[str]) -> TensorFile[Metadata]:
    """Open a GGUF file, or all parts of a split model, given any of them. Only the metadata is read."""
    path = Path(path)
    file, metadata, tensors = _read(path)
    if "split.count" in metadata and metadata.get_int("split.count", low=1, high=MAX_SPLITS) > 1:
        return _open_split(path, metadata.get_int("split.count"))
    return TensorFile("gguf", tensors, metadata, [file])


def is_alignment(value: int) -> bool:
    return MIN_ALIGNMENT <= value <= MAX_ALIGNMENT and value & (value - 1) == 0


def _read(path: Path) -> tuple[MappedFile, Metadata, dict[str, TensorInfo]]:
    file = MappedFile(path)
    metadata, tensors = _Reader(file).parse()
    return file, metadata, tensors


class _Reader:
    """A cursor over the head of one file; `take` is the only way forward and checks every step."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.bytes = file.slice()
        self.at = 0
        self.end = min(file.size, MAX_METADATA)

    def fail(self, what: str, at: int | None = None, *, advice: str | None = None) -> NoReturn:
        place = self.at if at is None else at
        raise FormatError(self.file.name, f"{what}, at byte {place}", advice=advice)

    def parse(self) -> tuple[Metadata, dict[str, TensorInfo]]:
        n_tensors, n_keys = self._header()
        metadata = self._metadata(n_keys)
        alignment = self._alignment(metadata)
        records = self._records(n_tensors)
        data_start = -(-self.at // alignment) * alignment
        return metadata, self._place(records, data_start, alignment)

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they begin."""
        if count > self.end - self.at:
            if self.end < self.file.size:
                self.fail(f"the metadata is over {MAX_METADATA} bytes ({what})")
            left = self.end - self.at
            self.fail(f"{what} needs {count} bytes, and the file has {left} left", advice=CUT_SHORT)
        start = self.at
        self.at += count
        return start

    def number(self, form: struct.Struct, what: str) -> Any:
        return form.unpack_from(self.bytes, self.take(form.size, what))[0]

    def string(self, limit: int, what: str) -> bytes:
        length = self.number(_U64, f"the length of {what}")
        if length > limit:
            self.fail(f"{what} is too long: {length} bytes", self.at - 8, advice=f"the limit is {limit}")
        start = self.take(length, what)
        return bytes(self.bytes[start : start + length])

    def name(self, limit: int, what: str) -> str:
        """A string that is a name: UTF-8 and not empty."""
        start = self.at
        raw = self.string(limit, what)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8", start)
        if not text:
            self.fail(f"{what} is empty", start)
        return text

    def _header(self) -> tuple[int, int]:
        magic = bytes(self.bytes[:4])
        if magic != MAGIC:
            self.fail(f"not a GGUF file: it starts with {magic!r}")
        self.take(4, "the magic")
        version = self.number(_U32, "the version")
        if int.from_bytes(_U32.pack(version), "big") in (1, *VERSIONS):
            raise UnsupportedError(
                self.file.name, "the file is big-endian", advice="convert it: weft reads little-endian files"
            )
        if version not in VERSIONS:
            raise UnsupportedError(
                self.file.name, f"the file is GGUF version {version}", advice="convert it: weft reads versions 2 and 3"
            )
        n_tensors = self.number(_U64, "the tensor count")
        n_keys = self.number(_U64, "the key count")
        self._count("key count", n_keys, MAX_KEYS, _MIN_KEY_RECORD)
        self._count("tensor count", n_tensors, MAX_TENSORS, _MIN_TENSOR_RECORD)
        return n_tensors, n_keys

    def _count(self, what: str, count: int, limit: int, record: int) -> None:
        if count > limit:
            self.fail(f"the {what} is over the limit: {count}", advice=f"the limit is {limit}")
        if count > (self.end - self.at) // record:
            self.fail(f"the {what} does not fit in the file: {count}", advice=CUT_SHORT)

    def _metadata(self, count: int) -> Metadata:
        values: dict[str, Value] = {}
        for index in range(count):
            start = self.at
            key = self.name(MAX_KEY, f"key {index}")
            if key in values:
                self.fail(f"the key {key[:80]!r} occurs twice", start)
            values[key] = self._value(key[:80])
        return Metadata(self.file.name, values)

    def _value(self, key: str) -> Value:
        kind = self.number(_U32, f"the type of {key!r}")
        if kind == meta.STRING:
            return Value(kind, None, self.string(MAX_STRING, f"the value of {key!r}"))
        if kind == meta.BOOL:
            return Value(kind, None, self._bool(key))
        if kind == meta.ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            self.fail(f"{key!r} has an unknown type: {kind}", self.at - 4)
        return Value(kind, None, self.number(_SCALARS[kind], f"the value of {key!r}"))

    def _bool(self, key: str) -> bool:
        byte = self.bytes[self.take(1, f"the value of {key!r}")]
        if byte > 1:
            self.fail(f"{key!r} is neither true nor false: {byte}", self.at - 1)
        return byte == 1

    def _array(self, key: str) -> Value:
        element = self.number(_U32, f"the element type of {key!r}")
        count = self.number(_U64, f"the length of {key!r}")
        if count > MAX_ARRAY:
            advice = f"the limit is {MAX_ARRAY}"
            self.fail(f"the array {key!r} is too long: {count} elements", self.at - 8, advice=advice)
        if element == meta.STRING:
            return Value(meta.ARRAY, element, self._strings(key, count))
        if element == meta.ARRAY:
            self.fail(f"{key!r} is an array of arrays, which weft does not read", self.at - 12)
        if element not in meta.NUMPY:
            self.fail(f"the array {key!r} has an unknown element type: {element}", self.at - 12)
        start = self.take(count * meta.SIZES[element], f"the array {key!r}")
        raw = self.bytes[start : self.at]
        if element == meta.BOOL and raw.tobytes().strip(b"\0\1"):
            self.fail(f"the array {key!r} holds bytes that are neither true nor false", start)
        return Value(meta.ARRAY, element, raw)

    def _strings(self, key: str, count: int) -> StringArray:
        from weft._core import quant

        start = self.at
        try:
            offsets = quant.string_offsets(self.bytes[: self.end], start, count, MAX_STRING)
        except FormatError as error:
            raise error.but(where=self.file.name, what=f"{key!r}: {error.what}") from None
        self.take(offsets[-1] - start, f"the array {key!r}")
        return StringArray(self.bytes, offsets)

    def _alignment(self, metadata: Metadata) -> int:
        value = metadata.values_by_key.get("general.alignment")
        if value is None:
            return DEFAULT_ALIGNMENT
        if value.type != meta.UINT32:
            metadata.fail("general.alignment", f"must be of type u32, not {value}")
        alignment: int = value.data
        if not is_alignment(alignment):
            metadata.fail("general.alignment", ALIGNMENT_RULE, given=alignment)
        return alignment

    def _records(self, count: int) -> dict[str, tuple[DType, tuple[int, ...], int]]:
        """Type, shape and offset of each tensor; shapes are stored innermost first and reversed here."""
        records: dict[str, tuple[DType, tuple[int, ...], int]] = {}
        for index in range(count):
            start = self.at
            name = self.name(MAX_NAME, f"the name of tensor {index}")
            if name in records:
                self.fail(f"the tensor {name!r} occurs twice", start)
            rank = self.number(_U32, f"the rank of {name!r}")
            if not 1 <= rank <= MAX_DIMS:
                advice = f"1 to {MAX_DIMS} are allowed"
                self.fail(f"tensor {name!r} has {rank} dimensions", self.at - 4, advice=advice)
            shape = tuple(self.number(_U64, f"the shape of {name!r}") for _ in range(rank))[::-1]
            if min(shape) < 1:
                self.fail(f"tensor {name!r} has an empty dimension: {list(shape)}", start)
            dtype = self._dtype(name, self.number(_U32, f"the type of {name!r}"))
            if shape[-1] % dtype.block:
                self.fail(f"rows of tensor {name!r} are not whole blocks of {dtype}: {shape[-1]} elements", start)
            records[name] = (dtype, shape, self.number(_U64, f"the offset of {name!r}"))
        return records

    def _dtype(self, name: str, number: int) -> DType:
        if number not in BY_GGUF:
            raise UnsupportedError(self.file.name, f"tensor {name!r} has element type {number}, unknown to weft")
        return BY_GGUF[number]

    def _place(
        self, records: dict[str, tuple[DType, tuple[int, ...], int]], data_start: int, alignment: int
    ) -> dict[str, TensorInfo]:
        """The tensors in the file's order, after checking that each is inside the file and overlaps no other."""
        tensors: dict[str, TensorInfo] = {}
        for name, (dtype, shape, offset) in records.items():
            if offset % alignment:
                self.fail(f"tensor {name!r} is not aligned to {alignment}: offset {offset}")
            tensors[name] = TensorInfo(name, dtype, shape, self.file, data_start + offset)
            if data_start + offset + tensors[name].nbytes > self.file.size:
                what = f"tensor {name!r} of {tensors[name].nbytes} bytes extends past the end of the file"
                self.fail(what, data_start + offset, advice=CUT_SHORT)
        end = 0
        for name, (_, _, offset) in sorted(records.items(), key=lambda record: record[1][2]):
            if offset < end:
                self.fail(f"tensor {name!r} overlaps another", data_start + offset)
            end = offset + tensors[name].nbytes
        return tensors


def _open_split(path: Path, count: int) -> TensorFile[Metadata]:
    """All parts of a split model; the first part's metadata is the model's."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise FormatError(
            path.name,
            f"this is a part of a model split into {count} files, but not named as one",
            advice=f"parts are called <name>-00001-of-{count:05}.gguf: rename them",
        )
    files: list[MappedFile] = []
    tensors: dict[str, TensorInfo] = {}
    whole: Metadata | None = None
    for number in range(count):
        file, metadata, part = _read(path.with_name(f"{match['stem']}-{number + 1:05}-of-{count:05}.gguf"))
        if metadata.get_int("split.no") != number or metadata.get_int("split.count") != count:
            metadata.fail("split.no", "or split.count contradicts the file's name", given=metadata.get_int("split.no"))
        if not tensors.keys().isdisjoint(part):
            twice = next(name for name in part if name in tensors)
            raise FormatError(file.name, f"the tensor {twice!r} is also in an earlier part")
        tensors.update(part)
        files.append(file)
        whole = whole or metadata
    assert whole is not None
    if whole.get_int("split.tensors.count", len(tensors)) != len(tensors):
        given = whole.get_int("split.tensors.count")
        whole.fail("split.tensors.count", f"must be {len(tensors)}, as many as the parts have", given=given)
    return TensorFile("gguf", tensors, whole, files)
