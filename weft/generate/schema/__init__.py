"""Rewrites JSON Schemas with the keywords that a grammar can enforce exactly."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.generate.schema.rewrite import rewritten as rewritten

_HOMES = {"rewritten": "rewrite"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
