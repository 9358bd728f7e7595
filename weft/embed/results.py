"""What embedding gives: vectors with what was cut and what made them, ranked documents, and what Ctrl-C leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np


@frozen
class Ranked:
    """A document's place in the list that was given, and how near it is to the query."""

    index: int
    score: float


@frozen
class Embedded:
    """Vectors of n texts, row i that of text i, and how each was made.

    `tokens[i]` of text i were computed, special tokens and prompt included, in `windows[i]` sequences; `dropped[i]`
    were cut off. `scales` float32 [n] is there for int8 vectors: row i divided by scales[i] is near the vector.
    """

    vectors: np.ndarray  # [n, dimension], or [n, ceil(dimension / 8)] of binary
    tokens: np.ndarray  # int32 [n]
    dropped: np.ndarray  # int32 [n]
    windows: np.ndarray  # int32 [n]
    made_by: Callable[[], str]  # asked when the fingerprint is: weights are hashed only where somebody wants to know
    cached: int = 0  # texts whose vectors came from the cache
    scales: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def fingerprint(self) -> str:
        """What made the vectors."""
        return self.made_by()

    def counting(self, cached: int) -> Embedded:
        """The same, of which so many came from the cache."""
        return replace(self, cached=cached)

    def first(self, count: int) -> Embedded:
        """The same of the first `count` texts."""
        cut = {name: getattr(self, name)[:count] for name in ("vectors", "tokens", "dropped", "windows")}
        return replace(self, **cut, scales=None if self.scales is None else self.scales[:count])


class EmbedInterrupted(KeyboardInterrupt):
    """Ctrl-C while texts were embedded: `done` holds what the first of them became, in order; nothing else is lost."""

    def __init__(self, done: Embedded) -> None:
        super().__init__(f"interrupted after {len(done)} texts; their vectors are in `done`")
        self.done = done

    @property
    def vectors(self) -> np.ndarray:
        return self.done.vectors
