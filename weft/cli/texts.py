"""Texts in, vectors out: the files and the standard input that commands read, and what `weft embed` writes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from weft.errors import InputError, NotFoundError

if TYPE_CHECKING:
    import numpy as np


def read_rows(source: str, field: str | None) -> list[dict[str, Any]]:
    """One object per text of a file or, for "-", of standard input; `field` of each is the text (default "text").

    With a field, or from a name that ends in .jsonl, JSON lines are read. Else each line is a text, empty ones
    included, so that row n of the result is line n of the input.
    """
    lines = _lines(read_text(source))
    if field is None and not source.lower().endswith(".jsonl"):
        return [{"text": line} for line in lines]
    from weft.embed.pipeline.sources import JsonLines

    where, rows = f"{_named(source)} line", JsonLines(Path(source), field or "text")
    return [rows.parse(line, f"{where} {n}") for n, line in enumerate(lines, 1) if line.strip()]


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


def _lines(text: str) -> list[str]:
    lines = text.replace("\r\n", "\n").split("\n")  # and not at the other characters that splitlines knows
    return lines[:-1] if not lines[-1] else lines


def write_vectors(rows: list[dict[str, Any]], vectors: np.ndarray, form: str, output: Path | None) -> None:
    """Write `vectors` [len(rows), dimension] as text, jsonl or npy to a file, or to standard output."""
    from weft.embed.pipeline.targets import numbers_of

    with _target(output) as out:
        if form == "npy":
            import numpy as np

            little = np.ascontiguousarray(vectors, vectors.dtype.newbyteorder("<"))
            np.lib.format.write_array(out, little, allow_pickle=False)
            return
        for row, vector in zip(rows, vectors):
            numbers = numbers_of(vector)
            if form == "jsonl":
                line = json.dumps({**row, "embedding": numbers}, ensure_ascii=False)
            else:
                line = " ".join(map(repr, numbers))
            out.write(line.encode() + b"\n")


@contextlib.contextmanager
def _target(output: Path | None) -> Iterator[BinaryIO]:
    if output is None or str(output) == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    else:
        from weft.weights.files import replacing

        with replacing(output) as out:
            yield out
