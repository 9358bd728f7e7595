"""Caches behind one another, and what `Embedder(cache=…)` may be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from weft.embed.cache.entries import Cache, CacheStats, NamingCache, Stored
from weft.errors import InputError

CHOICES = "'memory', 'disk', a path such as ./vectors.sqlite, or a cache object"


class Layers:
    """Caches in the order of lookup; hits of a later one are copied into the earlier ones."""

    def __init__(self, *caches: Cache) -> None:
        self.caches = caches
        self._lock = Lock()
        self._hits = self._misses = 0

    def get(self, fingerprint: str, keys: Sequence[bytes]) -> list[Stored | None]:
        found: list[Stored | None] = [None] * len(keys)
        for depth, cache in enumerate(self.caches):
            missing = [i for i, stored in enumerate(found) if stored is None]
            if not missing:
                break
            hits = [(i, hit) for i, hit in zip(missing, cache.get(fingerprint, [keys[i] for i in missing])) if hit]
            for i, hit in hits:
                found[i] = hit
            for nearer in self.caches[:depth]:
                nearer.put(fingerprint, [(keys[i], hit) for i, hit in hits])
        misses = sum(stored is None for stored in found)
        with self._lock:
            self._hits, self._misses = self._hits + len(found) - misses, self._misses + misses
        return found

    def put(self, fingerprint: str, entries: Sequence[tuple[bytes, Stored]]) -> None:
        for cache in reversed(self.caches):  # the persistent one first
            cache.put(fingerprint, entries)

    def name_model(self, fingerprint: str, name: str) -> None:
        for cache in self.caches:
            if isinstance(cache, NamingCache):
                cache.name_model(fingerprint, name)

    @property
    def stats(self) -> CacheStats:
        """Lookups that any of the caches answered are hits; each of `caches` has its own stats."""
        with self._lock:
            return CacheStats(self._hits, self._misses)


def open_cache(given: Any) -> Cache | None:
    """None for no cache; "memory"; "disk" for weft's own file, behind memory; a path for another file; or a cache."""
    if given is None or given is False:
        return None
    from weft.embed.cache.disk import DiskCache
    from weft.embed.cache.memory import MemoryCache

    if given is True or given == "memory":
        return MemoryCache()
    if given == "disk":
        return Layers(MemoryCache(), DiskCache())
    if isinstance(given, str) and not os.path.dirname(given) and not Path(given).suffix:
        # a misspelt word would otherwise create a file of that name
        raise InputError("cache", f"must be {CHOICES}", given=given, field="cache")
    if isinstance(given, (str, os.PathLike)):
        return Layers(MemoryCache(), DiskCache(given))
    if isinstance(given, Cache):
        return given
    raise InputError("cache", f"must be {CHOICES}", given=given, field="cache")
