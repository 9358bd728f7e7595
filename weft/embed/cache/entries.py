"""What a cache holds and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np


class Stored(NamedTuple):
    """A vector float32 [dimension], and what `Embedded` says of its text."""

    vector: np.ndarray
    tokens: int
    dropped: int
    windows: int


class CacheStats(NamedTuple):
    """How many of the keys that were asked for were there."""

    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        """Hits of all questions, 0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


@runtime_checkable
class Cache(Protocol):
    """Vectors by key. What was put with one fingerprint is never given for another. Several threads may use it."""

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """What is there of each key, None for nothing."""

    def put(self, fingerprint: str, entries: Sequence[tuple[bytes, Stored]]) -> None:
        """Keep these; when it returns they are kept."""


@runtime_checkable
class NamingCache(Cache, Protocol):
    """A cache that can be asked later which model a fingerprint is of."""

    def name_model(self, fingerprint: str, name: str) -> None:
        """What is put with `fingerprint` from now on is of the model that people call `name`."""
