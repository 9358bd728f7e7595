"""Writes GGUF version 3, little-endian: metadata of every type, tensors of every type the format has."""

import os
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.weights import gguf_meta as meta
from weft.weights.files import TensorView, replacing
from weft.weights.gguf import ALIGNMENT_RULE, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_KEY, MAX_NAME, is_alignment

_BY_NUMPY = {np.dtype(name).str: kind for kind, name in meta.NUMPY.items()}


def write_gguf(path: str | os.PathLike[str], tensors: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Write `tensors` (arrays, or TensorViews for quantised data) and `metadata`; `path` appears when it is complete.

    A numpy scalar or array keeps its type. Plain numbers get the types that readers expect: u32 (i32 if negative, 64
    bits if needed) and f32 alone, i32 and f32 in lists. Shapes are outermost first, as everywhere in weft.
    """
    views = {name: _checked(name, TensorView.of(value)) for name, value in tensors.items()}
    alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
    if not is_alignment(alignment):
        raise InputError("gguf", ALIGNMENT_RULE, field="general.alignment", given=alignment)
    head = [MAGIC, struct.pack("<IQQ", 3, len(views), len(metadata))]
    head += [_string(key, MAX_KEY) + _value(key, value) for key, value in metadata.items()]
    offset = 0
    for name, view in views.items():
        shape = view.shape or (1,)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head.append(_string(name, MAX_NAME) + dims + struct.pack("<IQ", view.dtype.gguf, offset))
        offset += view.nbytes + -view.nbytes % alignment
    start = b"".join(head)
    with replacing(path) as out:
        out.write(start + bytes(-len(start) % alignment))
        for view in views.values():
            out.write(np.ascontiguousarray(view.bytes()).data)
            out.write(bytes(-view.nbytes % alignment))


def _checked(name: str, view: TensorView) -> TensorView:
    if view.dtype.gguf is None:
        raise InputError("gguf", f"tensor {name!r} cannot be written: GGUF has no type {view.dtype}")
    if len(view.shape) > MAX_DIMS or view.size == 0:
        raise InputError(
            "gguf",
            f"tensor {name!r} cannot be written: shape {view.shape}",
            advice=f"1 to {MAX_DIMS} dimensions are allowed, none empty",
        )
    return view


def _string(text: str | bytes, limit: int | None = None) -> bytes:
    raw = text.encode("utf-8") if isinstance(text, str) else text
    if limit is not None and not 0 < len(raw) <= limit:
        raise InputError("gguf", f"a name must have 1 to {limit} bytes, this one has {len(raw)}", given=text)
    return struct.pack("<Q", len(raw)) + raw


def _value(key: str, value: Any) -> bytes:
    """The type of `value` and its bytes."""
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", meta.STRING) + _string(value)
    if isinstance(value, (meta.StringArray, list, tuple)) and all(isinstance(item, (str, bytes)) for item in value):
        raws = [value.raw(i) for i in range(len(value))] if isinstance(value, meta.StringArray) else value
        return struct.pack("<IIQ", meta.ARRAY, meta.STRING, len(value)) + b"".join(map(_string, raws))
    array = _narrow(value) if not isinstance(value, (np.ndarray, np.generic)) else np.asarray(value)
    kind = _BY_NUMPY.get(array.dtype.newbyteorder("<").str)
    if kind is None or array.ndim > 1:
        raise InputError(
            "gguf",
            f"cannot be written: {type(value).__name__} of {array.dtype}, {array.ndim} dimensions",
            field=key,
            advice="numbers, text and flat lists of them can be",
        )
    raw = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return struct.pack("<I", kind) + raw if array.ndim == 0 else _array(kind, len(array), raw)


def _array(kind: int, count: int, raw: bytes) -> bytes:
    return struct.pack("<IIQ", meta.ARRAY, kind, count) + raw


def _narrow(value: Any) -> np.ndarray:
    """Plain Python numbers in the types GGUF readers expect."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float32)
    if array.dtype.kind not in "iu" or array.size == 0:
        return array
    low, high = int(array.min()), int(array.max())
    if array.ndim == 0 and 0 <= low < 1 << 32:
        return array.astype(np.uint32)
    return array.astype(np.int32) if low >= -(1 << 31) and high < 1 << 31 else array
