"""All rows of a source as lessons: those that are too long are an error, cut, split or left out, as is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256

from weft.errors import InputError, TooLongError
from weft.train.data.encode import Encoder
from weft.train.data.rows import Data, Row, read_rows
from weft.train.learner import Lesson

TOO_LONG = ("error", "cut", "split", "drop")


@dataclass
class Lessons:
    """Lessons, the row that each is from (counted from 0), and what became of rows that were too long."""

    lessons: list[Lesson] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    rows: int = 0
    cut: int = 0
    split: int = 0
    dropped: int = 0

    @property
    def tokens(self) -> int:
        return sum(len(lesson.ids) for lesson in self.lessons)

    @property
    def targets(self) -> int:
        return sum(lesson.targets for lesson in self.lessons)

    def digest(self) -> str:
        """A hash of all ids and shares, in their order."""
        hashed = sha256()
        for lesson in self.lessons:
            hashed.update(len(lesson.ids).to_bytes(8, "little"))
            hashed.update(lesson.ids.astype("<i4").tobytes())
            hashed.update(lesson.shares.astype("<f4").tobytes())
            for more in lesson.taught:
                hashed.update(more.tobytes())
        return hashed.hexdigest()

    def parted(self, part: float, seed: int) -> tuple[Lessons, Lessons]:
        """The lessons without a part of the rows, and those of that part, chosen by the seed; at least one row each."""
        from weft.train.order import held_out

        rows = sorted(set(self.sources))
        chosen = held_out(rows, part, seed)
        return self._of(set(rows) - chosen), self._of(chosen)

    def _of(self, rows: set[int]) -> Lessons:
        kept = [(lesson, row) for lesson, row in zip(self.lessons, self.sources) if row in rows]
        return Lessons([lesson for lesson, _ in kept], [row for _, row in kept], len(rows))


def read_lessons(
    data: Data,
    encoder: Encoder,
    *,
    max_length: int,
    too_long: str = "error",
    made: Callable[[Row], Lesson] | None = None,
) -> Lessons:
    """The lessons of a file or of rows; InputError if there is nothing to learn. `made` is what makes one of a row that
    is not a text, completion or conversation."""
    if too_long not in TOO_LONG:
        raise InputError("train", f"must be one of {', '.join(TOO_LONG)}", field="too_long", given=too_long)
    if max_length < 2:
        raise InputError("train", "must be at least 2", field="max_length", given=max_length)
    found = Lessons()
    for row in read_rows(data):
        whole = _encoded(row, encoder) if made is None else made(row)
        lessons = [fitted for fitted in _fitted(row, whole, max_length, too_long, found) if fitted.targets]
        found.dropped += not lessons
        found.lessons += lessons
        found.sources += [found.rows] * len(lessons)
        found.rows += 1
    if not found.lessons:
        what = "has no rows" if not found.rows else f"has {found.rows} rows, and none is left to learn from"
        advice = "see --max-length and --too-long" if found.rows else None
        raise InputError("train", what, field="data", advice=advice)
    return found


def _encoded(row: Row, encoder: Encoder) -> Lesson:
    import numpy as np

    ids, learnt = encoder.row(row)
    if not any(learnt[1:]):
        raise row.fault(f"has no token to learn among its {len(ids)}", advice="remove the row, or use --loss all")
    return Lesson(np.array(ids, np.int32), np.array(learnt, np.float32))


def _fitted(row: Row, lesson: Lesson, most: int, too_long: str, found: Lessons) -> Iterator[Lesson]:
    count = len(lesson.ids)
    if count <= most:
        yield lesson
    elif too_long == "error":
        raise TooLongError(
            row.file,
            f"has {count} tokens, more than {most}",
            field=row.unit,
            index=row.number,
            length=count,
            limit=most,
            advice="raise --max-length, or choose what to do with --too-long cut, split or drop",
        )
    elif too_long == "cut":
        found.cut += 1
        yield lesson.piece(0, most)
    elif too_long == "split":
        found.split += 1
        # A piece begins with the last token of the one before, so that every token but the very first is predicted.
        yield from (lesson.piece(first, first + most) for first in range(0, count, most - 1) if first + 1 < count)
