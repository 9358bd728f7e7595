"""A few lessons beside an adapter, on which `weft merge` measures what merging costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from weft.errors import FormatError, InputError
from weft.train.learner import Lesson

SAMPLE = "sample.jsonl"
SAMPLE_TOKENS = 4096


def sample_of(lessons: Sequence[Lesson]) -> list[Lesson]:
    """The first lessons, as many as are quickly measured."""
    kept: list[Lesson] = []
    tokens = 0
    for lesson in lessons:
        if kept and tokens + len(lesson.ids) > SAMPLE_TOKENS:
            break
        kept.append(lesson)
        tokens += len(lesson.ids)
    return kept


def sample_text(lessons: Sequence[Lesson]) -> str:
    """Lessons as lines of JSON, for SAMPLE."""
    rows = ({"ids": lesson.ids.tolist(), "shares": lesson.shares.tolist()} for lesson in sample_of(lessons))
    return "".join(json.dumps(row) + "\n" for row in rows)


def read_sample(path: Path, vocab_size: int) -> list[Lesson]:
    """The lessons of a file SAMPLE; FormatError for anything else."""
    import numpy as np

    lessons = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
            lesson = Lesson(np.array(row["ids"], np.int32), np.array(row["shares"], np.float32))
            right = lesson.ids.ndim == 1 and lesson.ids.shape == lesson.shares.shape and lesson.targets > 0
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise FormatError(
                path.name, f"is not a row of ids and shares: {error}", field="line", index=number
            ) from None
        if not right or not 0 <= lesson.ids.min() <= lesson.ids.max() < vocab_size:
            advice = "is this adapter of another model? --data measures on rows of your own"
            raise InputError(path.name, "does not fit the model", field="line", index=number, advice=advice)
        lessons.append(lesson)
    if not lessons:
        raise FormatError(path.name, "has no rows")
    return lessons
