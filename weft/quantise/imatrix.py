"""llama.cpp's files of importance: its GGUF form, read and written, and the binary form before it, read and written."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from weft.errors import FormatError, InputError
from weft.quantise.calibration import Seen
from weft.quantise.source import open_source
from weft.weights import open_gguf, write_gguf
from weft.weights.files import replacing

SUMS, COUNTS = ".in_sum2", ".counts"
MAX_ENTRIES, MAX_NAME, MAX_VALUES = 65_536, 1_024, 1 << 26


def read_imatrix(path: str | os.PathLike[str]) -> dict[str, Seen]:
    """Of every tensor in the file what its columns saw; GGUF, or the older binary form."""
    path = Path(path)
    with open(path, "rb") as file:
        head = file.read(4)
    return _read_gguf(path) if head == b"GGUF" else _read_binary(path)


def write_imatrix(
    path: str | os.PathLike[str], seen: Mapping[str, Seen], *, text: str, windows: int, window: int
) -> None:
    """Write what llama.cpp's tools read: as GGUF, or in the older binary form where `path` ends in .dat."""
    if Path(path).suffix == ".dat":
        _write_binary(path, seen, text, windows)
        return
    tensors: dict[str, np.ndarray] = {}
    for name, one in sorted(seen.items()):
        tensors[f"{name}{SUMS}"] = one.squares.astype(np.float32)
        tensors[f"{name}{COUNTS}"] = one.counts.astype(np.float32)[:, None]
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": [text],
        "imatrix.chunk_count": np.uint32(windows),
        "imatrix.chunk_size": np.uint32(window),
    }
    write_gguf(path, tensors, metadata)


def _read_gguf(path: Path) -> dict[str, Seen]:
    file = open_gguf(path)
    if file.metadata.get_str("general.type", "") != "imatrix":
        given = file.metadata.get_str("general.type", "")
        raise FormatError(path.name, "must be imatrix", field="general.type", given=given)
    found = {}
    for name, view in file.tensors.items():
        if not name.endswith(SUMS):
            continue
        stem = name.removesuffix(SUMS)
        if f"{stem}{COUNTS}" not in file.tensors:
            raise FormatError(path.name, f"{stem}{COUNTS} is missing, the counts of {name}")
        counts = np.asarray(file[f"{stem}{COUNTS}"].numpy(), np.float64).reshape(-1)
        squares = np.asarray(view.numpy(), np.float64).reshape(-1, view.shape[-1])
        found[stem] = _checked(path, stem, squares, counts)
    if not found:
        raise FormatError(path.name, f"has no tensor whose name ends in {SUMS}")
    return found


def _checked(path: Path, name: str, squares: np.ndarray, counts: np.ndarray) -> Seen:
    whole = np.isfinite(squares).all() and np.isfinite(counts).all()
    if len(squares) != len(counts) or not whole or (squares < 0).any() or (counts < 0).any():
        what = f"{name} must have finite sums, none below zero, and a count for each of its matrices"
        raise FormatError(path.name, what)
    return Seen(squares, counts.astype(np.int64))


def _read_binary(path: Path) -> dict[str, Seen]:
    """Each entry is a name, a number of windows, and the means of its columns times that number."""
    content, at = path.read_bytes(), 0

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        size = struct.calcsize(form)
        if at + size > len(content):
            raise FormatError(path.name, f"ends inside an entry, at byte {at}")
        values = struct.unpack_from(form, content, at)
        at += size
        return values

    (entries,) = take("<i")
    if not 0 < entries <= MAX_ENTRIES:
        raise FormatError(path.name, "is no file of importance: the number of entries is not possible", given=entries)
    found = {}
    for _ in range(entries):
        (length,) = take("<i")
        if not 0 < length <= MAX_NAME:
            raise FormatError(path.name, f"has a name of {length} bytes, at byte {at - 4}")
        name = bytes(take(f"<{length}B")).decode(errors="replace")
        calls, count = take("<2i")
        if not 0 < count <= MAX_VALUES or at + 4 * count > len(content):
            raise FormatError(path.name, f"{name[:80]} has {count} values, at byte {at - 4}")
        values = np.frombuffer(content, "<f4", count, at).astype(np.float64)
        at += 4 * count
        found[name] = _checked(path, name, values[None], np.asarray([max(calls, 1)], np.float64))
    return found


def _write_binary(path: str | os.PathLike[str], seen: Mapping[str, Seen], text: str, windows: int) -> None:
    if windows < 1:
        raise InputError("imatrix", "must be at least one", field="windows", given=windows)
    with replacing(path) as out:
        out.write(struct.pack("<i", len(seen)))
        for name, one in sorted(seen.items()):
            raw = name.encode()
            means = (np.atleast_2d(one.mean) * windows).astype("<f4").reshape(-1)
            out.write(struct.pack("<i", len(raw)) + raw + struct.pack("<2i", windows, len(means)) + means.tobytes())
        raw = text.encode()
        out.write(struct.pack("<2i", windows, len(raw)) + raw)


def fitting(seen: Mapping[str, Seen], model: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The importance of the columns of a model's tensors, [columns] or for a stack [matrices, columns].

    A file of another model is refused: no entry has the name and width of a tensor.
    """
    found: dict[str, np.ndarray] = {}
    for name, view in open_source(model).tensors.items():
        if name in seen and len(view.shape) > 1:
            mean = np.atleast_2d(seen[name].mean)
            if len(view.shape) == 3 and mean.shape == (1, view.shape[0] * view.shape[-1]):
                mean = mean.reshape(view.shape[0], -1)  # the binary form does not say where a matrix ends
            if mean.shape[1] == view.shape[-1] and len(mean) in (1, view.shape[0]):
                found[name] = mean[0] if len(mean) == 1 else mean
    if not found:
        what = f"has no tensor of {Path(model).name}: it is another model's"
        raise InputError("imatrix", what, field="imatrix")
    return found
