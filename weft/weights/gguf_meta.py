"""GGUF's metadata: typed values by key, and lists of strings that are decoded on access."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

from weft.errors import MISSING, FormatError

if TYPE_CHECKING:
    import numpy as np

# Value types by their number in the file.
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)

_NUMPY_NAMES = ("u1", "i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?", None, None, "<u8", "<i8", "<f8")
NUMPY = {kind: name for kind, name in enumerate(_NUMPY_NAMES) if name}
SIZES = {kind: int(name[-1]) if name != "?" else 1 for kind, name in NUMPY.items()}  # bytes of an element
TYPE_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64")
INTEGERS = frozenset((UINT8, INT8, UINT16, INT16, UINT32, INT32, UINT64, INT64))
FLOATS = frozenset((FLOAT32, FLOAT64))
_ARRAYS = {INT32: "i", FLOAT32: "f"}  # as the standard library writes them
_KINDS = {"int": INTEGERS, "float": FLOATS, "bool": frozenset((BOOL,)), "str": frozenset((STRING,))}


class StringArray(Sequence[str]):
    """A list of strings inside a mapped file: string i is buffer[offsets[i] + 8 : offsets[i + 1]].

    Strings are decoded on access. Text that is not UTF-8 (byte tokens may not be) is decoded with replacement
    characters; `raw` returns the bytes.
    """

    def __init__(self, buffer: memoryview, offsets: memoryview) -> None:
        self.buffer = buffer  # bytes
        self.offsets = offsets  # uint64 [n + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def raw(self, index: int) -> bytes:
        """The bytes of string `index`."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        index %= len(self)
        return self.buffer[self.offsets[index] + 8 : self.offsets[index + 1]].tobytes()

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.raw(index).decode("utf-8", errors="replace")

    def __iter__(self) -> Iterator[str]:
        for begin, end in pairwise(self.offsets.tolist()):
            yield str(self.buffer[begin + 8 : end], "utf-8", "replace")

    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """The strings one after another (uint8) and where each starts (uint64 [n + 1]), without their lengths."""
        import numpy as np

        if not len(self):
            return np.empty(0, np.uint8), np.zeros(1, np.uint64)
        start = self.offsets[0]
        offsets = np.asarray(self.offsets).astype(np.int64) - start
        keep = np.ones(int(offsets[-1]), bool)
        keep[offsets[:-1, None] + np.arange(8)] = False
        data = np.frombuffer(self.buffer[start : start + int(offsets[-1])], np.uint8)[keep]
        return data, (offsets - 8 * np.arange(len(offsets))).astype(np.uint64)

    def __repr__(self) -> str:
        return f"StringArray({len(self)} strings)"


class Value(NamedTuple):
    """One value as stored. `element` is the type of an array's elements, else None. Text and numeric arrays are bytes,
    not decoded yet."""

    type: int
    element: int | None
    data: Any

    def __str__(self) -> str:
        name = TYPE_NAMES[self.type]
        return name if self.element is None else f"{name} of {TYPE_NAMES[self.element]}"


class Metadata(Mapping[str, Any]):
    """Values by key. Plain indexing returns a value of any type; the `get_*` methods check the type.

    Each takes a default for a missing key; without one a missing key is a FormatError. A wrong type always is.
    """

    def __init__(self, file_name: str, values: dict[str, Value]) -> None:
        self.file_name = file_name
        self.values_by_key = values

    def __getitem__(self, key: str) -> Any:
        value = self.values_by_key[key]
        return self._text(key, value.data) if value.type == STRING else _numbers(value)

    def compact(self, key: str, default: Any = None) -> Any:
        """The value, without numpy if possible: lists of i32 and f32 as an `array`."""
        value = self.values_by_key.get(key)
        if value is None:
            return default
        if value.element not in _ARRAYS or sys.byteorder != "little":
            return self[key]
        found = array(_ARRAYS[value.element])
        found.frombytes(value.data)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)

    def __contains__(self, key: object) -> bool:
        return key in self.values_by_key

    def get_int(self, key: str, default: int | None = None, *, low: int = 0, high: int = (1 << 63) - 1) -> int:
        """A whole number of any width, low..high."""
        if default is not None and key not in self:
            return default
        number = int(self._scalar(key, "int"))
        if not low <= number <= high:
            self.fail(key, f"must be {low} to {high}", given=number)
        return number

    def get_float(self, key: str, default: float | None = None) -> float:
        """A finite number stored as a float."""
        if default is not None and key not in self:
            return default
        number = float(self._scalar(key, "float"))
        if not math.isfinite(number):
            self.fail(key, "must be finite", given=number)
        return number

    def get_bool(self, key: str, default: bool | None = None) -> bool:
        if default is not None and key not in self:
            return default
        return bool(self._scalar(key, "bool"))

    def get_str(self, key: str, default: str | None = None) -> str:
        if default is not None and key not in self:
            return default
        return self._text(key, self._scalar(key, "str"))

    def get_array(self, key: str, kind: str, default: Any = None) -> Any:
        """An array of `kind` ("int", "float", "bool" or "str"): a numpy view into the file, or a StringArray."""
        if default is not None and key not in self:
            return default
        value = self._value(key)
        if value.element not in _KINDS[kind]:
            self.fail(key, f"must be an array of {kind}, not {value}")
        return _numbers(value)

    def stored(self) -> dict[str, Any]:
        """The values in their stored types, for write_gguf: a copy of a file keeps every type."""
        import numpy as np

        return {
            key: np.dtype(NUMPY[value.type]).type(value.data) if value.type in NUMPY else _numbers(value)
            for key, value in self.values_by_key.items()
        }

    def is_array(self, key: str) -> bool:
        return key in self and self._value(key).type == ARRAY

    def fail(self, key: str, what: str, *, given: Any = MISSING, advice: str | None = None) -> NoReturn:
        raise FormatError(self.file_name, what, field=key, given=given, advice=advice)

    def _value(self, key: str) -> Value:
        if key not in self.values_by_key:
            self.fail(key, "is missing")
        return self.values_by_key[key]

    def _scalar(self, key: str, kind: str) -> Any:
        value = self._value(key)
        if value.type not in _KINDS[kind]:
            self.fail(key, f"must be of type {kind}, not {value}")
        return value.data

    def _text(self, key: str, raw: bytes) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            self.fail(key, f"is not UTF-8 at byte {error.start}")


def _numbers(value: Value) -> Any:
    """The content of a value; the numbers of an array are a view into the file."""
    if value.element not in NUMPY:
        return value.data
    import numpy as np

    return np.frombuffer(value.data, NUMPY[value.element])
