"""Results of embedding: vectors with token counts and fingerprint, ranked documents, and interrupted calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np


@frozen
class Ranked:
    """A document's index in the caller's list, and its similarity to the query."""

    index: int
    score: float


@frozen
class Embedded:
    """Vectors of n texts, row i of text i, and how each was made.

    `tokens[i]` tokens were computed for text i, special tokens and prompt included, in `windows[i]` sequences;
    `dropped[i]` were cut off. int8 vectors have `scales`, float32 [n]: row i divided by scales[i] approximates the
    vector.
    """

    vectors: np.ndarray  # [n, dimension], or [n, ceil(dimension / 8)] of binary
    tokens: np.ndarray  # int32 [n]
    dropped: np.ndarray  # int32 [n]
    windows: np.ndarray  # int32 [n]
    made_by: Callable[[], str]  # computes the fingerprint when it is first read: hashing the weights takes time
    cached: int = 0  # texts whose vectors came from the cache
    scales: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the embedder that made the vectors."""
        return self.made_by()

    def counting(self, cached: int) -> Embedded:
        """A copy with `cached` set."""
        return replace(self, cached=cached)

    def first(self, count: int) -> Embedded:
        """The results of the first `count` texts."""
        cut = {name: getattr(self, name)[:count] for name in ("vectors", "tokens", "dropped", "windows")}
        return replace(self, **cut, scales=None if self.scales is None else self.scales[:count])


class EmbedInterrupted(KeyboardInterrupt):
    """Ctrl-C while texts were embedded: `done` holds the vectors of the first of them, in order."""

    def __init__(self, done: Embedded) -> None:
        super().__init__(f"interrupted after {len(done)} texts; their vectors are in `done`")
        self.done = done

    @property
    def vectors(self) -> np.ndarray:
        return self.done.vectors
