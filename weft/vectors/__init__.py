"""Vectors: distances, the nearest k, and int8, 4-bit and binary codes.

weft.vectors.cosine(a, b)                  # two vectors: a float; one and many: [n]; many and many: [m, n]
weft.vectors.top_k(query, rows, 10)        # .rows and .scores, nearest first
codes = weft.vectors.quantise(rows, "int8")
weft.vectors.top_k(query, codes, 10)
"""

from typing import TYPE_CHECKING

from weft.lazy import lazily

if TYPE_CHECKING:
    from weft.vectors.codes import Codes as Codes
    from weft.vectors.codes import PreparedQuery as PreparedQuery
    from weft.vectors.codes import Tier as Tier
    from weft.vectors.codes import quantise as quantise
    from weft.vectors.distance import cosine as cosine
    from weft.vectors.distance import dot as dot
    from weft.vectors.distance import euclidean as euclidean
    from weft.vectors.distance import hamming as hamming
    from weft.vectors.distance import is_unit as is_unit
    from weft.vectors.distance import manhattan as manhattan
    from weft.vectors.distance import normalise as normalise
    from weft.vectors.distance import norms as norms
    from weft.vectors.distance import sqeuclidean as sqeuclidean
    from weft.vectors.nearest import rescore as rescore
    from weft.vectors.nearest import top_k as top_k
    from weft.vectors.scan import Nearest as Nearest

_HOMES = {
    "Codes": "codes",
    "Nearest": "scan",
    "PreparedQuery": "codes",
    "Tier": "codes",
    "cosine": "distance",
    "dot": "distance",
    "euclidean": "distance",
    "hamming": "distance",
    "is_unit": "distance",
    "manhattan": "distance",
    "normalise": "distance",
    "norms": "distance",
    "quantise": "codes",
    "rescore": "nearest",
    "sqeuclidean": "distance",
    "top_k": "nearest",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
