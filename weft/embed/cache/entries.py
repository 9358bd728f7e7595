"""What a cache holds and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np


class Stored(NamedTuple):
    """A vector, float32 [dimension], and the counts that `Embedded` has of its text."""

    vector: np.ndarray
    tokens: int
    dropped: int
    windows: int


class CacheStats(NamedTuple):
    """How many lookups were hits and how many misses."""

    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        """Hits per lookup; 0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


@runtime_checkable
class Cache(Protocol):
    """Vectors by fingerprint and key: an entry of one fingerprint is never returned for another. Thread-safe."""

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        """The entry of each key, None for a miss."""

    def put(self, fingerprint: str, entries: Sequence[tuple[bytes, Stored]]) -> None:
        """Store the entries; they are stored when it returns."""


@runtime_checkable
class NamingCache(Cache, Protocol):
    """A cache that keeps the name of the model of each fingerprint."""

    def name_model(self, fingerprint: str, name: str) -> None:
        """Set the model's name for entries that are put with `fingerprint` from now on."""
