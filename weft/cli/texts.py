"""Texts in, vectors out: the files and the standard input that commands read, and what `weft embed` writes."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from weft.embed.pipeline.sources import FIELD, JsonLines, Row, Source
from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.results import Embedded

# What is embedded between two writes: some seconds of work, and enough to keep all cores busy.
PORTION_TEXTS = 1024
PORTION_CHARACTERS = 1 << 17

Write = Callable[[list[Row], "Embedded"], None]


class _Piped(Source):
    """Lines of standard input."""

    def _lines(self) -> Iterator[tuple[int, str]]:
        for number, data in enumerate(sys.stdin.buffer, 1):
            yield number, self._decoded(data.removesuffix(b"\n").removesuffix(b"\r"), number)


class _PipedJsonLines(_Piped, JsonLines):
    """Objects of standard input, one a line."""


def read_rows(source: str, field: str | None) -> Iterator[Row]:
    """An object for each text of a file or, for "-", of standard input; `field` of each is the text (default "text").

    With a field, or from a name that ends in .jsonl, JSON lines are read. Else each line is a text, empty ones
    included, so that row n of the result is line n of the input. Lines are read as they are asked for.
    """
    plain = field is None and not source.lower().endswith(".jsonl")
    kinds: tuple[type[Source], type[Source]] = (_Piped, _PipedJsonLines) if source == "-" else (Source, JsonLines)
    return kinds[0 if plain else 1](Path(_named(source)), field or FIELD).rows()


def read_text(source: str) -> str:
    """The text of a file or, for "-", of standard input."""
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise NotFoundError(f"[input] {_named(source)} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"[input] {_named(source)} is not UTF-8 at byte {error.start}; convert it") from None


def _named(source: str) -> str:
    return "standard input" if source == "-" else source


def in_portions(rows: Iterable[Row], field: str) -> Iterator[list[Row]]:
    """The rows in lists of a bounded number and length, read as they are asked for."""
    from weft.embed.inputs import portions

    read: list[Row] = []

    def texts() -> Iterator[str]:
        for row in rows:
            read.append(row)
            yield row[field]

    for _ in portions(texts(), PORTION_TEXTS, PORTION_CHARACTERS):
        yield read.copy()
        read.clear()


def writable(rows: Iterable[Row], form: str, dtype: str) -> Iterator[Row]:
    """The rows as they are asked for; one with a field that `form` needs for the vector is refused."""
    from weft.embed.pipeline.targets import check_fields, taken_beside

    taken = taken_beside(dtype == "int8") if form == "jsonl" else ()
    for number, row in enumerate(rows):
        check_fields(number, row, taken)
        yield row


@contextlib.contextmanager
def writing(form: str, output: Path | None) -> Iterator[Write]:
    """What writes rows and their vectors as text, jsonl or npy to a file or to standard output, a portion a call.

    A file has its name once the block is left, and keeps what it was where an error leaves it.
    """
    from weft.embed.pipeline.targets import scales_path

    to_file = output is not None and str(output) != "-"
    with contextlib.ExitStack() as stack:
        out: BinaryIO = stack.enter_context(_target(output if to_file else None))
        if form != "npy":
            yield partial(_write_lines, out, form)
            return
        matrix = stack.enter_context(_Matrix(output.parent if output and to_file else None))
        yield matrix.write
        matrix.finish(out, scales_path(output) if output and to_file else None)


def _write_lines(out: BinaryIO, form: str, rows: list[Row], made: Embedded) -> None:
    from weft.embed.pipeline.targets import json_line, text_line

    if form == "jsonl":
        scales = [None] * len(made) if made.scales is None else made.scales.tolist()
        lines = [json_line(*parts) for parts in zip(rows, made.vectors, scales)]
    else:
        lines = [text_line(vector) for vector in made.vectors]
    left = memoryview(b"".join(lines))
    while left:
        left = left[out.write(left) :]  # standard output without a buffer (PYTHONUNBUFFERED) ends a write at a signal
    out.flush()  # whoever reads them need not wait for the next portion


class _Matrix:
    """Rows of a .npy file, on disk until all are there: the number of rows stands before them."""

    def __init__(self, folder: Path | None) -> None:
        import tempfile

        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by __exit__)
        self._shape: tuple[int, ...] = (0, 0)
        self._dtype: np.dtype | None = None
        self._scales: list[np.ndarray] = []

    def write(self, rows: list[Row], made: Embedded) -> None:
        import numpy as np

        self._dtype = made.vectors.dtype.newbyteorder("<")
        self._file.write(np.ascontiguousarray(made.vectors, self._dtype).tobytes())
        self._shape = (self._shape[0] + len(made), *made.vectors.shape[1:])
        if made.scales is not None:
            self._scales.append(made.scales)

    def finish(self, out: BinaryIO, scales: Path | None) -> None:
        import numpy as np

        assert self._dtype is not None, "no portion, not even an empty one"
        header = {"descr": np.lib.format.dtype_to_descr(self._dtype), "fortran_order": False, "shape": self._shape}
        np.lib.format.write_array_header_1_0(out, header)
        self._file.seek(0)
        shutil.copyfileobj(self._file, out)
        if self._scales and scales is not None:
            with _target(scales) as beside:
                np.lib.format.write_array(beside, np.concatenate(self._scales).astype("<f4"), allow_pickle=False)

    def __enter__(self) -> _Matrix:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


@contextlib.contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        from weft.weights.files import replacing

        with replacing(output) as out:
            yield out
