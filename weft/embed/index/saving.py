"""What an index holds, written to a folder and read back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weft.embed.index.canaries import MAX_FINGERPRINT
from weft.embed.index.files import HEADER, MAX_COUNT, Opened, Saved, Writer, number, read_header
from weft.embed.index.graph import Graph
from weft.embed.index.records import FileRecords, Record, to_line
from weft.embed.index.rows import Rows, checked_norms
from weft.errors import BackendError, BusyError, FormatError, InputError
from weft.frozen import frozen

MAX_CANARIES = 1000
MAX_DIMENSION = 65_536
ATTEMPTS = 8  # to open a folder: a save may replace the files after the header was read
DATA = ("records", "record_ends", "canaries")  # beside the arrays of the rows


class LaidGraph:
    """The graph in the folder of an index that was opened without it: searches do not use it, a save updates it.

    `_rows` are the graph's numbers of the first rows of the index, None while both number them alike.
    """

    def __init__(self, saved: Saved) -> None:
        self.saved = Saved(saved.folder.resolve(), saved.about, saved.files)
        self._count = number(saved.about, "count", MAX_COUNT)
        self._rows: np.ndarray | None = None

    def is_there(self) -> bool:
        return self.saved.path("graph").exists()

    def renumber(self, old: np.ndarray) -> None:
        """Row `old[i]` of the index becomes row i; rows added since the graph was saved have the highest numbers."""
        known = np.arange(self._count) if self._rows is None else self._rows
        self._rows = known[old[old < len(known)]]

    def load(self, dim: int, metric: str, threads: int | None) -> Graph:
        """The graph in the file, unchanged; its checksum is verified."""
        with Opened(self.saved, ["graph"]) as opened:
            opened.checked("graph", verify=True)
        path, scale = self.saved.path("graph"), _scale(self.saved.about)
        return Graph.load(path, dim, metric, self._count, scale=scale, threads=threads)

    def carried_on(
        self, rows: Rows, threads: int | None, on_progress: Callable[[int, int], None] | None
    ) -> Graph | None:
        """The graph updated to `rows`, all of them alive; None where the file was removed."""
        if not self.is_there():
            return None
        try:
            graph = self.load(rows.dim, rows.metric, threads)
        except (FormatError, BackendError) as error:
            if not self.is_there():
                return None  # another save has replaced it
            advice = "build the graph again with build_graph(), or leave it out with save(graph=False)"
            raise error.but(advice=advice if isinstance(error, FormatError) else f"{error.advice}; {advice}") from None
        kept = np.arange(self._count) if self._rows is None else self._rows
        graph.remove(np.setdiff1d(np.arange(self._count), kept, assume_unique=True))
        graph.renumber(kept)
        graph.add(np.arange(len(kept), rows.count), rows.vectors, *([] if on_progress is None else [on_progress]))
        return graph


@frozen
class Contents:
    """What a folder keeps of an index: a save writes it, opening the folder gives it back."""

    rows: Rows
    records: list[Record] | FileRecords  # FileRecords where the files are mapped
    fingerprint: str
    canaries: tuple[list[str], np.ndarray] | None  # texts, and their vectors [n, dim]
    built: dict[str, Any] | None = None  # what a build made the rows from: weft/embed/pipeline/earlier.py
    graph: Graph | LaidGraph | None = None  # LaidGraph where it was not loaded


def write_contents(writer: Writer, contents: Contents, graph: Graph | None) -> None:
    """Write and commit `contents`, whose rows are all alive, with a graph of them."""
    rows, records = contents.rows, contents.records
    for name in rows.specification():
        writer.array(name, rows.array(name))
    lines = [to_line(records[row]) for row in range(rows.count)]
    writer.write("records", lines)
    writer.array("record_ends", np.cumsum([0, *map(len, lines)], dtype=np.int64))
    texts, vectors = contents.canaries or ([], np.empty((0, rows.dim), np.float32))
    writer.array("canaries", vectors)
    if graph is not None:
        target = writer.folder / f"graph-{writer.generation}.bin"
        graph.save(target)
        writer.adopt("graph", target)
    about = {
        "fingerprint": contents.fingerprint,
        "dimension": rows.dim,
        "metric": rows.metric,
        "storage": rows.storage,
        "codes": None if rows.tier is None else rows.tier.value,
        "count": rows.count,
        "canary_texts": texts,
    }
    if contents.built is not None:
        about["built"] = contents.built
    if graph is not None:
        about["graph_scale"] = graph.scale
    writer.commit(about)


def read_contents(
    folder: Path, *, mapped: bool, verify: bool | None, load_graph: bool, threads: int | None
) -> tuple[Contents, Saved]:
    """What the folder holds, and its header. `verify` None compares the checksums of what is read into memory."""
    for _ in range(ATTEMPTS):
        saved = read_header(folder)
        try:
            return _read(saved, mapped, verify, load_graph, threads), saved
        except FormatError:
            if read_header(folder).files == saved.files:
                raise
    raise BusyError("index", f"{folder} was saved {ATTEMPTS} times while it was being opened", advice="try again")


def _read(saved: Saved, mapped: bool, verify: bool | None, load_graph: bool, threads: int | None) -> Contents:
    about = saved.about
    count, dim = number(about, "count", MAX_COUNT), number(about, "dimension", MAX_DIMENSION, least=1)
    fingerprint, metric, storage = (_word(about, name) for name in ("fingerprint", "metric", "storage"))
    codes = None if about.get("codes") is None else _word(about, "codes")
    try:
        layout = Rows(dim, storage, metric, codes).specification()
    except InputError as error:
        raise FormatError(HEADER, error.what, given=error.given, advice=error.advice, field=error.field) from None
    check = not mapped if verify is None else verify
    how: dict[str, Any] = {"mapped": mapped, "verify": check}
    others = [role for role in saved.files if verify and role not in (*layout, *DATA)]
    with Opened(saved, [*layout, *DATA, *others]) as opened:
        arrays = {name: opened.array(name, (count, *shape), kind, **how) for name, (shape, kind) in layout.items()}
        ends = opened.array("record_ends", (count + 1,), np.int64, **how)
        data = opened.array("records", (opened.size("records"),), np.uint8, **how)
        canaries = _canaries(opened, dim, check)
        for role in others:
            opened.checked(role, verify=True)
    records = FileRecords(data, ends, saved.path("records").name)
    if check:
        _check_numbers(arrays, metric, records)
    rows = Rows.of_arrays(arrays, dim, storage, metric, codes)
    graph = LaidGraph(saved) if "graph" in saved.files else None
    return Contents(
        rows,
        records if mapped else _in_memory(records),
        fingerprint,
        canaries,
        _built(about),
        graph.load(dim, metric, threads) if graph is not None and load_graph else graph,
    )


def _in_memory(records: FileRecords) -> list[Record]:
    listed = [records[row] for row in range(len(records))]
    if len({record.id for record in listed}) != len(listed):
        raise FormatError("index", "two rows have the same id", advice="restore the folder, or build the index again")
    return listed


def _scale(about: dict[str, Any]) -> float | None:
    """The number that the graph's rows were divided by; 1 for graphs saved before there was a scale."""
    scale = about.get("graph_scale", 1.0)
    if scale is not None and not (type(scale) in (int, float) and 0 < scale < np.inf):
        raise FormatError(HEADER, "must be a positive number", given=scale, field="graph_scale")
    return scale


def _check_numbers(arrays: dict[str, np.ndarray], metric: str, records: FileRecords) -> None:
    """Refuse NaN, and vectors whose lengths cannot be compared: a search would give wrong results for them."""
    for name, array in arrays.items():
        if array.dtype.kind == "f" and name != "vectors" and not np.isfinite(array).all():
            raise FormatError("index", "holds NaN or infinity", field=name)
    if "code_scales" in arrays and not np.all(arrays["code_scales"] > 0):
        raise FormatError("index", "holds numbers that are not positive", field="code_scales")
    try:
        checked_norms(arrays["vectors"], metric, lambda row: records[row].id, arrays.get("norms"))
    except InputError as error:
        raise FormatError(
            error.where, error.what, advice="open the index with verify=False, delete the id and save"
        ) from None


def _canaries(opened: Opened, dim: int, verify: bool) -> tuple[list[str], np.ndarray] | None:
    texts = opened.saved.about.get("canary_texts", [])
    good = isinstance(texts, list) and len(texts) <= MAX_CANARIES and all(isinstance(text, str) for text in texts)
    if not good:
        raise FormatError(HEADER, f"must be a list of at most {MAX_CANARIES} strings", field="canary_texts")
    vectors = opened.array("canaries", (len(texts), dim), np.float32, mapped=False, verify=verify)
    return (texts, vectors) if texts else None


def _built(about: dict[str, Any]) -> dict[str, Any] | None:
    built = about.get("built")
    if built is not None and not isinstance(built, dict):
        raise FormatError(HEADER, "must be an object", given=built, field="built")
    return built


def _word(about: dict[str, Any], name: str) -> str:
    value = about.get(name)
    if not isinstance(value, str) or len(value) > MAX_FINGERPRINT:
        raise FormatError(HEADER, f"must be a string of at most {MAX_FINGERPRINT} characters", given=value, field=name)
    return value
