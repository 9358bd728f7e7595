"""An index to a folder and back."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from weft.embed.index.canaries import MAX_FINGERPRINT, canary_texts, canary_vectors
from weft.embed.index.files import HEADER, MAX_COUNT, Opened, Saved, Writer, check_folder, number, read_header
from weft.embed.index.graph import Graph
from weft.embed.index.records import FileRecords, to_line
from weft.embed.index.rows import Rows, checked_norms
from weft.errors import BackendError, BusyError, FormatError, InputError

if TYPE_CHECKING:
    from weft.embed.index.index import Index

I = TypeVar("I", bound="Index")
MAX_CANARIES = 1000
ATTEMPTS = 8  # to open: a save may replace the files between the header and them
DATA = ("records", "record_ends", "canaries")  # beside the arrays of the rows


class LaidGraph:
    """The graph in the folder of an index that was opened without it: a save carries it on, a search does not use it.

    `_rows` are what the graph calls the first rows of the index, None while it calls them so too.
    """

    def __init__(self, saved: Saved) -> None:
        self.saved = Saved(saved.folder.resolve(), saved.about, saved.files)
        self._count = number(saved.about, "count", MAX_COUNT)
        self._rows: np.ndarray | None = None

    def is_there(self) -> bool:
        return self.saved.path("graph").exists()

    def renumber(self, old: np.ndarray) -> None:
        """Row `old[i]` of the index becomes row i; the rows that were added since have the highest numbers."""
        known = np.arange(self._count) if self._rows is None else self._rows
        self._rows = known[old[old < len(known)]]

    def load(self, dim: int, metric: str, threads: int | None) -> Graph:
        """As it lies there."""
        with Opened(self.saved, ["graph"]) as opened:
            opened.checked("graph", verify=True)
        path, scale = self.saved.path("graph"), _scale(self.saved.about)
        return Graph.load(path, dim, metric, self._count, scale=scale, threads=threads)

    def carried_on(self, rows: Rows, threads: int | None, told: Callable[[int, int], None] | None) -> Graph | None:
        """The graph of the rows as they are now, all of them alive; None where somebody removed the file."""
        if not self.is_there():
            return None
        try:
            graph = self.load(rows.dim, rows.metric, threads)
        except (FormatError, BackendError) as error:
            if not self.is_there():
                return None  # by now: another save ended meanwhile
            advice = "build_graph() makes another graph, and save(graph=False) leaves it out"
            raise type(error)(f"{error}; {advice}") from None
        kept = np.arange(self._count) if self._rows is None else self._rows
        graph.remove(np.setdiff1d(np.arange(self._count), kept, assume_unique=True))
        graph.renumber(kept)
        graph.add(np.arange(len(kept), rows.count), rows.vectors, *([] if told is None else [told]))
        return graph


def open_writer(index: Index, path: str | os.PathLike[str], overwrite: bool) -> Writer:
    """A save of `index` to `path`; where it was opened from there, the folder must be as it was."""
    folder = check_folder(path)
    return Writer(folder, None if overwrite else index._known.get(os.path.realpath(folder)))


def write_index(index: Index, writer: Writer, graph: Graph | None) -> None:
    """Write `index`, whose rows are all alive, with a graph of them."""
    laid = index._laid
    if graph is None and laid is not None and laid.saved.folder == writer.folder.resolve() and laid.is_there():
        logging.getLogger("weft").warning("[index] %s had a graph, which is left out", writer.folder)
    try:
        _write(index, writer, graph)
    finally:
        if writer.saved is not None:  # though something failed after that
            index._known[os.path.realpath(writer.folder)] = writer.saved
            if graph is not None:
                index._laid = LaidGraph(writer.saved) if index._graph is None else None


def _write(index: Index, writer: Writer, graph: Graph | None) -> None:
    rows = index._rows
    for name in rows.specification():
        writer.array(name, rows.array(name))
    lines = [to_line(index._records[row]) for row in range(rows.count)]
    writer.write("records", lines)
    writer.array("record_ends", np.cumsum([0, *map(len, lines)], dtype=np.int64))
    if index._canaries is None and index.embedder is not None:
        known = canary_texts(index.embedder)
        index._canaries = (known, canary_vectors(index.embedder, known))
    texts, vectors = index._canaries or ([], np.empty((0, rows.dim), np.float32))
    writer.array("canaries", vectors)
    if graph is not None:
        target = writer.folder / f"graph-{writer.generation}.bin"
        graph.save(target)
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
    if graph is not None:
        about["graph_scale"] = graph.scale
    writer.commit(about)


def open_index(
    cls: type[I],
    path: str | os.PathLike[str],
    *,
    mapped: bool,
    verify: bool | None,
    load_graph: bool,
    threads: int | None,
) -> I:
    """The index that the folder's header names. `verify` None compares the checksums of what is read into memory."""
    folder = check_folder(path)
    for _ in range(ATTEMPTS):
        saved = read_header(folder)
        try:
            index = _open(cls, saved, mapped, verify, threads)
            _take_graph(index, saved, load_graph)
            index._known[os.path.realpath(folder)] = saved
            return index
        except FormatError:
            if read_header(folder).files == saved.files:
                raise
    raise BusyError(f"[index] {folder} is being saved, again and again; try once more")


def _open(cls: type[I], saved: Saved, mapped: bool, verify: bool | None, threads: int | None) -> I:
    about = saved.about
    count, dim = number(about, "count", MAX_COUNT), number(about, "dimension", 65_536)
    words: dict[str, Any] = {name: _word(about, name) for name in ("fingerprint", "metric", "storage")}
    codes = None if about.get("codes") is None else _word(about, "codes")
    try:
        index = cls(dim, codes=codes, threads=threads, **words)
        layout = index._rows.specification()
    except InputError as error:
        raise FormatError(f"[{HEADER}] {error}") from None
    check = not mapped if verify is None else verify
    how: dict[str, Any] = {"mapped": mapped, "verify": check}
    others = [role for role in saved.files if verify and role not in (*layout, *DATA)]
    with Opened(saved, [*layout, *DATA, *others]) as opened:
        arrays = {name: opened.array(name, (count, *shape), kind, **how) for name, (shape, kind) in layout.items()}
        ends = opened.array("record_ends", (count + 1,), np.int64, **how)
        data = opened.array("records", (opened.size("records"),), np.uint8, **how)
        index._canaries = _canaries(opened, dim, check)
        for role in others:
            opened.checked(role, verify=True)
    records = FileRecords(data, ends, saved.path("records").name)
    if check:
        _check_numbers(arrays, words["metric"], records)
    index._rows = Rows.of_arrays(arrays, dim, words["storage"], words["metric"], codes)
    _take_records(index, records, mapped)
    return index


def _take_graph(index: Index, saved: Saved, load: bool) -> None:
    if "graph" not in saved.files:
        return
    laid = LaidGraph(saved)
    if load:
        index._graph = laid.load(index.dimension, index.metric, index._threads)
    else:
        index._laid = laid


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


def _check_numbers(arrays: dict[str, np.ndarray], metric: str, records: FileRecords) -> None:
    """Nothing that a search would stumble on later: NaN, and vectors whose lengths cannot be compared."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name != "vectors" and not np.isfinite(array).all():
            raise FormatError(f"[index] {name} holds NaN or infinity")
    if "code_scales" in arrays and not np.all(arrays["code_scales"] > 0):
        raise FormatError("[index] code_scales holds numbers that are not positive")
    try:
        checked_norms(arrays["vectors"], metric, lambda row: records[row].id, arrays.get("norms"))
    except InputError as error:
        way_out = "or open the index with verify=False, delete the id and save"
        raise FormatError(f"{error}, {way_out}") from None


def _canaries(opened: Opened, dim: int, verify: bool) -> tuple[list[str], np.ndarray] | None:
    texts = opened.saved.about.get("canary_texts", [])
    good = isinstance(texts, list) and len(texts) <= MAX_CANARIES and all(isinstance(text, str) for text in texts)
    if not good:
        raise FormatError(f"[{HEADER}] canary_texts is not a list of texts")
    vectors = opened.array("canaries", (len(texts), dim), np.float32, mapped=False, verify=verify)
    return (texts, vectors) if texts else None


def _word(about: dict[str, Any], name: str) -> str:
    value = about.get(name)
    if not isinstance(value, str) or len(value) > MAX_FINGERPRINT:
        raise FormatError(f"[{HEADER}] {name} is not a word")
    return value
