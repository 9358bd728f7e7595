"""safetensors: reader (one file, or shards behind an index) and writer.

A file is an 8-byte little-endian header length, the header (a JSON object: tensor name to dtype, shape and data
offsets, and `__metadata__`, text to text), then the data. Every rule of the format is checked, including those that the
reference implementation does not enforce: the header starts with `{` and may only be padded with spaces; no name occurs
twice; offsets cover the data from its first byte to the file's last without gap or overlap. Whatever the reference
refuses is refused here.
"""

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath
from typing import Any, NoReturn

from weft.dtype import BY_SAFETENSORS, DType
from weft.errors import MISSING, FormatError, InputError, NotFoundError
from weft.weights import strict_json
from weft.weights.files import MappedFile, TensorFile, TensorInfo, TensorView, replacing

INDEX_NAME = "model.safetensors.index.json"

MAX_HEADER = 100_000_000
MAX_TENSORS = 131_072
MAX_RANK = 8
MAX_SHARDS = 4_096
MAX_INDEX = 32 << 20  # a model of 10^5 tensors has 10 MB
MAX_INDEX_VALUES = 400_000
_WORD = 1 << 64

# Types that weft reads and writes but does not compute with. Those smaller than a byte are counted in blocks.
_FOREIGN = {
    str(d.safetensors): d
    for d in (
        DType("f4", 2, 1, None, "F4"),
        DType("f6_e2m3", 4, 3, None, "F6_E2M3"),
        DType("f6_e3m2", 4, 3, None, "F6_E3M2"),
        DType("f8_e5m2", 1, 1, None, "F8_E5M2"),
        DType("f8_e4m3", 1, 1, None, "F8_E4M3"),
        DType("f8_e8m0", 1, 1, None, "F8_E8M0"),
        DType("f8_e4m3fnuz", 1, 1, None, "F8_E4M3FNUZ"),
        DType("f8_e5m2fnuz", 1, 1, None, "F8_E5M2FNUZ"),
        DType("u16", 1, 2, None, "U16", "<u2"),
        DType("u32", 1, 4, None, "U32", "<u4"),
        DType("c64", 1, 8, None, "C64", "<c8"),
        DType("u64", 1, 8, None, "U64", "<u8"),
    )
}
_TYPES = {**BY_SAFETENSORS, **_FOREIGN}

# The writer puts the widest elements first, then goes by name, so that data stays aligned; this is the format's order.
_ORDER = [
    *("BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    *("I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64"),
]


def open_safetensors(path: str | os.PathLike[str]) -> TensorFile[dict[str, str]]:
    """Open one `.safetensors` file, or all shards of an index (`*.index.json`); only the headers are read."""
    path = Path(path)
    return _open_sharded(path) if path.name.endswith(".json") else _open_single(path)


def _open_single(path: Path) -> TensorFile[dict[str, str]]:
    file = MappedFile(path)
    tensors, metadata = _Header(file).parse()
    return TensorFile("safetensors", tensors, metadata, [file])


class _Header:
    """Parses and checks the header of one mapped file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file

    def fail(self, what: str, *, given: Any = MISSING, advice: str | None = None) -> NoReturn:
        raise FormatError(self.file.name, what, given=given, advice=advice)

    def parse(self) -> tuple[dict[str, TensorInfo], dict[str, str]]:
        text, data_start = self._text()
        entries: dict[str, Any] = {}
        try:
            strict_json.limit_values(text, 16 * MAX_TENSORS)
            for name, value, at in strict_json.members(text):
                if name in entries:
                    self.fail(f"the name {name[:80]!r} occurs twice, the second time at header character {at}")
                entries[name] = value
                if len(entries) - ("__metadata__" in entries) > MAX_TENSORS:
                    self.fail(f"more than {MAX_TENSORS} tensors")
        except strict_json.CrowdError as error:
            self.fail(f"the header is too large: {error}")
        except strict_json.JsonError as error:
            self.fail(f"the header is malformed JSON: {error}")
        metadata = self._metadata(entries.pop("__metadata__", None))
        return self._place([self._tensor(name, entry) for name, entry in entries.items()], data_start), metadata

    def _text(self) -> tuple[str, int]:
        size = self.file.size
        if size < 8:
            self.fail(f"too short for a header: {size} bytes")
        (length,) = struct.unpack("<Q", self.file.slice(0, 8))
        if length > MAX_HEADER:
            self.fail(f"the header length at byte 0 is {length}", advice=f"the limit is {MAX_HEADER}")
        if length > size - 8:
            what = f"the header length at byte 0 is {length}, and the file has {size - 8} bytes after it"
            self.fail(what, advice="is the file complete?")
        try:
            return strict_json.text_of(self.file.slice(8, 8 + length).tobytes()), 8 + length
        except strict_json.JsonError as error:
            self.fail(f"the header is {error}")

    def _metadata(self, value: Any) -> dict[str, str]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.fail("__metadata__ must be an object", given=value)
        for key, text in value.items():
            if not isinstance(text, str):
                self.fail(f"__metadata__.{key[:80]} must be text", given=text)
        return value

    def _tensor(self, name: str, entry: Any) -> tuple[int, int, str, DType, tuple[int, ...]]:
        """Begin, end, name, dtype and shape of one tensor; its size is checked, its place is not yet."""
        if not isinstance(entry, dict):
            self.fail(f"tensor {name[:80]!r} must be an object with dtype, shape and data_offsets", given=entry)
        dtype = _TYPES.get(entry["dtype"]) if isinstance(entry.get("dtype"), str) else None
        if dtype is None:
            self.fail(f"tensor {name[:80]!r}: unknown dtype", given=entry.get("dtype"))
        shape = self._numbers(name, entry, "shape")
        if len(shape) > MAX_RANK:
            self.fail(f"tensor {name[:80]!r}: shape has {len(shape)} dimensions", advice=f"the limit is {MAX_RANK}")
        offsets = self._numbers(name, entry, "data_offsets")
        if len(offsets) != 2 or offsets[0] > offsets[1]:
            self.fail(f"tensor {name[:80]!r}: data_offsets must be a begin and an end", given=offsets)
        size = self._size(name, dtype, shape)
        if offsets[1] - offsets[0] != size:
            span = offsets[1] - offsets[0]
            self.fail(f"tensor {name[:80]!r}: data_offsets span {span} bytes, but {shape} of {dtype} takes {size}")
        return offsets[0], offsets[1], name, dtype, tuple(shape)

    def _numbers(self, name: str, entry: dict[str, Any], field: str) -> list[int]:
        values = entry.get(field)
        # type() and not isinstance(): True is an int to isinstance
        if not isinstance(values, list) or not all(type(v) is int and 0 <= v < _WORD for v in values):
            self.fail(f"tensor {name[:80]!r}: {field} must be a list of unsigned 64-bit integers", given=values)
        return values

    def _size(self, name: str, dtype: DType, shape: list[int]) -> int:
        """Bytes of `shape`; as in the reference, every partial product and the total in bits must fit 64 bits."""
        count = 1
        for n in shape:
            count *= n
            if count >= _WORD:
                self.fail(f"tensor {name[:80]!r}: shape overflows: {shape}")
        bits = 8 * dtype.size_bytes // dtype.block
        if count * bits >= _WORD:
            self.fail(f"tensor {name[:80]!r}: shape overflows: {shape} of {dtype}")
        if count % dtype.block:
            self.fail(f"tensor {name[:80]!r}: shape of {count} elements of {dtype} is not a whole number of bytes")
        return dtype.nbytes(count)

    def _place(
        self, tensors: list[tuple[int, int, str, DType, tuple[int, ...]]], data_start: int
    ) -> dict[str, TensorInfo]:
        """The tensors in file order, after checking that they cover the data exactly."""
        tensors.sort(key=lambda tensor: tensor[:2])
        placed: dict[str, TensorInfo] = {}
        expected = 0
        for begin, end, name, dtype, shape in tensors:
            if begin != expected:
                wrong = "leave a gap" if begin > expected else "overlap another tensor"
                place = f"they start at {begin}, the tensor before ends at {expected}"
                self.fail(f"tensor {name[:80]!r}: data_offsets {wrong}: {place}")
            placed[name] = TensorInfo(name, dtype, shape, self.file, data_start + begin)
            expected = end
        if data_start + expected != self.file.size:
            have = self.file.size - data_start
            what = f"the data does not end with the file: the tensors take {expected} bytes, the file has {have}"
            self.fail(what, advice="is the file complete?")
        return placed


def _open_sharded(path: Path) -> TensorFile[dict[str, str]]:
    weight_map, metadata = _read_index(path)
    shards: dict[str, TensorFile[dict[str, str]]] = {}
    tensors: dict[str, TensorInfo] = {}
    for name, shard in weight_map.items():
        if shard not in shards:
            shards[shard] = _open_single(_shard_path(path, name, shard))
        if name not in shards[shard].tensors:
            raise FormatError(path.name, f"tensor {name[:80]!r} is not in {shard!r:.200}")
        tensors[name] = shards[shard].tensors[name]
    return TensorFile("safetensors", tensors, metadata, [file for shard in shards.values() for file in shard.files])


def _read_index(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The weight map, and the index's own metadata as text."""
    file = MappedFile(path)
    if file.size > MAX_INDEX:
        raise FormatError(path.name, f"the file is too large: {file.size} bytes", advice=f"the limit is {MAX_INDEX}")
    try:
        index = strict_json.parse(strict_json.text_of(file.slice().tobytes()), MAX_INDEX_VALUES)
    except strict_json.CrowdError as error:
        raise FormatError(path.name, str(error)) from None
    except strict_json.JsonError as error:
        raise FormatError(path.name, f"malformed JSON: {error}") from None
    if not isinstance(index, dict):
        raise FormatError(path.name, "the document is not an object")
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(path.name, "must be an object that is not empty", field="weight_map", given=weight_map)
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise FormatError(path.name, "must be a file name", field=f"weight_map.{name[:80]}", given=shard)
    if len(set(weight_map.values())) > MAX_SHARDS:
        raise FormatError(path.name, f"names more than {MAX_SHARDS} shards", field="weight_map")
    metadata = index.get("metadata")
    return weight_map, {k: str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def _shard_path(index: Path, tensor: str, shard: str) -> Path:
    """The path of `shard`, which holds `tensor`; it must be inside the index's folder.

    A link may lead out of the folder only to the folder that the index itself is a link into: caches keep the files of
    a snapshot together in such a folder.
    """
    about: dict[str, Any] = {"field": f"weight_map.{tensor[:80]}", "given": shard}
    parts = shard.split("/")
    plain = all(part.strip(". ") and part == part.rstrip(". ") and not _reserved(part) for part in parts)
    if not plain or any(c in shard for c in "\\:\0") or not shard.isprintable():
        raise FormatError(index.name, "must be the name of a file inside the folder", **about)
    if not shard.endswith(".safetensors"):
        raise FormatError(index.name, "must be the name of a .safetensors file", **about)
    path = index.parent / shard
    real = Path(os.path.realpath(path))
    homes = (os.path.realpath(index.parent), os.path.dirname(os.path.realpath(index)))
    if not any(real.is_relative_to(home) for home in homes):
        raise FormatError(index.name, "is a link out of the folder", **about)
    if not real.is_file():
        raise NotFoundError(index.name, "names a file that is missing", **about)
    return path


def _reserved(part: str) -> bool:
    """Whether the name is a device on Windows, whatever its extension."""
    stem = PureWindowsPath(part).stem.split(".")[0].upper()
    return stem in {"CON", "PRN", "AUX", "NUL"} or (stem[:3] in {"COM", "LPT"} and stem[3:] in set("0123456789"))


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` (arrays, or TensorViews for bf16 and such types); `path` appears when it is complete."""
    views = {name: TensorView.of(value) for name, value in tensors.items()}
    for name, view in views.items():
        if name == "__metadata__":
            raise InputError("safetensors", "a tensor cannot be called '__metadata__', which the format reserves")
        if view.dtype.safetensors is None:
            raise InputError("safetensors", f"tensor {name!r} cannot be written: safetensors has no type {view.dtype}")
    order = in_written_order(views)
    header = _header(views, order, metadata)
    with replacing(path) as out:
        out.write(struct.pack("<Q", len(header)))
        out.write(header)
        for name in order:
            out.write(views[name].bytes().data)


def in_written_order(views: Mapping[str, TensorView]) -> list[str]:
    """The names in the order in which a file has their data."""
    order = sorted(views, key=lambda name: name.encode())
    order.sort(key=lambda name: _ORDER.index(str(views[name].dtype.safetensors)), reverse=True)
    return order


def _header(views: Mapping[str, TensorView], order: list[str], metadata: Mapping[str, str] | None) -> bytes:
    entries: dict[str, Any] = {}
    if metadata is not None:
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):
            raise InputError("safetensors", "must map text to text", field="metadata", given=metadata)
        entries["__metadata__"] = dict(metadata)
    end = 0
    for name in order:
        view = views[name]
        begin, end = end, end + view.nbytes
        entries[name] = {"dtype": view.dtype.safetensors, "shape": list(view.shape), "data_offsets": [begin, end]}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
