"""Embeddings: the right vector for a text, and how it was made."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.base import BaseEmbedder as BaseEmbedder
    from weft.embed.cache.disk import DiskCache as DiskCache
    from weft.embed.cache.memory import MemoryCache as MemoryCache
    from weft.embed.fingerprint import Fingerprint as Fingerprint
    from weft.embed.inputs import SERVICE_LIMITS as SERVICE_LIMITS
    from weft.embed.inputs import Limits as Limits
    from weft.embed.recipe import Recipe as Recipe
    from weft.embed.remote import RemoteEmbedder as RemoteEmbedder
    from weft.embed.results import Embedded as Embedded
    from weft.embed.results import EmbedInterrupted as EmbedInterrupted
    from weft.embed.results import Ranked as Ranked
    from weft.embed.service import Embedder as Embedder

_HOMES = {
    "SERVICE_LIMITS": "inputs",
    "BaseEmbedder": "base",
    "DiskCache": "cache.disk",
    "EmbedInterrupted": "results",
    "Embedded": "results",
    "Embedder": "service",
    "Fingerprint": "fingerprint",
    "Limits": "inputs",
    "MemoryCache": "cache.memory",
    "Ranked": "results",
    "Recipe": "recipe",
    "RemoteEmbedder": "remote",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
