"""Vectors that were made before: in memory, on disk, or both."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.cache.disk import DiskCache as DiskCache
    from weft.embed.cache.entries import Cache as Cache
    from weft.embed.cache.entries import Stored as Stored
    from weft.embed.cache.layers import Layers as Layers
    from weft.embed.cache.layers import open_cache as open_cache
    from weft.embed.cache.lookup import key_of as key_of
    from weft.embed.cache.lookup import through_cache as through_cache
    from weft.embed.cache.memory import MemoryCache as MemoryCache

_HOMES = {
    "Cache": "entries",
    "DiskCache": "disk",
    "Layers": "layers",
    "MemoryCache": "memory",
    "Stored": "entries",
    "key_of": "lookup",
    "open_cache": "layers",
    "through_cache": "lookup",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
