"""Rows of texts that belong together, or do not, in the forms that sentence-transformers' losses take.

A row has a first text and a second one, or an anchor, a positive and negatives, and where the loss wants it a label.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.train.data.rows import Data, Row, listed, read_rows

if TYPE_CHECKING:
    import numpy as np

FIRST = ("anchor", "query", "question", "sentence1", "sentence_A", "text1", "premise")
SECOND = ("positive", "document", "passage", "answer", "sentence2", "sentence_B", "text2", "hypothesis")
ALONE = ("text", "sentence")
LABELS = ("score", "label", "similarity_score")
VECTORS = ("vector", "embedding", "label", "labels")
ASKED = ("anchor", "query", "question")  # what is searched with; other first texts are like the second ones
_NEGATIVE = re.compile(r"negative(_\d+)?")

# What a row of each loss has: how many texts at least and at most (0 for any number), and its label.
FORMS: Mapping[str, tuple[int, int, str]] = {
    "ranking": (2, 0, ""),
    "triplet": (3, 3, ""),
    "cosine": (2, 2, "number"),
    "cosent": (2, 2, "number"),
    "mse": (1, 2, "vector"),
    "binary": (2, 2, "chance"),
}
WANTED = {
    "ranking": "'anchor' and 'positive', and as many negatives as other rows",
    "triplet": "'anchor', 'positive' and 'negative'",
    "cosine": "'sentence1', 'sentence2' and a 'score'",
    "cosent": "'sentence1', 'sentence2' and a 'score'",
    "mse": "'text' and a 'vector', a list of numbers",
    "binary": "'query', 'document' and a 'label' of 0 to 1, or 'query', 'positive' and 'negative'",
}


@dataclass
class Examples:
    """Examples of one form: texts [rows][columns], and labels, float64 [rows] or [rows, D], where the loss wants them.

    `asked` is whether the first text of each is a query, and the others are documents.
    """

    texts: list[tuple[str, ...]]
    labels: np.ndarray | None
    rows: int
    asked: bool
    sources: list[int]

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def width(self) -> int:
        """Texts of an example."""
        return len(self.texts[0])

    def digest(self) -> str:
        """A hash of all texts and labels, in their order."""
        hashed = sha256()
        for texts in self.texts:
            for text in texts:
                data = text.encode("utf-8", "surrogatepass")
                hashed.update(len(data).to_bytes(8, "little") + data)
        if self.labels is not None:
            hashed.update(self.labels.astype("<f8").tobytes())
        return hashed.hexdigest()

    def parted(self, part: float, seed: int) -> tuple[Examples, Examples]:
        """The examples without a part of the rows, and those of that part, chosen by the seed."""
        from weft.train.order import held_out

        chosen = held_out(sorted(set(self.sources)), part, seed)
        return tuple(self._of([at for at, row in enumerate(self.sources) if (row in chosen) is held])
                     for held in (False, True))  # type: ignore[return-value]  # fmt: skip

    def _of(self, places: list[int]) -> Examples:
        sources = [self.sources[at] for at in places]
        labels = None if self.labels is None else self.labels[places]
        return Examples([self.texts[at] for at in places], labels, len(set(sources)), self.asked, sources)


def read_examples(data: Data, loss: str) -> Examples:
    """The examples of a file or of rows, for this loss; errors name the row."""
    import numpy as np

    texts: list[tuple[str, ...]] = []
    labels: list[Any] = []
    sources: list[int] = []
    rows, asked = 0, True
    for row in read_rows(data):
        for example, label in _examples(row, loss):
            if texts and len(example) != len(texts[0]):
                what = f"has {len(example)} texts, and the rows before it have {len(texts[0])}"
                raise row.fault(what, advice="give every row the same number of negatives")
            if labels and loss == "mse" and len(label) != len(labels[0]):
                raise row.fault(f"has a vector of {len(label)} numbers, and the rows before it {len(labels[0])}")
            texts.append(example)
            sources.append(rows)
            labels += [] if label is None else [label]
        asked = asked and any(name in row.fields for name in ASKED)
        rows += 1
    if not texts:
        raise InputError("train", "has no rows", field="data")
    return Examples(texts, np.asarray(labels, np.float64) if labels else None, rows, asked, sources)


def _examples(row: Row, loss: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    least, most, kind = FORMS[loss]
    first, second = _named(row, FIRST), _named(row, SECOND)
    negatives = _negatives(row)
    if loss == "binary" and negatives and second is not None and _named(row, LABELS) is None:
        asked = _text(row, first, loss)
        yield (asked, _text(row, second, loss)), 1.0
        yield from (((asked, negative), 0.0) for negative in negatives)
        return
    alone = _named(row, ALONE) if least == 1 and first is None else None
    names = [alone] if alone is not None else [first, second]
    texts = [_text(row, name, loss) for name in names]
    if loss == "triplet" and negatives:
        yield from (((*texts, negative), None) for negative in negatives)
        return
    texts += negatives
    if len(texts) < least or (most and len(texts) > most):
        raise _unfit(row, loss, f"has {len(texts)} texts")
    yield tuple(texts), _label(row, loss, kind)


def _named(row: Row, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in row.fields), None)


def _negatives(row: Row) -> list[str]:
    """The texts of `negative`, `negative_1` … in their order, and of the list `negatives`."""
    names = sorted(filter(_NEGATIVE.fullmatch, row.fields), key=lambda name: int(name.rpartition("_")[2] or 0)
                   if "_" in name else 0)  # fmt: skip
    found = [_checked(row, name, row.fields[name]) for name in names if row.fields[name] not in (None, "")]
    if row.fields.get("negatives") not in (None, "", []):
        found += [_checked(row, "negatives", text) for text in listed(row, "negatives")]
    return found


def _text(row: Row, name: str | None, loss: str) -> str:
    if name is None:
        raise _unfit(row, loss, f"has other fields: {row.named_fields}")
    return _checked(row, name, row.fields[name])


def _checked(row: Row, name: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise row.fault(f"must have a text that is not empty in the field {name!r}", given=text)
    return text


def _unfit(row: Row, loss: str, what: str) -> InputError:
    shown = "a reranker" if loss == "binary" else f"the loss {loss}"
    return row.fault(what, advice=f"{shown} takes {WANTED[loss]}")


def _label(row: Row, loss: str, kind: str) -> Any:
    if kind == "vector":
        return _vector(row, loss)
    name = _named(row, LABELS)
    if not kind:
        if name is not None:
            advice = "use --loss cosine or cosent, or remove the field and the rows whose texts do not belong together"
            raise row.fault(f"has the field {name!r}, which the loss {loss} does not use", advice=advice)
        return None
    if name is None:
        raise _unfit(row, loss, f"has no label; its fields are {row.named_fields}")
    number = _number(row, name)
    low, high = {"cosine": (-1.0, 1.0), "binary": (0.0, 1.0)}.get(loss, (-math.inf, math.inf))
    if not low <= number <= high:
        what = f"must have a number of {low:g} to {high:g} in the field {name!r}"
        raise row.fault(what, given=number, advice=f"divide all of them by the largest, as 5 for STS's {name}s")
    return number


def _number(row: Row, name: str) -> float:
    given = row.fields[name]
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(given, bool) or not math.isfinite(number):
        raise row.fault(f"must have a number in the field {name!r}", given=given)
    return number


def _vector(row: Row, loss: str) -> list[float]:
    name = _named(row, VECTORS)
    if name is None:
        raise _unfit(row, loss, f"has no vector; its fields are {row.named_fields}")
    vector = listed(row, name)
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in vector):
        raise row.fault(f"must have a list of numbers in the field {name!r}")
    return vector
