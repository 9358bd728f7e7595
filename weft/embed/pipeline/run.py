"""The loop: rows in batches to the spool, then the spool and the source to the target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.inputs import How
from weft.embed.pipeline.formats import open_source, open_target
from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Spool
from weft.embed.pipeline.targets import About, Target, check_unchanged, was_changed
from weft.embed.pipeline.writers import record_dtype, records_of
from weft.embed.results import EmbedInterrupted, check_output
from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder

BATCH_ROWS = 2048
BATCH_CHARACTERS = 4 << 20
LEAST_CHARACTERS = 1 << 14  # a step or two; fewer would not keep two cores busy
CACHED_CHARACTERS = 1 << 18
BATCH_SECONDS = 2.0


@frozen
class Report:
    """What a run did: all rows, those of an earlier run, texts and tokens cut, seconds, rows from a cache."""

    rows: int
    resumed: int
    dropped_texts: int
    dropped_tokens: int
    seconds: float
    cached: int = 0


def embed_file(
    embedder: BaseEmbedder,
    source: Source | str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    prompt_name: str | None = None,
    truncate: str | None = None,
    output_dtype: str = "f32",
    adapter: str | None = None,
    form: str | None = None,
    restart: bool = False,
    on_progress: Callable[[int], None] = lambda rows: None,
) -> Report:
    """Embed every row of `source` (a path, or a source of `open_source`) into the file `target`, whose format is `form`
    or that of its ending.

    A run that was killed or interrupted resumes when it is started again with the same arguments, and its file is byte
    for byte that of an uninterrupted run. A target that cannot be written, or a row that cannot be used, is refused
    before anything is embedded, except for texts with too many tokens.
    `on_progress` is called with the number of rows done after each batch of some seconds, and again while a large
    index gets a graph; `source.total` is the number of rows, once it is known. Rows of an index are embedded as
    documents unless a prompt is named. Chunks of documents that are too long are embedded in windows, unless `truncate`
    is given.
    """
    started = time.monotonic()
    place = Path(target)
    rows = source if isinstance(source, Source) else open_source(source, embedder=embedder)
    _check_places(rows, place)
    identity = embedder._identity(How(adapter=embedder._adapter(adapter)))
    about = About(identity, embedder.dimension, check_output(output_dtype), rows.field)
    out = open_target(place, form, about, embedder)
    out.check()
    beside = place.with_name(f"{place.name}.part")
    rows.leave_out(place, beside)
    if out.documents and prompt_name is None:
        prompt_name = embedder.document_prompt_name  # searches embed queries with the query prompt
    options = {"prompt_name": prompt_name, "truncate": truncate or _truncate(embedder, rows), "adapter": adapter}
    rows.began_as = rows.identity()
    settings = {"source": rows.began_as, "field": rows.field, "output_dtype": output_dtype, **options}
    settings["fingerprint"] = about.fingerprint
    with Spool(beside, settings, record_dtype(embedder.dimension, output_dtype), restart=restart) as spool:
        _look_through(rows, out)
        on_progress(spool.rows)
        pace = _Pace()
        for batch in pace.batches(rows.rows(spool.rows)):
            pace.count(len(batch), _add(spool, embedder, rows, batch, {**options, "output_dtype": output_dtype}))
            on_progress(spool.rows)
        check_unchanged(rows)
        if rows.total not in (None, spool.rows):
            raise was_changed(rows)
        out.progress = on_progress
        out.write(rows, spool)
        spool.remove()
    report = (spool.rows, spool.resumed, spool.dropped_texts, spool.dropped_tokens)
    return Report(*report, time.monotonic() - started, pace.cached)


def _check_places(source: Source, target: Path) -> None:
    try:
        same = target.samefile(source.path)
    except OSError:
        same = False  # one of them does not exist
    if same:
        raise InputError("embed", f"the output is also the input: {target}", advice="write elsewhere")


def _truncate(embedder: BaseEmbedder, source: Source) -> str:
    """The default truncation. A chunk may have more tokens alone than inside its document, which must not end a run."""
    return "chunk" if source.own_rows and embedder.truncate == "error" else embedder.truncate


def _look_through(source: Source, target: Target) -> None:
    """Read, check and count all rows before hours of work."""
    if source.own_rows:
        return
    source.total = 0
    for number, row in enumerate(source.rows()):
        target.see(number, row)
        source.total = number + 1


def _add(spool: Spool, embedder: BaseEmbedder, source: Source, batch: list[Row], options: dict[str, Any]) -> int:
    """Embed a batch and return how many of its vectors came from a cache."""
    texts = [row[source.field] for row in batch]
    try:
        made = embedder.embed(texts, progress=False, **options)
    except EmbedInterrupted as error:
        spool.append(records_of(error.done, spool.dtype), error.done.dropped)
        raise
    except TooLongError as error:
        if error.field != "text":  # a prompt
            raise
        row = spool.rows + error.index + 1
        advice = "use --truncate head, tail or chunk"
        raise error.but(where=source.name, field="row", index=row, advice=advice) from None
    spool.append(records_of(made, spool.dtype), made.dropped)
    return made.cached


class _Pace:
    """Batches that take about BATCH_SECONDS, so that a killed run loses little and progress is visible.

    A vector does not depend on its batch, so the clock only decides when vectors are written to disk.
    """

    def __init__(self) -> None:
        self.cached = 0
        self._fresh = 1.0  # the share of the last batch that was computed rather than cached
        self._most = LEAST_CHARACTERS

    def count(self, rows: int, cached: int) -> None:
        self.cached += cached
        self._fresh = 1 - cached / rows

    def batches(self, rows: Iterator[Row]) -> Iterator[list[Row]]:
        batch: list[Row] = []
        size = 0
        for row in rows:
            batch.append(row)
            size += sum(len(value) for value in row.values() if isinstance(value, str))
            if len(batch) == BATCH_ROWS or size >= self._most:
                started = time.monotonic()
                yield batch
                self._learn(size, max(time.monotonic() - started, 1e-3))
                batch, size = [], 0
        if batch:
            yield batch

    def _learn(self, size: int, seconds: float) -> None:
        wanted = size * self._fresh * BATCH_SECONDS / seconds if self._fresh else CACHED_CHARACTERS
        self._most = int(min(max(wanted, LEAST_CHARACTERS), 2 * self._most, BATCH_CHARACTERS))
