"""Rows with two answers to one prompt: `chosen` and `rejected`, with `prompt` as texts or messages, or each a whole
conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from weft.errors import InputError, TooLongError, WeftError
from weft.train.data.encode import Encoded, Encoder
from weft.train.data.lessons import Lessons
from weft.train.data.rows import Data, Row, read_rows
from weft.train.learner import Lesson
from weft.train.preference import Pair, flat_lessons

TOO_LONG = ("error", "drop")


@dataclass
class Pairs:
    """Pairs, and how many rows were left out because an answer was too long."""

    lessons: list[Pair] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    rows: int = 0
    dropped: int = 0

    @property
    def _flat(self) -> Lessons:
        return Lessons(flat_lessons(self.lessons))

    @property
    def tokens(self) -> int:
        return self._flat.tokens

    @property
    def targets(self) -> int:
        return self._flat.targets

    def digest(self) -> str:
        return self._flat.digest()

    def parted(self, part: float, seed: int) -> tuple[Pairs, Pairs]:
        """As for lessons."""
        rest, held = Lessons(self.lessons, self.sources, self.rows).parted(part, seed)  # type: ignore[arg-type]
        return Pairs(rest.lessons, rest.sources, rest.rows), Pairs(held.lessons, held.sources, held.rows)  # type: ignore[arg-type]


def read_pairs(data: Data, encoder: Encoder, *, max_length: int, too_long: str = "error") -> Pairs:
    """The pairs of a file or of rows."""
    if too_long not in TOO_LONG:
        what = f"must be one of {', '.join(TOO_LONG)}: a part of an answer cannot be preferred"
        raise InputError("train", what, field="too_long", given=too_long)
    found = Pairs()
    for row in read_rows(data):
        pair = _pair(row, encoder, max_length, too_long)
        if pair is None:
            found.dropped += 1
        else:
            found.lessons.append(pair)
            found.sources.append(found.rows)
        found.rows += 1
    if not found.lessons:
        what = "has no rows" if not found.rows else f"has {found.rows} rows, and none is left to learn from"
        raise InputError("train", what, field="data")
    return found


def _pair(row: Row, encoder: Encoder, most: int, too_long: str) -> Pair | None:
    import numpy as np

    missing = next((name for name in ("chosen", "rejected") if name not in row.fields), None)
    if missing is not None:
        raise row.fault(f"has no field {missing!r}; its fields are {row.named_fields}", advice="rename the fields")
    if row.fields["chosen"] == row.fields["rejected"]:
        raise row.fault("has the same answer as chosen and as rejected", advice="remove the row")
    lessons = []
    for name in ("chosen", "rejected"):
        ids, learnt = _answer(row, encoder, name)
        if not any(learnt[1:]):
            raise row.fault(f"has no token to learn in the field {name!r}")
        if len(ids) > most:
            if too_long == "drop":
                return None
            what = f"has {len(ids)} tokens in the field {name!r}, more than {most}"
            advice = "raise --max-length, or leave such rows out: --too-long drop"
            place = {"field": row.unit, "index": row.number}
            raise TooLongError(row.file, what, length=len(ids), limit=most, advice=advice, **place)
        lessons.append(Lesson(np.array(ids, np.int32), np.array(learnt, np.float32)))
    return Pair(*lessons)


def _answer(row: Row, encoder: Encoder, name: str) -> Encoded:
    try:
        prompt, answer = row.fields.get("prompt"), row.fields[name]
        if prompt is None:
            common = _common(row)
            return encoder.completed(row, answer[:common], answer[common:], name=name)
        if isinstance(prompt, list) and isinstance(answer, str):
            answer = [{"role": "assistant", "content": answer}]
        return encoder.completed(row, prompt, answer, name=name)
    except WeftError as error:
        if error.where == row.file:
            raise
        raise row.blamed(error) from error


def _common(row: Row) -> int:
    """How many messages both conversations begin with, the prompt."""
    both: list[Any] = [row.fields["chosen"], row.fields["rejected"]]
    if not all(isinstance(answer, list) and answer for answer in both):
        what = "must have a 'prompt' beside texts in 'chosen' and 'rejected', or lists of messages in both"
        raise row.fault(what, given=next(answer for answer in both if not isinstance(answer, list) or not answer))
    shorter = min(map(len, both))
    common = next((n for n in range(shorter) if both[0][n] != both[1][n]), shorter - 1)
    if common == 0:
        raise row.fault("has conversations that do not begin with the same message")
    return common
