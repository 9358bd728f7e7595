"""Rows that say the same as an earlier one: to the letter but for case and space, or by an embedder's vectors.

The first of several rows stays. A row goes if one that stays is near to it; a row that is near only to one that goes
stays, so that a chain of small differences does not remove what is far apart.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.data.rows import (
    check_output,
    counted,
    folded,
    json_line,
    line_of,
    manifest_of,
    read_set,
    write_lines,
    write_manifest,
)
from weft.errors import InputError
from weft.frozen import frozen
from weft.train.data.rows import Data

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder
    from weft.embed.index.index import Index

FIRST_HITS, BLOCK = 16, 256  # neighbours that are looked at first, and rows that are searched at once


@frozen
class Twin:
    """A row that goes, the one that stays in its place (both counted from 0), and how near they are."""

    row: int
    kept: int
    score: float


@frozen
class Deduped:
    """What was found: rows that went in and stayed, and the others by kind."""

    rows: int
    kept: int
    exact: list[Twin]
    near: list[Twin]


def dedupe(
    data: Data,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | os.PathLike[str] | BaseEmbedder | None = None,
    threshold: float = 0.95,
    fields: tuple[str, ...] = (),
    removed: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    progress: bool | None = None,
) -> Deduped:
    """Leave out rows whose text an earlier one has, and with `model` those whose vectors have a cosine of at least
    `threshold` with an earlier one's. `output` gets the rows that stay, `removed` the others, each with the number of
    the row in its place.
    """
    check_threshold(threshold)
    places = [check_output(Path(path), data) for path in (output, removed) if path is not None]
    found = read_set(data, fields)
    first: dict[str, int] = {}
    exact, left = [], []
    for number, text in enumerate(found.texts):
        seen = first.setdefault(folded(text), number)
        if seen == number:
            left.append(number)
        else:
            exact.append(Twin(number, seen, 1.0))
    near: list[Twin] = []
    if model is not None:
        embedder = opened_embedder(model, threads)
        near = _near([found.texts[number] for number in left], embedder, threshold, progress)
        near = [Twin(left[one.row], left[one.kept], one.score) for one in near]
    gone = {one.row: one for one in (*exact, *near)}
    written = {}
    if output is not None:
        kept = (line_of(row) for number, row in enumerate(found.rows) if number not in gone)
        written["kept"] = write_lines(Path(output), kept)
    if removed is not None:
        twins = (
            json_line({**found.rows[number].fields, "duplicate_of": one.kept + 1, "score": round(one.score, 6)})
            for number, one in sorted(gone.items())
        )
        written["removed"] = write_lines(Path(removed), twins)
    if places:
        options: dict[str, Any] = {"model": model_name(model), "threshold": threshold, "fields": list(fields)}
        write_manifest(manifest_of(places[0]), "dedupe", {"data": found.source}, options, written)
    return Deduped(len(found.rows), len(found.rows) - len(gone), exact, near)


def _near(texts: list[str], embedder: BaseEmbedder, threshold: float, progress: bool | None) -> list[Twin]:
    index = index_of(texts, embedder, progress)
    gone: dict[int, Twin] = {}
    hits: list[list[tuple[int, float]]] = []
    with counted(len(texts), progress, "comparing") as numbers:
        for number in numbers:
            if number % BLOCK == 0:
                block = [index.vector(row) for row in range(number, min(number + BLOCK, len(texts)))]
                hits = _hits(index, block, min(FIRST_HITS, len(texts)))
            found = hits[number % BLOCK]
            while True:
                earlier = [
                    (-score, row) for row, score in found if row < number and row not in gone and score >= threshold
                ]
                if earlier or len(found) == len(texts) or found[-1][1] < threshold:
                    break
                found = _hits(index, [index.vector(number)], min(4 * len(found), len(texts)))[0]
            if earlier:
                score, row = min(earlier)
                gone[number] = Twin(number, row, -score)
    return list(gone.values())


def _hits(index: Index, vectors: list[Any], count: int) -> list[list[tuple[int, float]]]:
    import numpy as np

    found = index.search(np.stack(vectors), count, exact=True)
    return [[(int(hit.id), float(hit.score)) for hit in each] for each in found]


def index_of(texts: list[str], embedder: BaseEmbedder, progress: bool | None) -> Index:
    """The vectors of texts, by their numbers."""
    from weft.embed.index.index import Index

    index = Index.from_embedder(embedder, metric="cosine")
    vectors = embedder.embed(texts, prompt_name=embedder.document_prompt_name, truncate="head", progress=progress)
    index.add(range(len(texts)), vectors)
    return index


def opened_embedder(model: str | os.PathLike[str] | BaseEmbedder, threads: int | None) -> BaseEmbedder:
    from weft.embed import Embedder

    return Embedder(os.fspath(model), threads=threads) if isinstance(model, (str, os.PathLike)) else model


def model_name(model: Any) -> str | None:
    return None if model is None else os.fspath(model) if isinstance(model, (str, os.PathLike)) else repr(model)


def check_threshold(threshold: float) -> None:
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
        raise InputError("data", "must be above 0 and at most 1", field="threshold", given=threshold)
