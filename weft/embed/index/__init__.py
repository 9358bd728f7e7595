"""An index of vectors: exact by default, keyed by the fingerprint of what made them."""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.embed.index.index import Index as Index
    from weft.embed.index.records import Hit as Hit

_HOMES = {"Hit": "records", "Index": "index"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
