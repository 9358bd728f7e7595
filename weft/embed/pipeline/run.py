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
from weft.embed.pipeline.spool import Known, Spool, text_digest
from weft.embed.pipeline.targets import About, Target, check_unchanged, was_changed
from weft.embed.pipeline.writers import record_dtype, records_of
from weft.embed.results import EmbedInterrupted, check_output
from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder

BATCH_ROWS = 2048
BATCH_CHARACTERS = 4 << 20
LEAST_CHARACTERS = 1 << 14  # a step or two; fewer would not keep two cores busy
CACHED_CHARACTERS = 1 << 18
BATCH_SECONDS = 2.0


@frozen
class Report:
    """What a run did.

    Of all `rows`, `resumed` come from an unfinished run, `reused` from the index that was there, and `cached` from a
    cache; `removed` rows of that index are not in the new one. `dropped_tokens` of `dropped_texts` were cut off, not
    counting rows of the index.
    """

    rows: int
    resumed: int
    dropped_texts: int
    dropped_tokens: int
    seconds: float
    cached: int = 0
    reused: int = 0
    removed: int = 0


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
    replace: bool = False,
    on_progress: Callable[[int], None] = lambda rows: None,
) -> Report:
    """Embed every row of `source` (a path, or a source of `open_source`) into the file `target`, whose format is `form`
    or that of its ending.

    A run that was killed or interrupted resumes when it is started again with the same arguments, and its file is byte
    for byte that of an uninterrupted run; if the source has changed since, it keeps the vectors of texts that are still
    there. An index that is there already is updated: only texts that it does not have are embedded, and rows of others
    leave it. `restart` embeds everything again. An index of another source or another model is refused; `replace`
    replaces it. A target that cannot be written, or a row that cannot be used, is refused before anything is embedded,
    except for texts with too many tokens.
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
    known = out.known(rows, options, replace=replace)
    out.progress = on_progress
    with Spool(beside, settings, record_dtype(embedder.dimension, output_dtype), restart=restart) as spool:
        how = {**options, "output_dtype": output_dtype}
        adding = _Adding(spool, embedder, rows, how, None if restart else known)
        adding.add_all(out)
        out.write(rows, spool)
        spool.remove()
    return adding.report(out, time.monotonic() - started)


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


class _Adding:
    """Adds batches of rows to a spool: vectors of known texts as they are, the others embedded."""

    def __init__(
        self, spool: Spool, embedder: BaseEmbedder, source: Source, options: dict[str, Any], index: Known | None
    ) -> None:
        self._spool, self._embedder, self._source, self._options = spool, embedder, source, options
        self._stopped, self._index = spool.known(), index
        self.resumed = self.reused = self.cached = 0

    def add_all(self, target: Target) -> None:
        """Add all rows of the source that the spool does not have, after `target` has seen every row."""
        spool, source = self._spool, self._source
        _look_through(source, target)
        target.progress(spool.rows)
        pace = _Pace()
        for batch in pace.batches(source.rows(spool.rows)):
            pace.count(len(batch), self._add(batch))
            target.progress(spool.rows)
        check_unchanged(source)
        if source.total not in (None, spool.rows):
            raise was_changed(source)

    def report(self, target: Target, seconds: float) -> Report:
        spool = self._spool
        return Report(
            rows=spool.rows,
            resumed=spool.resumed + self.resumed,
            dropped_texts=spool.dropped_texts,
            dropped_tokens=spool.dropped_tokens,
            seconds=seconds,
            cached=self.cached,
            reused=self.reused,
            removed=target.removed,
        )

    def _add(self, batch: list[Row]) -> int:
        """Add a batch, and return how many of its vectors did not have to be computed."""
        import numpy as np

        spool, texts = self._spool, [row[self._source.field] for row in batch]
        digests = [text_digest(text) for text in texts]
        records, dropped = np.empty(len(batch), spool.dtype), np.zeros(len(batch), np.int64)
        missing = np.arange(len(batch))
        if self._stopped is not None:
            found = self._stopped.find(digests)
            missing = np.flatnonzero(found < 0)
            records[found >= 0] = self._stopped.read(found[found >= 0])
            dropped[found >= 0] = spool.earlier_dropped[found[found >= 0]]
            self.resumed += len(batch) - len(missing)
        if self._index is not None:
            found = self._index.find([digests[i] for i in missing])
            records[missing[found >= 0]] = self._index.read(found[found >= 0])
            self.reused += int((found >= 0).sum())
            missing = missing[found < 0]
        cached = self._embed(texts, digests, missing, records, dropped)
        spool.append(records, digests, dropped)
        self.cached += cached
        return len(batch) - len(missing) + cached

    def _embed(
        self, texts: list[str], digests: list[bytes], missing: np.ndarray, records: np.ndarray, dropped: np.ndarray
    ) -> int:
        """Embed the texts `missing` into `records`, and return how many of them a cache had."""
        if not len(missing):
            return 0
        spool = self._spool
        try:
            made = self._embedder.embed([texts[i] for i in missing], progress=False, **self._options)
        except EmbedInterrupted as error:
            done = missing[: len(error.done)]
            records[done], dropped[done] = records_of(error.done, spool.dtype), error.done.dropped
            whole = len(texts) if len(done) == len(missing) else int(missing[len(done)])
            spool.append(records[:whole], digests[:whole], dropped[:whole])
            raise
        except TooLongError as error:
            if error.field != "text":  # a prompt
                raise
            row = spool.rows + int(missing[error.index]) + 1
            advice = "use --truncate head, tail or chunk"
            raise error.but(where=self._source.name, field="row", index=row, advice=advice) from None
        records[missing], dropped[missing] = records_of(made, spool.dtype), made.dropped
        return made.cached


class _Pace:
    """Batches that take about BATCH_SECONDS, so that a killed run loses little and progress is visible.

    A vector does not depend on its batch, so the clock only decides when vectors are written to disk.
    """

    def __init__(self) -> None:
        self._fresh = 1.0  # the share of the last batch that was computed
        self._most = LEAST_CHARACTERS

    def count(self, rows: int, ready: int) -> None:
        """Of the last batch's `rows`, `ready` did not have to be computed."""
        self._fresh = 1 - ready / rows

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
