"""Descriptions of models: those of weft's own types, and drafts for types that weft has no file for."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.describe.known import description_of as description_of

_HOMES = {"description_of": "known"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
