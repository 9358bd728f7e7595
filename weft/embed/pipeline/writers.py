"""Vectors as bytes: lines of numbers, JSON lines and .npy matrices, the same for a file and for a stream.

Vectors come as records of `record_dtype`: the field `vector`, and `scale` for int8.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from weft.embed.pipeline.sources import Row

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.results import Embedded

ROWS = 1024  # in memory at once, and in a row group of Parquet


def record_dtype(dimension: int, output_dtype: str) -> np.dtype:
    """The type of a record: a vector of `output_dtype`, and its scale for int8."""
    import numpy as np

    kind = {"f32": "<f4", "f16": "<f2", "int8": "i1", "binary": "u1"}[output_dtype]
    size = -(-dimension // 8) if output_dtype == "binary" else dimension
    scale = [("scale", "<f4")] if output_dtype == "int8" else []
    return np.dtype([("vector", kind, (size,)), *scale])


def records_of(made: Embedded, dtype: np.dtype) -> np.ndarray:
    """Embedded texts as records of `dtype`."""
    import numpy as np

    records = np.empty(len(made), dtype)
    records["vector"] = made.vectors
    if made.scales is not None:
        records["scale"] = made.scales
    return records


def scales_path(path: Path) -> Path:
    """The file beside an int8 matrix that has its scales."""
    return path.with_suffix(".scales.npy")


def write_lines(out: BinaryIO, form: str, rows: Sequence[Row], records: np.ndarray) -> None:
    """Write a line for each row: its vector in the form "text", or the row with its vector as "jsonl"."""
    if form == "jsonl":
        scales = records["scale"] if "scale" in (records.dtype.names or ()) else [None] * len(records)
        lines = [_json_line(*parts) for parts in zip(rows, records["vector"], scales)]
    else:
        lines = [" ".join(map(repr, _numbers(vector))).encode() + b"\n" for vector in records["vector"]]
    left = memoryview(b"".join(lines))
    while left:
        left = left[out.write(left) :]  # unbuffered standard output (PYTHONUNBUFFERED) may write only a part
    out.flush()  # a reader of the stream gets every portion at once


def _json_line(row: Row, vector: np.ndarray, scale: float | None) -> bytes:
    scaled = {} if scale is None else {"scale": _number(scale)}
    return json.dumps({**plain(row), "embedding": _numbers(vector), **scaled}, ensure_ascii=False).encode() + b"\n"


def write_matrix(out: BinaryIO, field: str, dtype: np.dtype, count: int, parts: Iterable[np.ndarray]) -> None:
    """Write one field of `count` records of `dtype`, which come in `parts`, as a .npy file."""
    import numpy as np

    kind = dtype[field]
    header = {"descr": np.lib.format.dtype_to_descr(kind.base), "fortran_order": False}
    np.lib.format.write_array_header_1_0(out, {**header, "shape": (count, *kind.shape)})
    for records in parts:
        out.write(np.ascontiguousarray(records[field]).tobytes())


class HeldRecords:
    """Records in a temporary file until all are there: the header of a .npy file has their number."""

    def __init__(self, folder: Path | None) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._dtype: np.dtype | None = None
        self._count = 0

    def add(self, rows: Sequence[Row], records: np.ndarray) -> None:
        self._dtype = records.dtype
        self._file.write(records.tobytes())
        self._count += len(records)

    @property
    def has_scales(self) -> bool:
        return self._dtype is not None and "scale" in (self._dtype.names or ())

    def write(self, field: str, out: BinaryIO) -> None:
        """Write one field of all records as a .npy file."""
        assert self._dtype is not None, "add was never called, not even with an empty portion"
        write_matrix(out, field, self._dtype, self._count, self._parts(self._dtype))

    def _parts(self, dtype: np.dtype) -> Iterator[np.ndarray]:
        import numpy as np

        self._file.seek(0)
        while data := self._file.read(ROWS * dtype.itemsize):
            yield np.frombuffer(data, dtype)

    def __enter__(self) -> HeldRecords:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def plain(value: Any) -> Any:
    """The value as JSON: NaN becomes null; infinities, dates, decimals and other types become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(name): plain(held) for name, held in value.items()}
    return [plain(held) for held in value] if isinstance(value, (list, tuple)) else str(value)


def _number(value: Any) -> float:
    return float(f"{value:.9g}")  # nine digits give a float32 back exactly


def _numbers(vector: np.ndarray) -> list[float | int]:
    """The numbers of a vector as written in text: integers as they are, others with the digits that they need."""
    return [_number(x) for x in vector.tolist()] if vector.dtype.kind == "f" else list(vector.tolist())
