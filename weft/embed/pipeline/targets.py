"""Targets: the output of a run, written from the source's rows and the spool's vectors, completely or not at all.

.npy      vectors alone: [rows, dimension] of float32, float16 or int8, or [rows, ceil(dimension / 8)] bytes; the
          scales of int8 are beside it in .scales.npy
.jsonl    the row with "embedding", and "scale" for int8
.txt      the numbers of a vector, one vector per line
.parquet  the row's columns and "embedding", a list of fixed length; the fingerprint is in the file's metadata
.index    a folder with a `weft.Index` (indexing.py)
.sqlite   table vectors (id, text, fields, embedding, scale); table about has the fingerprint

A target that cannot be written, or a row that it cannot take, is refused before anything is embedded: `check`, `see`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Known, Spool
from weft.embed.pipeline.writers import ROWS, plain, scales_path, write_lines, write_matrix
from weft.errors import InputError
from weft.frozen import frozen
from weft.weights.files import check_replaceable, replacing, replacing_path

if TYPE_CHECKING:
    import numpy as np


@frozen
class About:
    """What a file of vectors contains."""

    fingerprint: str
    dimension: int
    output_dtype: str
    field: str


class Target:
    """The file `path` with the vectors of `about`. `taken` are the names of its own fields."""

    documents = False  # whether queries will search the rows, which are then embedded as documents
    taken: tuple[str, ...] = ()

    def __init__(self, path: Path, about: About) -> None:
        self.path, self.about = path, about
        self.progress: Callable[[int], None] = lambda rows: None  # called with rows done, if writing takes long
        self.removed = 0  # rows of the existing output that the new one does not have
        self.scaled = about.output_dtype == "int8"

    def check(self) -> None:
        """Refuse a target that cannot be written, whatever the rows are."""
        check_replaceable(self.path)

    def known(self, source: Source, how: Mapping[str, Any], *, replace: bool) -> Known | None:
        """The vectors of the existing output that are those of the same texts embedded as `how` says, if any can be
        taken over. An output that holds something else is refused unless `replace`."""
        return None

    def see(self, number: int, row: Row) -> None:
        """Refuse the row with this number (from 0) if `write` could not take it."""
        check_fields(number, row, self.taken)

    def write(self, source: Source, spool: Spool) -> None:
        raise NotImplementedError


def taken_beside(scaled: bool) -> tuple[str, ...]:
    """The names of the vector, and of its scale for int8, beside a row's own fields."""
    return ("embedding", "scale") if scaled else ("embedding",)


def check_fields(number: int, row: Iterable[str], taken: Iterable[str]) -> None:
    """Refuse the row with this number (from 0) if one of its fields has a name that is `taken`."""
    for name in taken:
        if name in row:
            raise InputError(
                "embed",
                f"already has a field {name!r}, which the output needs",
                field="row",
                index=number + 1,
                advice="rename that field",
            )


class Npy(Target):
    """A .npy matrix."""

    def check(self) -> None:
        super().check()
        if self.scaled:
            check_replaceable(scales_path(self.path))

    def write(self, source: Source, spool: Spool) -> None:
        places = {"scale": scales_path(self.path)} if self.scaled else {}
        for field, path in {**places, "vector": self.path}.items():
            with replacing(path) as out:
                write_matrix(out, field, spool.dtype, spool.rows, spool.batches(ROWS))


class JsonTarget(Target):
    """Rows with their vectors, one object per line."""

    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self.taken = taken_beside(self.scaled)

    def write(self, source: Source, spool: Spool) -> None:
        with replacing(self.path) as out:
            for rows, records in paired(source, spool):
                write_lines(out, "jsonl", rows, records)


class Text(Target):
    """Numbers, one vector per line."""

    def check(self) -> None:
        super().check()
        if self.scaled:
            raise InputError(
                "embed", "text cannot hold the scales of int8", advice="write .jsonl, .npy or another form"
            )

    def write(self, source: Source, spool: Spool) -> None:
        with replacing(self.path) as out:
            for records in spool.batches(ROWS):
                write_lines(out, "text", (), records)


class Sqlite(Target):
    """A database of two tables. An existing one is replaced only if a run wrote it and no program has it open."""

    def check(self) -> None:
        super().check()
        real = self.path.resolve()  # SQLite puts its files beside the real path, not beside a link
        for ending in ("-wal", "-journal"):  # SQLite would apply it to the new file
            if real.with_name(real.name + ending).exists():
                raise InputError(
                    "embed",
                    f"{self.path.name} is a database that is open, or was not closed: there is {real.name}{ending}",
                    advice="choose another name",
                )
        if self.path.exists() and self.path.stat().st_size and not _is_output(self.path):
            raise InputError(
                "embed",
                f"{self.path.name} exists and was not written by weft embed",
                advice="choose another name",
            )

    def write(self, source: Source, spool: Spool) -> None:
        with replacing_path(self.path) as temporary:
            with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA journal_mode = OFF")  # the file gets its name once it is complete
                connection.execute("BEGIN")
                self._fill(connection, source, spool)
                connection.execute("COMMIT")
            self.check()  # again: another program may have opened it since

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
    """Whether a database has the tables of a run and no others."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            said = connection.execute("SELECT value FROM about WHERE name = 'fingerprint'").fetchall()
    except sqlite3.Error:
        return False
    return {name for (name,) in names if not name.startswith("sqlite_")} == {"about", "vectors"} and len(said) == 1


def paired(source: Source, spool: Spool) -> Iterator[tuple[list[Row], np.ndarray]]:
    """Rows and their records, ROWS at a time; raises at the end if the source has changed."""
    rows = source.rows()
    for records in spool.batches(ROWS):
        part = list(islice(rows, len(records)))
        if len(part) != len(records):
            raise was_changed(source)
        yield part, records
    check_unchanged(source)  # else changed texts would be paired with vectors of older ones


def check_unchanged(source: Source) -> None:
    if source.began_as is not None and source.identity() != source.began_as:
        raise was_changed(source)


def was_changed(source: Source) -> InputError:
    return InputError(
        "embed",
        f"{source.name} changed while it was read",
        advice="run the same command again; texts that are still the same are not embedded again",
    )


FORMS: dict[str, type[Target]] = {"npy": Npy, "jsonl": JsonTarget, "text": Text, "sqlite": Sqlite}
