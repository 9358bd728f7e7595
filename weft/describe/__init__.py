"""Descriptions of models: those of weft's own types, and drafts for types that weft has no file for."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.describe.adopting import Adoption as Adoption
    from weft.describe.adopting import adopt as adopt
    from weft.describe.known import description_of as description_of

_HOMES = {"Adoption": "adopting", "adopt": "adopting", "description_of": "known"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
