"""The Parquet target: the source's columns with their types, and the vectors beside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.pipeline.sources import Parquet, Row, Source, parquet
from weft.embed.pipeline.spool import Spool
from weft.embed.pipeline.targets import (
    About,
    Target,
    check_fields,
    check_unchanged,
    paired,
    taken_beside,
    was_changed,
)
from weft.embed.pipeline.writers import ROWS, plain
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

EXACT = 2**53  # integers up to here are exact in float64


class Columns(Target):
    """A Parquet file. Columns of a Parquet source are copied. A column of another source has the type of all its
    values, or is JSON text where their types differ."""

    def __init__(self, path: Path, about: About) -> None:
        super().__init__(path, about)
        self.taken = taken_beside(self.scaled)
        self._kinds: dict[str, set[str]] = {}

    def check(self) -> None:
        super().check()
        parquet()

    def see(self, number: int, row: Row) -> None:
        super().see(number, row)
        for name, value in row.items():
            self._kinds.setdefault(name, set()).add(_kind(value))

    def write(self, source: Source, spool: Spool) -> None:
        module = parquet()
        import pyarrow as arrow

        vector = spool.dtype["vector"]
        kinds = [arrow.field("embedding", arrow.list_(arrow.from_numpy_dtype(vector.base), vector.shape[0]))]
        kinds += [arrow.field("scale", arrow.float32())] if self.scaled else []
        columns = self._schema(source, arrow)
        check_fields(0, columns.names, self.taken)  # in case the file has no rows, which `see` would check
        metadata = {f"weft.{name}": str(value) for name, value in asdict(self.about).items()}
        schema = arrow.schema([*columns, *kinds], metadata=metadata)
        parts = _taken_over(source, spool) if isinstance(source, Parquet) else _made(source, spool, columns, arrow)
        with replacing(self.path) as out, module.ParquetWriter(out, schema, compression="zstd") as writer:
            for arrays, records in parts:
                flat = arrow.array(records["vector"].reshape(-1))
                arrays.append(arrow.FixedSizeListArray.from_arrays(flat, vector.shape[0]))
                arrays += [arrow.array(records["scale"])] if self.scaled else []
                writer.write_table(arrow.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS)

    def _schema(self, source: Source, arrow: Any) -> Any:
        if isinstance(source, Parquet):
            return source.open().schema_arrow.remove_metadata()
        if source.own_rows:  # all have the same fields, and `see` was not called
            for row in islice(source.rows(), 1):
                self.see(0, row)
        types = {"str": arrow.string(), "bool": arrow.bool_(), "float": arrow.float64()}

        def column(found: set[str]) -> Any:
            some = found - {"NoneType"}
            if some and some <= {"int", "large int"}:
                return arrow.int64()
            if some == {"int", "float"}:
                return arrow.float64()
            return types.get(next(iter(some)), arrow.string()) if len(some) == 1 else arrow.string()

        kinds = self._kinds or {self.about.field: {"str"}}
        return arrow.schema([(name, column(found)) for name, found in kinds.items()])


def _kind(value: Any) -> str:
    """The type of a value; large integers are kinds of their own, as not every column can hold them."""
    if type(value) is int and abs(value) > EXACT:
        return "large int" if -(2**63) <= value < 2**63 else "huge int"
    return type(value).__name__


def _taken_over(source: Parquet, spool: Spool) -> Iterator[tuple[list[Any], np.ndarray]]:
    first = 0
    for batch in source.open().iter_batches(batch_size=ROWS):
        if first + batch.num_rows > spool.rows:
            raise was_changed(source)
        yield list(batch.columns), spool.records(first, batch.num_rows)
        first += batch.num_rows
    if first != spool.rows:
        raise was_changed(source)
    check_unchanged(source)


def _made(source: Source, spool: Spool, columns: Any, arrow: Any) -> Iterator[tuple[list[Any], np.ndarray]]:
    texts = {field.name for field in columns if field.type == arrow.string()}

    def value(name: str, given: Any) -> Any:
        """The value; in a column of text, other types become JSON."""
        if given is None or isinstance(given, str) or name not in texts:
            return given
        return json.dumps(plain(given), ensure_ascii=False)

    for rows, records in paired(source, spool):
        yield (
            [arrow.array([value(f.name, row.get(f.name)) for row in rows], f.type) for f in columns],
            records,
        )
