"""Hard negatives: texts near to an anchor that are not its positives, found with an index.

The choice is that of sentence-transformers' `mine_hard_negatives`: candidates by rank and by score, kept apart from the
positive by a margin.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.rows import Data
from weft.train.vectors.examples import read_examples

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.base import BaseEmbedder

FORMS = ("triplet", "tuple", "pair")
SPARE = 10  # candidates for each negative, where some may be refused


@frozen
class Mining:
    """Which candidates become negatives.

    negatives        of each anchor
    first, last      ranks of candidates, positives left out: those before `first` are skipped, as they may be positives
    least, most      the cosine of a candidate with its anchor
    margin           by how much less similar than the positive it must be
    relative_margin  the same as a part of the positive's similarity: 0.05 takes what is at most 95 % as similar
    sampling         "top" the nearest of them, "random" any
    """

    negatives: int = 3
    first: int = 0
    last: int | None = None
    least: float | None = None
    most: float | None = None
    margin: float | None = None
    relative_margin: float | None = None
    sampling: str = "top"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("negatives", self.negatives >= 1, "must be at least 1")
        self._check("first", self.first >= 0, "must be 0 or more")
        room = self.last is None or self.last - self.first >= self.negatives
        self._check("last", room, f"must be at least {self.first + self.negatives}: `first` and the negatives")
        self._check("sampling", self.sampling in ("top", "random"), "must be top or random")

    def _check(self, name: str, right: bool, what: str) -> None:
        if not right:
            raise InputError("mine", what, field=name, given=getattr(self, name))

    def candidates(self, positives: int) -> int:
        """How many candidates of an anchor are looked at; `positives` is the most that an anchor has."""
        if self.last is not None:
            return self.last
        picky = any(value is not None for value in (self.margin, self.relative_margin, self.most))
        return self.first + self.negatives * (SPARE if picky else 1) + positives

    def choose(self, found: Sequence[tuple[int, float]], positive: float, last: int, draw: str) -> list[int]:
        """The rows of an anchor's negatives among candidates (row, cosine), the nearest first; `positive` is the least
        cosine of its positives."""
        high = [positive - self.margin] if self.margin is not None else []
        high += [positive - abs(positive) * self.relative_margin] if self.relative_margin is not None else []
        high += [self.most] if self.most is not None else []
        kept = [
            row
            for row, cosine in found
            if all(cosine <= limit for limit in high) and (self.least is None or cosine >= self.least)
        ][self.first : last]
        if self.sampling == "top" or len(kept) <= self.negatives:
            return kept[: self.negatives]
        places = random.Random(f"{self.seed} {draw}").sample(range(len(kept)), self.negatives)
        return [kept[place] for place in sorted(places)]


@frozen
class Mined:
    """An anchor, one of its positives, and its negatives."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]

    def rows(self, form: str, count: int) -> Iterator[dict[str, Any]]:
        """As rows to train on: a triplet for each negative, one tuple if there are `count`, or pairs with labels."""
        if form == "triplet":
            for negative in self.negatives:
                yield {"anchor": self.anchor, "positive": self.positive, "negative": negative}
        elif form == "tuple":
            if len(self.negatives) == count:
                named = {f"negative_{number}": text for number, text in enumerate(self.negatives, 1)}
                yield {"anchor": self.anchor, "positive": self.positive, **named}
        else:
            yield {"query": self.anchor, "document": self.positive, "label": 1}
            yield from ({"query": self.anchor, "document": text, "label": 0} for text in self.negatives)


def mine(
    embedder: BaseEmbedder, data: Data, *, corpus: Iterable[str] | None = None, progress: bool | None = None, **how: Any
) -> Iterator[Mined]:
    """The negatives of each row of anchors and positives. Candidates are all positives, and `corpus`.

    Other options are those of Mining. An anchor that comes several times has several positives, none of which becomes
    its negative; nor does a text that is the anchor's own.
    """
    from weft.embed.index.index import Index

    mining = Mining(**how)
    wanted = _positives(data)
    texts = list(dict.fromkeys([*(corpus or ()), *(text for several in wanted.values() for text in several)]))
    place = {text: row for row, text in enumerate(texts)}
    most = max(map(len, wanted.values()))
    last = mining.candidates(most)
    index = Index.from_embedder(embedder, metric="cosine")
    index.add(range(len(texts)), embedder.embed(texts, prompt_name=embedder.document_prompt_name, progress=progress))
    anchors = list(wanted)
    asked = embedder.embed(anchors, prompt_name="query", progress=progress)
    hits = index.search(asked, min(len(texts), last + most + 1), exact=True)
    for number, (anchor, positives) in enumerate(wanted.items()):
        own = {place[text] for text in positives} | {place.get(anchor, -1)}
        near = hits[number][: last + most + (anchor in place)]
        found = [(int(hit.id), float(hit.score)) for hit in near if hit.id not in own]
        least = min(_cosine(asked.vectors[number], index.vector(place[text])) for text in positives)
        chosen = tuple(texts[row] for row in mining.choose(found, least, last, anchor))
        yield from (Mined(anchor, positive, chosen) for positive in positives)


def _positives(data: Data) -> dict[str, list[str]]:
    """The positives of each anchor, in the order of the rows; negatives that rows have already are left."""
    found: dict[str, dict[str, None]] = {}
    for texts in read_examples(data, "ranking").texts:
        found.setdefault(texts[0], {})[texts[1]] = None
    return {anchor: list(several) for anchor, several in found.items()}


def _cosine(left: np.ndarray, right: np.ndarray) -> float:
    a, b = left.astype("f8"), right.astype("f8")
    return float(a @ b / max(float((a @ a) * (b @ b)) ** 0.5, 1e-24))
