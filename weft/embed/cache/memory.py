"""The cache in memory: 16 shards with a lock each; a full shard evicts its least recently used vector."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from weft.embed.cache.entries import Stored
from weft.errors import InputError

SHARDS = 16
CAPACITY = 4000  # vectors: 6 MB at 384 numbers each


class ShardStats(NamedTuple):
    size: int
    capacity: int
    hits: int
    misses: int

    @property
    def hit_rate(self) -> float:
        """Hits per lookup; 0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


class _Shard:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.hits = self.misses = 0
        self._lock = Lock()
        self._entries: OrderedDict[tuple[str, bytes], Stored] = OrderedDict()

    def get(self, key: tuple[str, bytes]) -> Stored | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self.misses += 1
                return None
            self.hits += 1
            self._entries.move_to_end(key)
            return found

    def put(self, key: tuple[str, bytes], stored: Stored) -> None:
        with self._lock:
            self._entries[key] = stored
            self._entries.move_to_end(key)
            while len(self._entries) > self.capacity:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def stats(self) -> ShardStats:
        with self._lock:
            return ShardStats(len(self._entries), self.capacity, self.hits, self.misses)


class MemoryCache:
    """At most `capacity` vectors, rounded up to a multiple of the shards; 0 stores none."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        if not isinstance(capacity, int) or capacity < 0:
            raise InputError("cache", "must be a whole number from 0 on", given=capacity, field="capacity")
        self._shards = [_Shard(-(-capacity // SHARDS)) for _ in range(SHARDS)]

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        return [self._shards[key[0] % SHARDS].get((fingerprint, key)) for key in keys]

    def put(self, fingerprint: str, entries: Sequence[tuple[bytes, Stored]]) -> None:
        for key, stored in entries:
            stored.vector.flags.writeable = False  # several callers will share it
            self._shards[key[0] % SHARDS].put((fingerprint, key), stored)

    def clear(self) -> None:
        for shard in self._shards:
            shard.clear()

    def shard_stats(self) -> list[ShardStats]:
        """Size, capacity, hits and misses of each shard."""
        return [shard.stats() for shard in self._shards]

    @property
    def stats(self) -> ShardStats:
        """Size, capacity, hits and misses of all shards together."""
        return ShardStats(*(sum(column) for column in zip(*self.shard_stats())))
