"""Rows with a teacher's likeliest words to lessons.

A local teacher's row has ids: `teacher` with `prompt`, `tokens`, `top` (for each token up to K pairs of id and
log-probability), `end` and `text`. A server's row has texts: `logprobs` with the words as they were said. Their ids are
then the student's own, and must be the ones that the student's tokenizer gives to the same answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.encode import Encoder
from weft.train.data.lessons import Lessons, read_lessons
from weft.train.data.rows import Data, Row
from weft.train.learner import Lesson

if TYPE_CHECKING:
    import numpy as np

Tops = list[list[tuple[int, float]]]  # of each token: ids and log-probabilities
OTHER = "teacher and student must have the same tokenizer for this; train it on texts instead: weft distill train lora"


@frozen(eq=False)
class Taught(Lesson):
    """A lesson with a teacher's words at each place, int32 [n, K], and their log-probabilities, f32 [n, K]: minus
    infinity where there is none."""

    words: np.ndarray
    logs: np.ndarray

    def piece(self, first: int, end: int) -> Taught:
        return Taught(self.ids[first:end], self.shares[first:end], self.words[first:end], self.logs[first:end])

    @property
    def taught(self) -> tuple[np.ndarray, ...]:
        return self.words.astype("<i4"), self.logs.astype("<f4")

    def widened(self, words: int) -> Taught:
        """The same with room for so many words."""
        import numpy as np

        more = ((0, 0), (0, words - self.words.shape[1]))
        logs = np.pad(self.logs, more, constant_values=-np.inf)
        return Taught(self.ids, self.shares, np.pad(self.words, more), logs)


def read_taught(data: Data, encoder: Encoder, *, max_length: int, too_long: str = "error") -> Lessons:
    """The lessons of rows that a teacher has answered with its likeliest words."""

    def made(row: Row) -> Lesson:
        if "teacher" in row.fields:
            return _of_ids(row, encoder)
        if "logprobs" in row.fields:
            return _of_texts(row, encoder)
        advice = "label with --top-k, or train on the texts: weft distill train lora"
        raise row.fault("has no words of a teacher: neither `teacher` nor `logprobs`", advice=advice)

    return read_lessons(data, encoder, max_length=max_length, too_long=too_long, made=made)


def _of_ids(row: Row, encoder: Encoder) -> Taught:
    said = row.fields["teacher"]
    wanted = {"prompt": list, "tokens": list, "top": list, "text": str}
    if not isinstance(said, dict) or any(not isinstance(said.get(name), kind) for name, kind in wanted.items()):
        raise row.fault(f"must have {', '.join(wanted)} in the field 'teacher'", given=said)
    prompt, tokens = (_checked_ids(row, said[name]) for name in ("prompt", "tokens"))
    if not tokens or len(said["top"]) != len(tokens):
        raise row.fault("must have words of the teacher for each of its tokens, and at least one token")
    text = encoder.tokenizer.decode([*prompt, *tokens], skip_special=False)
    if text != said["text"]:
        raise InputError(row.file, "has other tokens than the student", field=row.unit, index=row.number, advice=OTHER)
    tops = [_checked_top(row, each) for each in said["top"]]
    end = said.get("end")
    return _lesson(prompt, tokens, tops, end if type(end) is int and end >= 0 else encoder.end)


def _of_texts(row: Row, encoder: Encoder) -> Taught:
    """The words of a server, which says them as texts."""
    ids, learnt = encoder.row(row)
    end = len(ids) - next((at for at, mine in enumerate(reversed(learnt)) if mine), 0)
    begin = end - next((at for at, mine in enumerate(reversed(learnt[:end])) if not mine), end)
    prompt, answer = ids[:begin], ids[begin:end]  # the last thing that is learnt
    places, tops = row.fields["logprobs"], []
    if not isinstance(places, list):
        raise row.fault("must have a list in the field 'logprobs'", given=places)
    for at, place in enumerate(places):
        try:
            said, _, others = place
            pairs = [(str(text), float(value)) for text, value in others]
        except (TypeError, ValueError):
            raise row.fault("must have a word, its log-probability and those beside it", given=place) from None
        if at >= len(answer) or _only_id(encoder, said) != answer[at]:
            raise InputError(
                row.file, f"says {said!r} where the student has another token", field=row.unit, index=row.number,
                advice=OTHER,
            )  # fmt: skip
        named = [(_only_id(encoder, text), value) for text, value in pairs]
        tops.append([(id, value) for id, value in named if id is not None and math.isfinite(value)])
    return _lesson(prompt, answer, tops, None)


def _only_id(encoder: Encoder, text: Any) -> int | None:
    """The token that is this text; None if it is several."""
    found = encoder.tokenizer.encode(str(text), add_special=False)
    return found[0] if len(found) == 1 and encoder.tokenizer.decode(found, skip_special=False) == text else None


def _lesson(prompt: Sequence[int], tokens: Sequence[int], tops: Tops, end: int | None) -> Taught:
    import numpy as np

    ids = [*prompt, *tokens, *([] if end is None or list(tokens[-1:]) == [end] else [end])]
    shares = np.zeros(len(ids), np.float32)
    shares[len(prompt) :] = 1
    most = max((len(top) for top in tops), default=0) or 1
    words, logs = np.zeros((len(ids), most), np.int32), np.full((len(ids), most), -np.inf, np.float32)
    for at, top in enumerate(tops, len(prompt)):
        for place, (id, value) in enumerate(top):
            words[at, place], logs[at, place] = id, value
    return Taught(np.array(ids, np.int32), shares, words, logs)


def _checked_ids(row: Row, ids: list[Any]) -> list[int]:
    if any(type(id) is not int or id < 0 for id in ids):
        raise row.fault("must have whole numbers from 0 on as tokens", given=ids[:5])
    return ids


def _checked_top(row: Row, top: Any) -> list[tuple[int, float]]:
    try:
        pairs = [(id, float(value)) for id, value in top]
    except (TypeError, ValueError):
        raise row.fault("must have pairs of a token and its log-probability", given=top) from None
    if any(type(id) is not int or id < 0 or not value <= 1e-3 for id, value in pairs):
        raise row.fault("must have tokens from 0 on with log-probabilities of at most 0", given=pairs[:3])
    return [(id, value) for id, value in pairs if math.isfinite(value)]
