"""Embeddings: the right vector for a text, and how it was made."""

from weft.embed.recipe import Recipe
from weft.embed.service import Embedder

__all__ = ["Embedder", "Recipe"]
