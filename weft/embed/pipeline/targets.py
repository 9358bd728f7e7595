"""What a finished run leaves: one file, written from the source's rows and the spool's vectors, whole or not at all.

.npy      vectors alone: [rows, dimension] of float32, float16 or int8, or [rows, ceil(dimension / 8)] bytes
.jsonl    the row with "embedding", and "scale" for int8
.txt      the numbers of a vector a line
.parquet  the row's columns and "embedding", a list of fixed length; the fingerprint is in the file's metadata
.index    a folder with a `weft.Index` (indexing.py)
.sqlite   table vectors (id, text, fields, embedding, scale); table about has the fingerprint
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Parquet, Row, Source, parquet
from weft.embed.pipeline.spool import Spool
from weft.errors import InputError, NotFoundError
from weft.frozen import frozen
from weft.weights.files import replacing

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


Write = Callable[[Path, Source, Spool, About], None]


def spool_dtype(dimension: int, output_dtype: str) -> np.dtype:
    """A record of the spool: the vector, and its scale where it has one."""
    import numpy as np

    kind = {"f32": "<f4", "f16": "<f2", "int8": "i1", "binary": "u1"}[output_dtype]
    size = -(-dimension // 8) if output_dtype == "binary" else dimension
    scale = [("scale", "<f4")] if output_dtype == "int8" else []
    return np.dtype([("vector", kind, (size,)), *scale])


def open_target(path: Path, form: str | None, embedder: BaseEmbedder) -> Write:
    """What writes a file of this form: one of FORMS, or what its ending says; an index is made for `embedder`."""
    if path.parent != Path() and not path.parent.is_dir():
        raise NotFoundError(f"[embed] {path.parent} is not a folder; make it, or write elsewhere")
    chosen = form or ENDINGS.get(path.suffix.lower())
    if chosen == "index":
        from weft.embed.pipeline.indexing import write_index

        return partial(write_index, embedder=embedder)
    if chosen not in FORMS:
        raise InputError(f"[embed] {path.name}: files end in {', '.join(sorted(ENDINGS))}; name the output accordingly")
    return FORMS[chosen]


def write_npy(path: Path, source: Source, spool: Spool, about: About) -> None:
    import numpy as np

    vector = spool.dtype["vector"]
    shape = (spool.rows, *vector.shape)
    with replacing(path) as out:
        descr = np.lib.format.dtype_to_descr(vector.base)
        np.lib.format.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": shape})
        for records in spool.batches(ROWS):
            out.write(np.ascontiguousarray(records["vector"]).tobytes())


def write_jsonl(path: Path, source: Source, spool: Spool, about: About) -> None:
    with replacing(path) as out:
        for row, record in _pairs(source, spool):
            scale = {"scale": _number(record["scale"])} if "scale" in (spool.dtype.names or ()) else {}
            line = {**row, "embedding": numbers_of(record["vector"]), **scale}
            out.write(json.dumps(line, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def write_text(path: Path, source: Source, spool: Spool, about: About) -> None:
    with replacing(path) as out:
        for records in spool.batches(ROWS):
            for vector in records["vector"]:
                out.write(" ".join(map(repr, numbers_of(vector))).encode() + b"\n")


def write_sqlite(path: Path, source: Source, spool: Spool, about: About) -> None:
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        with closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = OFF")  # the file has its name only once it is whole
            connection.execute("BEGIN")
            _fill_tables(connection, source, spool, about)
            connection.execute("COMMIT")
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _fill_tables(connection: sqlite3.Connection, source: Source, spool: Spool, about: About) -> None:
    connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value)")
    connection.executemany("INSERT INTO about VALUES (?, ?)", asdict(about).items())
    connection.execute(
        "CREATE TABLE vectors (id INTEGER PRIMARY KEY, text TEXT NOT NULL, fields TEXT NOT NULL, "
        "embedding BLOB NOT NULL, scale REAL)"
    )
    scaled = "scale" in (spool.dtype.names or ())

    def rows() -> Iterator[tuple[Any, ...]]:
        for number, (row, record) in enumerate(_pairs(source, spool), 1):
            fields = json.dumps({k: v for k, v in row.items() if k != about.field}, ensure_ascii=False, default=str)
            scale = float(record["scale"]) if scaled else None
            yield number, row[about.field], fields, record["vector"].tobytes(), scale

    connection.executemany("INSERT INTO vectors VALUES (?, ?, ?, ?, ?)", rows())


def write_parquet(path: Path, source: Source, spool: Spool, about: About) -> None:
    module = parquet()
    import pyarrow as arrow

    columns = _schema(source, arrow)
    names = [field.name for field in columns]
    if clash := {"embedding", "scale"} & set(names):
        raise InputError(f"[embed] {source.name} has a column {clash.pop()!r} already; rename it")
    vector = spool.dtype["vector"]
    kinds = [arrow.field("embedding", arrow.list_(arrow.from_numpy_dtype(vector.base), vector.shape[0]))]
    kinds += [arrow.field("scale", arrow.float32())] if "scale" in (spool.dtype.names or ()) else []
    told = {f"weft.{name}": str(value) for name, value in asdict(about).items()}
    schema = arrow.schema([*columns, *kinds], metadata=told)
    rows = source.rows()
    with replacing(path) as out, module.ParquetWriter(out, schema, compression="zstd") as writer:
        for records in spool.batches(ROWS):
            given = [_plain(row, columns, arrow) for row in islice(rows, len(records))]
            arrays = [arrow.array([row.get(name) for row in given], columns.field(name).type) for name in names]
            flat = arrow.array(records["vector"].reshape(-1))
            arrays.append(arrow.FixedSizeListArray.from_arrays(flat, vector.shape[0]))
            arrays += [arrow.array(records["scale"])] if len(kinds) > 1 else []
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS)


def _schema(source: Source, arrow: Any) -> Any:
    """The columns of a source: a Parquet file's own, else what all values of a field are, JSON where they differ."""
    if isinstance(source, Parquet):
        return source.open().schema_arrow.remove_metadata()
    kinds: dict[str, set[type]] = {}
    for row in source.rows():
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value))
    types = {str: arrow.string(), bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64()}

    def column(found: set[type]) -> Any:
        some = found - {type(None)}
        if some == {int, float}:
            return arrow.float64()
        return types.get(next(iter(some)), arrow.string()) if len(some) == 1 else arrow.string()

    return arrow.schema([(name, column(found)) for name, found in kinds.items()])


def _plain(row: Row, columns: Any, arrow: Any) -> Row:
    """The row as its columns take it: what is no text in a column of texts is written as JSON."""

    def value(name: str, given: Any) -> Any:
        if given is not None and not isinstance(given, str) and columns.field(name).type == arrow.string():
            return json.dumps(given, ensure_ascii=False)
        return given

    return {name: value(name, given) for name, given in row.items()}


def _pairs(source: Source, spool: Spool) -> Iterator[tuple[Row, Any]]:
    rows = source.rows()
    for records in spool.batches(ROWS):
        yield from zip(islice(rows, len(records)), records)


def _number(value: Any) -> float:
    return float(f"{value:.9g}")  # nine digits give a float32 back exactly


def numbers_of(vector: np.ndarray) -> list[float | int]:
    """The numbers of a vector as text has them: whole ones as they are, others with the digits that they need."""
    return [_number(x) for x in vector.tolist()] if vector.dtype.kind == "f" else list(vector.tolist())


FORMS: dict[str, Write] = {
    "npy": write_npy,
    "jsonl": write_jsonl,
    "text": write_text,
    "parquet": write_parquet,
    "sqlite": write_sqlite,
}
ENDINGS = {".txt": "text", ".db": "sqlite", ".index": "index", **{f".{name}": name for name in FORMS if name != "text"}}
