"""What a finished run leaves: one file, written from the source's rows and the spool's vectors, whole or not at all.

.npy      vectors alone: [rows, dimension] of float32, float16 or int8, or [rows, ceil(dimension / 8)] bytes; the
          scales of int8 lie beside it in .scales.npy
.jsonl    the row with "embedding", and "scale" for int8
.txt      the numbers of a vector a line
.parquet  the row's columns and "embedding", a list of fixed length; the fingerprint is in the file's metadata
.index    a folder with a `weft.Index` (indexing.py)
.sqlite   table vectors (id, text, fields, embedding, scale); table about has the fingerprint

What can be wrong with a target or with a row for it is said before anything is embedded: `check`, then `see`.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Spool
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen
from weft.weights.files import check_replaceable, replacing, replacing_path

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder

ROWS = 1024  # in memory at once, and in a row group


@frozen
class About:
    """What the vectors of a file are."""

    fingerprint: str
    dimension: int
    output_dtype: str
    field: str


def spool_dtype(dimension: int, output_dtype: str) -> np.dtype:
    """A record of the spool: the vector, and its scale where it has one."""
    import numpy as np

    kind = {"f32": "<f4", "f16": "<f2", "int8": "i1", "binary": "u1"}[output_dtype]
    size = -(-dimension // 8) if output_dtype == "binary" else dimension
    scale = [("scale", "<f4")] if output_dtype == "int8" else []
    return np.dtype([("vector", kind, (size,)), *scale])


class Target:
    """The file `path` with what `about` says. `taken` are names that it gives to fields of its own."""

    documents = False  # whether queries are to find the rows, so that they are embedded as documents
    taken: tuple[str, ...] = ()

    def __init__(self, path: Path, about: About) -> None:
        self.path, self.about = path, about
        self.told: Callable[[int], None] = lambda rows: None  # of rows done, where writing is long work too
        self.scaled = about.output_dtype == "int8"

    def check(self) -> None:
        """Refuse what can be seen without any row."""
        check_replaceable(self.path)

    def see(self, number: int, row: Row) -> None:
        """Refuse a row, the one after `number` others, that `write` could not take."""
        check_fields(number, row, self.taken)

    def write(self, source: Source, spool: Spool) -> None:
        raise NotImplementedError


def open_target(path: Path, form: str | None, about: About, embedder: BaseEmbedder) -> Target:
    """What writes a file of this form: one of FORMS, or what its ending says; an index is made for `embedder`."""
    if path.parent != Path() and not path.parent.is_dir():
        raise NotFoundError(f"[embed] {path.parent} is not a folder; make it, or write elsewhere")
    chosen = form or ENDINGS.get(path.suffix.lower())
    if chosen == "index":
        from weft.embed.pipeline.indexing import Searchable

        return Searchable(path, about, embedder)
    if chosen == "parquet":
        from weft.embed.pipeline.columns import Columns

        return Columns(path, about)
    if chosen not in FORMS:
        raise InputError(f"[embed] {path.name}: files end in {', '.join(sorted(ENDINGS))}; name the output accordingly")
    return FORMS[chosen](path, about)


def taken_beside(scaled: bool) -> tuple[str, ...]:
    """The names that an output with the row's own fields gives to the vector, and to its scale where it has one."""
    return ("embedding", "scale") if scaled else ("embedding",)


def check_fields(number: int, row: Iterable[str], taken: Iterable[str]) -> None:
    """Refuse the row after `number` others where a field of its own has one of the names that are `taken`."""
    for name in taken:
        if name in row:
            raise InputError(
                f"[embed] row {number + 1} has a field {name!r} already, which the output needs; rename it"
            )


class Npy(Target):
    """A matrix."""

    def check(self) -> None:
        super().check()
        if self.scaled:
            check_replaceable(scales_path(self.path))

    def write(self, source: Source, spool: Spool) -> None:
        if self.scaled:
            _write_matrix(scales_path(self.path), "scale", spool)
        _write_matrix(self.path, "vector", spool)


def scales_path(path: Path) -> Path:
    """Where the scales of a matrix of int8 lie."""
    return path.with_suffix(".scales.npy")


def _write_matrix(path: Path, field: str, spool: Spool) -> None:
    import numpy as np

    kind = spool.dtype[field]
    with replacing(path) as out:
        header = {"descr": np.lib.format.dtype_to_descr(kind.base), "fortran_order": False}
        np.lib.format.write_array_header_1_0(out, {**header, "shape": (spool.rows, *kind.shape)})
        for records in spool.batches(ROWS):
            out.write(np.ascontiguousarray(records[field]).tobytes())


class JsonTarget(Target):
    """Rows with their vectors, an object a line."""

    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self.taken = taken_beside(self.scaled)

    def write(self, source: Source, spool: Spool) -> None:
        with replacing(self.path) as out:
            for rows, records in paired(source, spool):
                for row, record in zip(rows, records):
                    out.write(json_line(row, record["vector"], record["scale"] if self.scaled else None))


def json_line(row: Row, vector: np.ndarray, scale: float | None) -> bytes:
    """A row with its vector as JSON lines have it."""
    scaled = {} if scale is None else {"scale": _number(scale)}
    return json.dumps({**plain(row), "embedding": numbers_of(vector), **scaled}, ensure_ascii=False).encode() + b"\n"


class Text(Target):
    """Numbers, a vector a line."""

    def check(self) -> None:
        super().check()
        if self.scaled:
            raise InputError("[embed] text has no place for the scales of int8; write .jsonl, .npy or another")

    def write(self, source: Source, spool: Spool) -> None:
        with replacing(self.path) as out:
            for records in spool.batches(ROWS):
                for vector in records["vector"]:
                    out.write(text_line(vector))


def text_line(vector: np.ndarray) -> bytes:
    """The numbers of a vector."""
    return " ".join(map(repr, numbers_of(vector))).encode() + b"\n"


class Sqlite(Target):
    """A database of two tables. One that is there is replaced only where a run wrote it and nobody has it open."""

    def check(self) -> None:
        super().check()
        real = self.path.resolve()  # beside which SQLite has its own files, whatever leads there
        for ending in ("-wal", "-journal"):  # would be played into the new file
            if real.with_name(real.name + ending).exists():
                raise InputError(
                    f"[embed] {self.path.name} is a database that is open, or was not closed: "
                    f"there is {real.name}{ending}; choose another name"
                )
        if self.path.exists() and self.path.stat().st_size and not _is_output(self.path):
            raise InputError(
                f"[embed] {self.path.name} is there and is not what weft embed writes; choose another name"
            )

    def write(self, source: Source, spool: Spool) -> None:
        with replacing_path(self.path) as temporary:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = OFF")  # the file has its name only once it is whole
                connection.execute("BEGIN")
                self._fill(connection, source, spool)
                connection.execute("COMMIT")
            self.check()  # again: somebody may have come since

    def _fill(self, connection: sqlite3.Connection, source: Source, spool: Spool) -> None:
        connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value)")
        connection.executemany("INSERT INTO about VALUES (?, ?)", asdict(self.about).items())
        connection.execute(
            "CREATE TABLE vectors (id INTEGER PRIMARY KEY, text TEXT NOT NULL, fields TEXT NOT NULL, "
            "embedding BLOB NOT NULL, scale REAL)"
        )
        field, scaled = self.about.field, self.scaled
        pairs = (pair for rows, records in paired(source, spool) for pair in zip(rows, records))
        lines = (
            (
                number,
                row[field],
                json.dumps(plain({k: v for k, v in row.items() if k != field}), ensure_ascii=False),
                record["vector"].tobytes(),
                float(record["scale"]) if scaled else None,
            )
            for number, (row, record) in enumerate(pairs, 1)
        )
        connection.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?, ?)", lines)


def _is_output(path: Path) -> bool:
    """Whether a database has the tables of a run, and no others."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            said = connection.execute("SELECT value FROM about WHERE name = 'fingerprint'").fetchall()
    except sqlite3.Error:
        return False
    return {name for (name,) in names if not name.startswith("sqlite_")} == {"about", "vectors"} and len(said) == 1


def paired(source: Source, spool: Spool) -> Iterator[tuple[list[Row], np.ndarray]]:
    """Rows and their records, so many at a time; an error at the end where the source is not what it was."""
    rows = source.rows()
    for records in spool.batches(ROWS):
        part = list(islice(rows, len(records)))
        if len(part) != len(records):
            raise was_changed(source)
        yield part, records
    check_unchanged(source)  # again: texts that were put in since would stand beside vectors of others


def check_unchanged(source: Source) -> None:
    if source.began_as is not None and source.identity() != source.began_as:
        raise was_changed(source)


def was_changed(source: Source) -> InputError:
    return InputError(f"[embed] {source.name} was changed while it was read; give --restart to begin anew")


def plain(value: Any) -> Any:
    """The value as JSON has it: NaN is null, and what JSON has no word for, dates and decimals, is text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, dict):
        return {str(name): plain(held) for name, held in value.items()}
    return [plain(held) for held in value] if isinstance(value, (list, tuple)) else str(value)


def _number(value: Any) -> float:
    return float(f"{value:.9g}")  # nine digits give a float32 back exactly


def numbers_of(vector: np.ndarray) -> list[float | int]:
    """The numbers of a vector as text has them: whole ones as they are, others with the digits that they need."""
    return [_number(x) for x in vector.tolist()] if vector.dtype.kind == "f" else list(vector.tolist())


FORMS: dict[str, type[Target]] = {"npy": Npy, "jsonl": JsonTarget, "text": Text, "sqlite": Sqlite}
ENDINGS = {
    **{f".{name}": name for name in ("npy", "jsonl", "parquet", "sqlite", "index")},
    ".txt": "text",
    ".db": "sqlite",
}
