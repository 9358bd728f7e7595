"""The loop: rows in batches to the spool, then the spool and the source to the target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.base import How
from weft.embed.pipeline.sources import Row, Source
from weft.embed.pipeline.spool import Spool
from weft.embed.pipeline.targets import About, open_target, spool_dtype
from weft.embed.results import Embedded, EmbedInterrupted
from weft.errors import InputError, TooLongError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder

BATCH_ROWS = 2048
BATCH_CHARACTERS = 4 << 20


@frozen
class Report:
    """What a run did: rows in all, those that an earlier run had done, what was cut, seconds."""

    rows: int
    resumed: int
    dropped_texts: int
    dropped_tokens: int
    seconds: float


def embed_file(
    embedder: BaseEmbedder,
    source: Source,
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
    """Embed every row of `source` into the file `target`; its ending, or `form`, says what it is.

    A run that was killed or interrupted goes on when it is started again in the same way, and its file is byte for
    byte that of a run nobody stopped. `told` is called with the number of rows done after each batch.
    """
    started = time.monotonic()
    place = Path(target)
    write = open_target(place, form, embedder)
    about = About(
        embedder._identity(How(adapter=embedder._adapter(adapter))), embedder.dimension, output_dtype, source.field
    )
    options = {"prompt_name": prompt_name, "truncate": truncate or embedder.truncate, "adapter": adapter}
    settings = {"source": source.identity(), "field": source.field, "output_dtype": output_dtype, **options}
    settings["fingerprint"] = about.fingerprint
    dtype = spool_dtype(embedder.dimension, output_dtype)
    with Spool(place.with_name(f"{place.name}.part"), settings, dtype, restart=restart) as spool:
        told(spool.rows)
        for batch in _batches(source.rows(spool.rows)):
            _add(spool, embedder, source, batch, {**options, "output_dtype": output_dtype})
            told(spool.rows)
        if source.identity() != settings["source"]:
            raise InputError(f"[embed] {source.name} was changed while it was read; give --restart to begin anew")
        write(place, source, spool, about)
        spool.remove()
    report = (spool.rows, spool.resumed, spool.dropped_texts, spool.dropped_tokens)
    return Report(*report, time.monotonic() - started)


def _add(spool: Spool, embedder: BaseEmbedder, source: Source, batch: list[Row], options: dict[str, Any]) -> None:
    texts = [row[source.field] for row in batch]
    try:
        made = embedder.embed(texts, progress=False, **options)
    except EmbedInterrupted as error:
        spool.append(_records(error.done, spool.dtype), error.done.dropped)
        raise
    except TooLongError as error:
        row = spool.rows + error.index + 1
        message = (
            f"[embed] {source.name}: the text of row {row} has {error.length} tokens, the model takes {error.limit}; "
            "give --truncate head, tail or chunk"
        )
        raise TooLongError(message, length=error.length, limit=error.limit, index=row - 1) from None
    spool.append(_records(made, spool.dtype), made.dropped)


def _records(made: Embedded, dtype: np.dtype) -> np.ndarray:
    import numpy as np

    records = np.empty(len(made), dtype)
    records["vector"] = made.vectors
    if made.scales is not None:
        records["scale"] = made.scales
    return records


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(batch) == BATCH_ROWS or size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
