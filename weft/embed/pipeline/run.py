"""The loop: rows in batches to the spool, then the spool and the source to the target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.inputs import How
from weft.embed.outputs import check_output
from weft.embed.pipeline.sources import Row, Source, open_source
from weft.embed.pipeline.spool import Spool
from weft.embed.pipeline.targets import About, Target, check_unchanged, open_target, spool_dtype, was_changed
from weft.embed.results import Embedded, EmbedInterrupted
from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder

BATCH_ROWS = 2048
BATCH_CHARACTERS = 4 << 20
LEAST_CHARACTERS = 1 << 14  # a step or two; fewer would keep no two cores busy
CACHED_CHARACTERS = 1 << 18
BATCH_SECONDS = 2.0


@frozen
class Report:
    """What a run did: rows in all, those that an earlier run had done or a cache had, what was cut, seconds."""

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
    told: Callable[[int], None] = lambda rows: None,
) -> Report:
    """Embed every row of `source`, a path or what `open_source` gives, into the file `target`; its ending, or `form`,
    says what that is.

    A run that was killed or interrupted goes on when it is started again in the same way, and its file is byte for
    byte that of a run nobody stopped. What is wrong with the target, or with a row but for a text that has too many
    tokens, is said before anything is embedded.
    `told` is called with the number of rows done after each batch, which takes some seconds, and again where a large
    index gets a graph; `source.total` is how many there are, where that is known. Rows of an index are embedded as
    documents unless a prompt is named, and chunks of documents that are too long lose nothing unless `truncate` says
    so.
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
        prompt_name = embedder.document_prompt_name  # queries have theirs, and would be compared with bare texts
    options = {"prompt_name": prompt_name, "truncate": truncate or _truncate(embedder, rows), "adapter": adapter}
    rows.began_as = rows.identity()
    settings = {"source": rows.began_as, "field": rows.field, "output_dtype": output_dtype, **options}
    settings["fingerprint"] = about.fingerprint
    with Spool(beside, settings, spool_dtype(embedder.dimension, output_dtype), restart=restart) as spool:
        _look_through(rows, out)
        told(spool.rows)
        pace = _Pace()
        for batch in pace.batches(rows.rows(spool.rows)):
            pace.count(len(batch), _add(spool, embedder, rows, batch, {**options, "output_dtype": output_dtype}))
            told(spool.rows)
        check_unchanged(rows)
        if rows.total not in (None, spool.rows):
            raise was_changed(rows)
        out.told = told
        out.write(rows, spool)
        spool.remove()
    report = (spool.rows, spool.resumed, spool.dropped_texts, spool.dropped_tokens)
    return Report(*report, time.monotonic() - started, pace.cached)


def _check_places(source: Source, target: Path) -> None:
    try:
        same = target.samefile(source.path)
    except OSError:
        same = False  # one of them is not there
    if same:
        raise InputError(f"[embed] the output is the input, {target}; write elsewhere")


def _truncate(embedder: BaseEmbedder, source: Source) -> str:
    """A chunk that has more tokens alone than inside its document must not end the run."""
    return "chunk" if source.own_rows and embedder.truncate == "error" else embedder.truncate


def _look_through(source: Source, target: Target) -> None:
    """Read every row once and count them: hours of work must not end at one that was wrong all the time."""
    if source.own_rows:
        return
    source.total = 0
    for number, row in enumerate(source.rows()):
        target.see(number, row)
        source.total = number + 1


def _add(spool: Spool, embedder: BaseEmbedder, source: Source, batch: list[Row], options: dict[str, Any]) -> int:
    """Embed a batch; how many of its vectors were in a cache."""
    texts = [row[source.field] for row in batch]
    try:
        made = embedder.embed(texts, progress=False, **options)
    except EmbedInterrupted as error:
        spool.append(_records(error.done, spool.dtype), error.done.dropped)
        raise
    except TooLongError as error:
        row = spool.rows + error.index
        said = str(error).replace(f"text {error.index} ", f"{source.name}: the text of row {row + 1} ", 1)
        message = said.replace("truncate='head', 'tail' or 'chunk'", "--truncate head, tail or chunk")
        raise TooLongError(message, length=error.length, limit=error.limit, index=row) from None
    spool.append(_records(made, spool.dtype), made.dropped)
    return made.cached


def _records(made: Embedded, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    records = np.empty(len(made), dtype)
    records["vector"] = made.vectors
    if made.scales is not None:
        records["scale"] = made.scales
    return records


class _Pace:
    """Batches that take about BATCH_SECONDS, so that a run that is killed loses little and who watches sees it move.

    Vectors do not depend on what else is in their batch, so that the clock decides nothing but when they are kept.
    """

    def __init__(self) -> None:
        self.cached = 0
        self._fresh = 1.0  # the share of the last batch that was computed, and not in a cache
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
