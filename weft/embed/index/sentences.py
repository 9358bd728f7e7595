"""The sentence of a text that is nearest to a query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder

LONG = 300  # characters: a longer passage without the end of a sentence is cut at its lines
MOST = 64  # sentences of one text that are compared
# Where a passage ends: at an empty line; before a line that begins a list item, a heading or a table row; after the end
# of a sentence, unless a small letter follows, as in "e.g. this".
_END = re.compile(
    r"\n[ \t]*(?=\n)"
    r"|\n(?=[ \t]*(?:[-*+•|>#]|\d{1,3}[.)][ \t]))"
    r"|(?<=[.!?…])[\"'”’)\]]*\s+(?=[^\sa-zß-öø-ÿ])"
    r"|(?<=[。！？])"
)
_LINE = re.compile("\n")
ABBREVIATIONS = (" Dr.", " Mr.", " Mrs.", " Ms.", " Prof.", " St.", " No.", " Nr.", " Fig.", " vs.")


@frozen
class Sentence:
    """A sentence of a text: where it begins and ends, in characters, and the lines before it."""

    text: str
    start: int
    end: int
    lines_before: int


def sentences(text: str) -> list[Sentence]:
    """The sentences of a text in order, without the white space around them; lines of code or tables count as such."""
    found: list[Sentence] = []
    lines = counted = 0
    for start, end in _spans(text):
        lines, counted = lines + text.count("\n", counted, start), start
        found.append(Sentence(text[start:end], start, end, lines))
    return found


def _spans(text: str) -> list[tuple[int, int]]:
    ends = [match.end() for match in _END.finditer(text) if not _is_abbreviation(text, match.end())]
    spans = zip([0, *ends], [*ends, len(text)])
    stripped = (_stripped(text, *part) for span in spans for part in _parts(text, *span))
    return [(start, end) for start, end in stripped if start < end]


def _is_abbreviation(text: str, end: int) -> bool:
    return text[max(0, end - 32) : end].rstrip().endswith(ABBREVIATIONS)


def _parts(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """The passage from `start` to `end`: a heading apart from what follows, all lines apart if it is long."""
    cuts = [match.end() for match in _LINE.finditer(text, start, end)]
    if end - start <= LONG:
        cuts = cuts[:1] if text[start:end].startswith("#") else []
    return list(zip([start, *cuts], [*cuts, end]))


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    inner = text[start:end]
    return start + len(inner) - len(inner.lstrip()), end - len(inner) + len(inner.rstrip())


def nearest_sentences(embedder: BaseEmbedder, query: str, texts: Sequence[str | None]) -> list[Sentence | None]:
    """For each text the sentence nearest to `query`, by the embedder's similarity; None for a text without any.

    All sentences are embedded in one call, the first MOST of each text.
    """
    import numpy as np

    parts = [sentences(text or "")[:MOST] for text in texts]
    listed = [part.text for group in parts for part in group]
    if not listed:
        return [None] * len(texts)
    how = {"truncate": "head"} if getattr(embedder, "cuts", False) else {}
    scores = embedder.similarity(
        embedder.encode_query([query], **how), embedder.encode_document(listed, progress=False, **how)
    )[0]
    found: list[Sentence | None] = []
    first = 0
    for group in parts:
        best = int(np.argmax(scores[first : first + len(group)])) if group else 0
        found.append(group[best] if group else None)
        first += len(group)
    return found
