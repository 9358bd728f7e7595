"""The loss, the perplexity and the accuracy of a model on rows, as it is served."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen
from weft.runtime.decoder import Decoder
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step
from weft.train.data.encode import Encoder
from weft.train.data.lessons import Lessons, read_lessons
from weft.train.data.rows import Data
from weft.train.learner import Lesson
from weft.train.training import Base

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime.adapters import Adapter
    from weft.runtime.checkpoint import Checkpoint

CHUNK = 256  # tokens whose logits are in memory together


@frozen
class Measured:
    """What was found of one row or of all: the sum of its losses, its targets, and how many of them the model would
    have chosen."""

    total: float
    targets: int
    right: int
    rows: int = 1
    exact: int = 0  # rows whose every target is right: decoding greedily would give these targets

    @property
    def loss(self) -> float:
        """The mean loss of a target, in nats."""
        return self.total / self.targets

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))

    @property
    def accuracy(self) -> float:
        return self.right / self.targets


def together(measures: Iterable[Measured]) -> Measured:
    """The measure of all rows."""
    every = list(measures)
    counts = {name: sum(getattr(one, name) for one in every) for name in ("targets", "right", "rows", "exact")}
    return Measured(math.fsum(one.total for one in every), **counts)


class Evaluation:
    """Iterate over it: the measure of each lesson, in their order; `lessons.sources` says of which row it is."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        data: Data,
        *,
        adapter: str | os.PathLike[str] | None = None,
        loss: str | None = None,
        max_length: int = 2048,
        too_long: str = "error",
        compute: str | None = None,
        threads: int | None = None,
        backend: str | None = None,
    ) -> None:
        base = Base.open(model)
        encoder = Encoder(base.tokenizer, base.template, base.end, loss)
        most = min(max_length, base.positions)
        self.lessons: Lessons = read_lessons(data, encoder, max_length=most, too_long=too_long)
        longest = max(len(lesson.ids) for lesson in self.lessons.lessons)
        self.decoder = Decoder(base.checkpoint, context=longest, compute=compute, threads=threads, backend=backend)
        self.adapter = None if adapter is None else self.decoder.adapters.load("measured", Path(adapter))

    def __iter__(self) -> Iterator[Measured]:
        for lesson in self.lessons.lessons:
            yield measured(self.decoder, lesson, self.adapter)


def evaluate(model: str | os.PathLike[str], data: Data, **options: Any) -> Measured:
    """The loss, perplexity and accuracy of a model, with an `adapter` or without, on all rows of a file or of Python.

    Options are those of `Evaluation`, over which one iterates for the measures of single rows.
    """
    return together(Evaluation(model, data, **options))


def measured(decoder: Decoder, lesson: Lesson, adapter: Adapter | None = None) -> Measured:
    """The measure of one sequence; its logits are never in memory together."""
    total, right, targets = 0.0, 0, lesson.targets
    for places, logits in chosen_logits(decoder, lesson.ids[:-1], lesson.shares[1:] != 0, adapter):
        wanted = lesson.ids[places + 1]
        total += math.fsum(_losses(logits, wanted).tolist())
        right += int((logits.argmax(axis=1) == wanted).sum())
    return Measured(total, targets, right, exact=int(right == targets))


def chosen_logits(
    decoder: Decoder, ids: np.ndarray, chosen: np.ndarray, adapter: Adapter | None = None, chunk: int = CHUNK
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read a sequence, `chunk` tokens at a time: the places of the tokens chosen, and the logits after them."""
    import numpy as np

    holding = decoder.holding()
    holding.grow(len(ids))
    try:
        for first in range(0, len(ids), chunk):
            part = ids[first : first + chunk]
            rows = np.flatnonzero(chosen[first : first + chunk]).astype(np.int32)
            holding.ready()
            step = build_step(
                [part],
                starts=[first],
                rows=rows if len(rows) else np.array([len(part) - 1], np.int32),
                pages=[holding.row],
                slots=slots_of([holding]),
                adapters=None if adapter is None else [adapter.index],
            )
            logits = decoder.run(step)
            holding.advance()
            if len(rows):
                yield first + rows, logits
    finally:
        holding.release()


def _losses(logits: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(len(wanted)), wanted]


def measure_checkpoint(
    checkpoint: Checkpoint, lessons: Sequence[Lesson], *, compute: str | None, adapter: Path | None = None
) -> Measured:
    """The measure of a checkpoint on these lessons."""
    decoder = Decoder(checkpoint, context=max(len(lesson.ids) for lesson in lessons), compute=compute)
    loaded = None if adapter is None else decoder.adapters.load("measured", adapter)
    return together(measured(decoder, lesson, loaded) for lesson in lessons)
