"""Floats to quantised blocks that lose little.

weft.quantise.encode(rows, "q4_k", importance=...)     # a TensorView, .numpy() is what the blocks mean
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.quantise.encode import encode as encode

_HOMES = {"encode": "encode"}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
