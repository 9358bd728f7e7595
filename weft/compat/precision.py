"""sentence-transformers' `precision`: vectors as bytes or bits. (weft's own types are in weft/embed/results.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compat.arguments import log
from weft.compat.similarity import numbers
from weft.errors import InputError

PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")
FEW_VECTORS = 100  # below this the ranges of codes are logged as unreliable, as there


def quantize_embeddings(
    embeddings: Any, precision: str, ranges: Any = None, calibration_embeddings: Any = None
) -> np.ndarray:
    """Vectors [n, d] in `precision`.

    int8 and uint8 have 256 steps between the lowest and the highest value of each number, rounded down: those in
    `ranges` [2, d], else those of `calibration_embeddings`, else those of the vectors themselves. Values outside get
    the first or the last code. binary and ubinary are bits v > 0, eight to a byte; "binary" subtracts 128 from each.
    """
    check_precision(precision)
    vectors = _floats(embeddings)
    if precision == "float32":
        return vectors
    if precision in ("binary", "ubinary"):
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
    if not len(vectors):
        return vectors.astype(precision)
    low, high = _ranges(vectors, precision, ranges, calibration_embeddings)
    steps = (high - low) / np.float32(255)
    codes = np.clip(np.floor((vectors - low) / np.where(steps == 0, np.float32(1), steps)), 0, 255)
    return codes.astype(np.uint8) if precision == "uint8" else (codes - 128).astype(np.int8)


def check_precision(precision: Any) -> None:
    if precision not in PRECISIONS:
        raise InputError("compat", f"must be one of {', '.join(PRECISIONS)}", given=precision, field="precision")


def _floats(embeddings: Any) -> np.ndarray:
    if isinstance(embeddings, np.ndarray) and embeddings.dtype.kind in "iu":
        what = f"must be floats, not codes of {embeddings.dtype}"
        raise InputError("compat", what, field="embeddings")
    return np.atleast_2d(numbers(embeddings))


def _ranges(vectors: np.ndarray, precision: str, given: Any, calibration: Any) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest value of each number."""
    dimension = vectors.shape[1]
    if given is not None:
        ranges = numbers(given)
        if ranges.shape != (2, dimension):
            what = f"must be of shape {[2, dimension]}: the lowest and the highest value of each number"
            raise InputError("compat", what, given=list(ranges.shape), field="ranges")
        return ranges[0], ranges[1]
    if calibration is not None:
        vectors = _floats(calibration)
        if vectors.shape[1] != dimension or not len(vectors):
            what = f"must be vectors of {dimension} numbers"
            raise InputError("compat", what, given=list(vectors.shape), field="calibration_embeddings")
    elif len(vectors) < FEW_VECTORS:
        log.warning("the ranges of precision=%r come from only %d vectors", precision, len(vectors))
    return vectors.min(axis=0), vectors.max(axis=0)
