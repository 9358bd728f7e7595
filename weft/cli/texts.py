"""Texts in, vectors out: the files and standard input that commands read, and the streams that `weft embed` writes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from weft.embed.pipeline.sources import FIELD, JsonLines, Row, Source
from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    import numpy as np

# What is embedded between two writes: a few seconds of work, and enough to keep all cores busy.
PORTION_TEXTS = 1024
PORTION_CHARACTERS = 1 << 17

Write = Callable[[Sequence[Row], "np.ndarray"], None]  # rows, and their records (weft.embed.pipeline.writers)


class _Piped(Source):
    """Lines of standard input."""

    def _lines(self) -> Iterator[tuple[int, str]]:
        for number, data in enumerate(sys.stdin.buffer, 1):
            yield number, self._decoded(data.removesuffix(b"\n").removesuffix(b"\r"), number)


class _PipedJsonLines(_Piped, JsonLines):
    """Objects of standard input, one per line."""


def read_rows(source: str, field: str | None) -> Iterator[Row]:
    """A row for each text of a file or, for "-", of standard input; `field` of each is the text (default "text").

    With `field`, or if the name ends in .jsonl, the input is read as JSON lines. Otherwise each line is a text, empty
    ones included, so that row n of the result is line n of the input. Lines are read lazily.
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
        raise NotFoundError("input", f"cannot read {_named(source)}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        what = f"{_named(source)} is not UTF-8 at byte {error.start}"
        raise InputError("input", what, advice="convert it") from None


def _named(source: str) -> str:
    return "standard input" if source == "-" else source


def in_portions(rows: Iterable[Row], field: str) -> Iterator[list[Row]]:
    """The rows in lists of bounded size, read lazily."""
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
    """The rows, read lazily; a row with a field that `form` needs for the vector is refused."""
    from weft.embed.pipeline.targets import check_fields, taken_beside

    taken = taken_beside(dtype == "int8") if form == "jsonl" else ()
    for number, row in enumerate(rows):
        check_fields(number, row, taken)
        yield row


@contextlib.contextmanager
def writing(form: str, output: Path | None) -> Iterator[Write]:
    """Yield a function that writes rows and records as text, jsonl or npy to a file or standard output.

    A file gets its name when the block ends; if the block raises, an existing file stays as it was.
    """
    from weft.embed.pipeline.writers import HeldRecords, scales_path, write_lines

    place = None if output is None or str(output) == "-" else output
    with _opened(place) as out:
        if form != "npy":
            yield partial(write_lines, out, form)
            return
        with HeldRecords(None if place is None else place.parent) as held:
            yield held.add
            held.write("vector", out)
            if place is not None and held.has_scales:
                with _opened(scales_path(place)) as beside:
                    held.write("scale", beside)


@contextlib.contextmanager
def _opened(place: Path | None) -> Iterator[BinaryIO]:
    """The file `place`, or standard output, to write to."""
    if place is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        from weft.weights.files import replacing

        with replacing(place) as out:
            yield out
