"""An index to a folder and back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.embed.index.canaries import TEXTS, canary_vectors
from weft.embed.index.files import (
    HEADER,
    MAX_COUNT,
    Saved,
    Writer,
    check_folder,
    checked,
    number,
    open_array,
    read_header,
)
from weft.embed.index.graph import Graph
from weft.embed.index.records import FileRecords, to_line
from weft.embed.index.rows import Rows
from weft.errors import FormatError, InputError

if TYPE_CHECKING:
    from weft.embed.index.index import Index

I = TypeVar("I", bound="Index")
MAX_CANARIES = 1000
ATTEMPTS = 3  # to open: a save may replace the files between the header and them


def save_index(index: Index, path: str | os.PathLike[str]) -> None:
    """Write `index`, whose rows are all alive."""
    with Writer(check_folder(path)) as writer:
        _save(index, writer)


def _save(index: Index, writer: Writer) -> None:
    rows = index._rows
    for name in rows.specification():
        writer.array(name, rows.array(name))
    lines = [to_line(index._records[row]) for row in range(rows.count)]
    writer.write("records", lines)
    writer.array("record_ends", np.cumsum([0, *map(len, lines)], dtype=np.int64))
    if index._canaries is None and index.embedder is not None:
        index._canaries = (list(TEXTS), canary_vectors(index.embedder))
    texts, vectors = index._canaries or ([], np.empty((0, rows.dim), np.float32))
    writer.array("canaries", vectors)
    if index._graph is not None:
        target = writer.folder / f"graph-{writer.generation}.bin"
        index._graph.save(target)
        writer.adopt("graph", target)
    about = {
        "fingerprint": index.fingerprint,
        "dimension": rows.dim,
        "metric": rows.metric,
        "storage": rows.storage,
        "codes": None if rows.tier is None else rows.tier.value,
        "count": rows.count,
        "canary_texts": texts,
    }
    if index._graph is not None:
        about["graph_scale"] = index._graph.scale
    writer.commit(about)


def open_index(cls: type[I], folder: Path, *, mapped: bool, verify: bool, load_graph: bool, threads: int | None) -> I:
    """The index that the folder's header names."""
    check_folder(folder)
    for attempt in range(ATTEMPTS):
        saved = read_header(folder)
        try:
            try:
                return _open(cls, saved, mapped, verify, load_graph, threads)
            except FileNotFoundError as error:  # never there, or a save removed it just now
                raise FormatError(f"[{Path(str(error.filename)).name}] is missing") from None
        except FormatError:
            if attempt == ATTEMPTS - 1 or read_header(folder).files == saved.files:
                raise
    raise AssertionError("unreachable")


def _open(cls: type[I], saved: Saved, mapped: bool, verify: bool, load_graph: bool, threads: int | None) -> I:
    about = saved.about
    count, dim = number(about, "count", MAX_COUNT), number(about, "dimension", 65_536)
    words: dict[str, Any] = {name: _word(about, name) for name in ("fingerprint", "metric", "storage")}
    codes = None if about.get("codes") is None else _word(about, "codes")
    try:
        index = cls(dim, codes=codes, threads=threads, **words)
        layout = index._rows.specification()
    except InputError as error:
        raise FormatError(f"[{HEADER}] {error}") from None
    how: dict[str, Any] = {"mapped": mapped, "verify": verify}
    arrays = {name: open_array(saved, name, (count, *shape), kind, **how) for name, (shape, kind) in layout.items()}
    if verify:
        _check_numbers(arrays)
    index._rows = Rows.of_arrays(arrays, dim, words["storage"], words["metric"], codes)
    ends = open_array(saved, "record_ends", (count + 1,), np.int64, **how)
    size = checked(saved, "records", verify=False).stat().st_size
    records = FileRecords(open_array(saved, "records", (size,), np.uint8, **how), ends, saved.path("records").name)
    _take_records(index, records, mapped)
    index._canaries = _canaries(saved, dim, verify)
    if load_graph and "graph" in saved.files:
        path = checked(saved, "graph", verify=True)
        index._graph = Graph.load(path, dim, index.metric, count, scale=_scale(about), threads=threads)
    return index


def _scale(about: dict[str, Any]) -> float | None:
    """What the rows of the graph were divided by; graphs of before there was a scale hold them as they are."""
    scale = about.get("graph_scale", 1.0)
    if scale is not None and not (type(scale) in (int, float) and 0 < scale < np.inf):
        raise FormatError(f"[{HEADER}] graph_scale is {str(scale)[:40]}; a positive number is wanted")
    return scale


def _take_records(index: Index, records: FileRecords, mapped: bool) -> None:
    if mapped:
        index._records, index._places, index.read_only = records, None, True
        return
    index._records = [records[row] for row in range(len(records))]
    index._places = {record.id: row for row, record in enumerate(index._records)}
    if len(index._places) != len(index._records):
        raise FormatError("[index] an id comes twice")


def _check_numbers(arrays: dict[str, np.ndarray]) -> None:
    """No NaN and no norm of zero: a search would stumble on them later."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise FormatError(f"[index] {name} holds NaN or infinity")
    for name in ("norms", "code_scales"):
        if name in arrays and not np.all(arrays[name] > 0):
            raise FormatError(f"[index] {name} holds numbers that are not positive")


def _canaries(saved: Saved, dim: int, verify: bool) -> tuple[list[str], np.ndarray] | None:
    texts = saved.about.get("canary_texts", [])
    good = isinstance(texts, list) and len(texts) <= MAX_CANARIES and all(isinstance(text, str) for text in texts)
    if not good:
        raise FormatError(f"[{HEADER}] canary_texts is not a list of texts")
    vectors = open_array(saved, "canaries", (len(texts), dim), np.float32, mapped=False, verify=verify)
    return (texts, vectors) if texts else None


def _word(about: dict[str, Any], name: str) -> str:
    value = about.get(name)
    if not isinstance(value, str) or len(value) > 1000:
        raise FormatError(f"[{HEADER}] {name} is not a word")
    return value
