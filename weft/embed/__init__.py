"""Embeddings: the right vector for a text, and how it was made."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.recipe import Recipe as Recipe
    from weft.embed.service import Embedder as Embedder

_HOMES = {"Embedder": "service", "Recipe": "recipe"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
