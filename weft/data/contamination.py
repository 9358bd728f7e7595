"""Rows to learn from that the evaluation set has too: the same text, long runs of the same words, or near vectors.

A run is `ngram` words one after the other. Of an evaluation text the share of its runs that a row has too is the
overlap; a text of fewer words is one run, and one of fewer than LEAST words is compared as a whole only.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.data.duplicates import BLOCK, check_threshold, index_of, model_name, opened_embedder
from weft.data.rows import (
    DataSet,
    check_output,
    counted,
    folded,
    json_line,
    line_of,
    manifest_of,
    read_set,
    words_of,
    write_lines,
    write_manifest,
)
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.rows import Data

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder

LEAST = 3  # words
KINDS = ("exact", "ngram", "near")


@frozen
class Finding:
    """A row and the evaluation row that it is too near to (both counted from 0), how that was found, and how near."""

    row: int
    against: int
    kind: str
    score: float


@frozen
class Checked:
    """How many rows were checked against how many, and each row that was found, once."""

    rows: int
    against: int
    found: list[Finding]

    @property
    def counts(self) -> dict[str, int]:
        """Rows by how they were found."""
        counted = Counter(one.kind for one in self.found)
        return {kind: counted[kind] for kind in KINDS}

    @property
    def touched(self) -> int:
        """How many evaluation rows were found in the data."""
        return len({one.against for one in self.found})


def check(
    data: Data,
    against: Data,
    *,
    ngram: int = 8,
    overlap: float = 0.5,
    model: str | os.PathLike[str] | BaseEmbedder | None = None,
    threshold: float = 0.9,
    fields: tuple[str, ...] = (),
    against_fields: tuple[str, ...] = (),
    clean: str | os.PathLike[str] | None = None,
    found: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Checked:
    """Find rows of `data` that the evaluation set `against` has too.

    A row is found by the same text; by an `overlap` of its runs of `ngram` words with those of an evaluation text; or,
    with `model`, by a cosine of at least `threshold`. `clean` gets the rows that were not found, `found` the others.
    """
    check_threshold(threshold)
    _check_runs(ngram, overlap)
    places = [check_output(Path(path), data) for path in (clean, found) if path is not None]
    own, judges = read_set(data, fields), read_set(against, against_fields or fields)
    findings = {one.row: one for one in _exact(own, judges)}
    runs = Runs([words_of(text) for text in judges.texts], ngram)
    with counted(len(own.rows), progress, "comparing words") as numbers:
        for number in numbers:
            if number not in findings:
                place, share = runs.most(words_of(own.texts[number]))
                if share >= overlap:
                    findings[number] = Finding(number, place, "ngram", share)
    if model is not None:
        left = [number for number in range(len(own.rows)) if number not in findings]
        for one in _near(own, judges, left, opened_embedder(model, threads), threshold, progress):
            findings[one.row] = one
    written = {}
    if clean is not None:
        kept = (line_of(row) for number, row in enumerate(own.rows) if number not in findings)
        written["clean"] = write_lines(Path(clean), kept)
    if found is not None:
        told = (
            {"against": one.against + 1, "kind": one.kind, "score": round(one.score, 6)}
            for _, one in sorted(findings.items())
        )
        rows = (own.rows[number].fields for number in sorted(findings))
        written["found"] = write_lines(Path(found), (json_line({**row, **one}) for row, one in zip(rows, told)))
    if places:
        options: dict[str, Any] = {"ngram": ngram, "overlap": overlap, "model": model_name(model)}
        options |= {"threshold": threshold, "fields": list(fields), "against_fields": list(against_fields or fields)}
        sources = {"data": own.source, "against": judges.source}
        write_manifest(manifest_of(places[0]), "check", sources, options, written)
    return Checked(len(own.rows), len(judges.rows), [findings[number] for number in sorted(findings)])


class Runs:
    """The runs of words of evaluation texts, by which a row's overlap with each is found."""

    def __init__(self, texts: list[list[str]], ngram: int) -> None:
        self._owners: dict[tuple[str, ...], list[int]] = {}
        self._counts: list[int] = []
        self._lengths: set[int] = set()
        for number, words in enumerate(texts):
            own = runs_of(words, min(ngram, len(words))) if len(words) >= LEAST else set()
            self._counts.append(len(own))
            self._lengths |= {len(run) for run in own}
            for run in own:
                self._owners.setdefault(run, []).append(number)

    def most(self, words: list[str]) -> tuple[int, float]:
        """The evaluation text that a row overlaps with most, the first of several, and by how much."""
        shared: Counter[int] = Counter()
        for length in self._lengths:
            for run in runs_of(words, length):
                shared.update(self._owners.get(run, ()))
        if not shared:
            return 0, 0.0
        share, place = max((count / self._counts[number], -number) for number, count in shared.items())
        return -place, share


def runs_of(words: list[str], length: int) -> set[tuple[str, ...]]:
    """The runs of so many words, each once."""
    return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}


def _exact(own: DataSet, judges: DataSet) -> Iterator[Finding]:
    known: dict[str, int] = {}
    for number, text in enumerate(judges.texts):
        known.setdefault(folded(text), number)
    for number, text in enumerate(own.texts):
        if (place := known.get(folded(text))) is not None:
            yield Finding(number, place, "exact", 1.0)


def _near(
    own: DataSet, judges: DataSet, left: list[int], embedder: BaseEmbedder, threshold: float, progress: bool | None
) -> Iterator[Finding]:
    if not left:
        return
    index = index_of(list(judges.texts), embedder, progress)
    texts = [own.texts[number] for number in left]
    asked = embedder.embed(texts, prompt_name=embedder.document_prompt_name, truncate="head", progress=progress)
    for first in range(0, len(left), BLOCK):
        for place, hits in enumerate(index.search(asked.vectors[first : first + BLOCK], 1, exact=True), first):
            if float(hits[0].score) >= threshold:
                yield Finding(left[place], int(hits[0].id), "near", float(hits[0].score))


def _check_runs(ngram: int, overlap: float) -> None:
    if type(ngram) is not int or ngram < LEAST:
        raise InputError("data", f"must be at least {LEAST} words", field="ngram", given=ngram)
    if isinstance(overlap, bool) or not isinstance(overlap, (int, float)) or not 0 < overlap <= 1:
        raise InputError("data", "must be above 0 and at most 1", field="overlap", given=overlap)
