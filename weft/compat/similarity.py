"""Similarities of vectors, as sentence-transformers' `util` has them: numpy in, numpy out.

Lists and arrays of any number type are taken; results are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np

from weft import vectors
from weft.errors import InputError

LEAST_NORM = 1e-12  # of a vector that is divided by its norm: zeros stay zeros

Measure = Callable[[Any, Any], np.ndarray]


def numbers(embeddings: Any) -> np.ndarray:
    """The vectors as float32 [d] or [n, d]."""
    try:
        found = np.asarray(embeddings)
    except ValueError:  # rows of different lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "fiu" or found.ndim not in (1, 2):
        what = "must be a vector [d] or vectors [n, d] of numbers"
        raise InputError("compat", what, given=f"{found.dtype} {list(found.shape)}", field="embeddings")
    return found.astype(np.float32, copy=False)


def _all_with_all(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    left, right = np.atleast_2d(numbers(a)), np.atleast_2d(numbers(b))
    if left.shape[1] != right.shape[1]:
        raise InputError("compat", f"vectors of {left.shape[1]} and {right.shape[1]} numbers cannot be compared")
    return left, right


def _in_pairs(a: Any, b: Any) -> tuple[np.ndarray, np.ndarray]:
    left, right = numbers(a), numbers(b)
    if left.shape != right.shape:
        what = f"vectors of shape {list(left.shape)} and {list(right.shape)} do not form pairs"
        raise InputError("compat", what, advice="use the function without pairwise_ to compare all with all")
    return left, right


def normalize_embeddings(embeddings: Any) -> np.ndarray:
    """The vectors [n, d] divided by their norms."""
    found = numbers(embeddings)
    made: np.ndarray = found / np.maximum(np.linalg.norm(found, axis=-1, keepdims=True), np.float32(LEAST_NORM))
    return made


def truncate_embeddings(embeddings: Any, truncate_dim: int | None) -> np.ndarray:
    """The first `truncate_dim` numbers of each vector, or all for None; their norms stay as they come out."""
    found: np.ndarray = np.asarray(embeddings)[..., : check_truncate_dim(truncate_dim)]
    return found


def check_truncate_dim(truncate_dim: Any) -> int | None:
    """The length that vectors are cut to, a whole number from 1 on; None for no cut."""
    if truncate_dim is None:
        return None
    if isinstance(truncate_dim, bool) or not hasattr(truncate_dim, "__index__") or truncate_dim < 1:
        raise InputError("compat", "must be a whole number from 1 on", given=truncate_dim, field="truncate_dim")
    return int(truncate_dim)


def cos_sim(a: Any, b: Any) -> np.ndarray:
    """The cosine of each vector of `a` with each of `b`, [len(a), len(b)]; that of zeros is 0."""
    left, right = _all_with_all(a, b)
    return dot_score(normalize_embeddings(left), normalize_embeddings(right))


def dot_score(a: Any, b: Any) -> np.ndarray:
    """The dot product of each vector of `a` with each of `b`, [len(a), len(b)]."""
    return _compared(a, b, vectors.dot)


def euclidean_sim(a: Any, b: Any) -> np.ndarray:
    """The negative Euclidean distance of each vector of `a` to each of `b`, [len(a), len(b)]."""
    return -_compared(a, b, vectors.euclidean)


def manhattan_sim(a: Any, b: Any) -> np.ndarray:
    """The negative Manhattan distance of each vector of `a` to each of `b`, [len(a), len(b)]."""
    return -_compared(a, b, vectors.manhattan)


def _compared(a: Any, b: Any, distance: Measure) -> np.ndarray:
    left, right = _all_with_all(a, b)
    return distance(left, right) if left.size and right.size else np.zeros((len(left), len(right)), np.float32)


def pairwise_cos_sim(a: Any, b: Any) -> np.ndarray:
    """The cosine of each vector of `a` with the one of `b` at the same index, [n]."""
    left, right = _in_pairs(a, b)
    return pairwise_dot_score(normalize_embeddings(left), normalize_embeddings(right))


def pairwise_dot_score(a: Any, b: Any) -> np.ndarray:
    """The dot product of each vector of `a` with the one of `b` at the same index, [n]."""
    left, right = _in_pairs(a, b)
    return np.asarray((left * right).sum(axis=-1))


def pairwise_euclidean_sim(a: Any, b: Any) -> np.ndarray:
    """The negative Euclidean distance of each vector of `a` to the one of `b` at the same index, [n]."""
    left, right = _in_pairs(a, b)
    return np.asarray(-np.sqrt(((left - right) ** 2).sum(axis=-1)))


def pairwise_manhattan_sim(a: Any, b: Any) -> np.ndarray:
    """The negative Manhattan distance of each vector of `a` to the one of `b` at the same index, [n]."""
    left, right = _in_pairs(a, b)
    return np.asarray(-np.abs(left - right).sum(axis=-1))


def pairwise_angle_sim(x: Any, y: Any) -> np.ndarray:
    """The angle similarity of AnglE of each vector of `x` and the one of `y` at the same index, [n].

    The first half of a vector holds the real parts of complex numbers, the second their imaginary parts. Each number
    of x is divided by that of y, both scaled to vectors of length 1; the result is the absolute value of the sum of
    all real and imaginary parts. Vectors of an odd length count as if they had a zero at the end.
    """
    left, right = _in_pairs(x, y)
    if left.shape[-1] % 2:
        left, right = (np.pad(one, [(0, 0)] * (one.ndim - 1) + [(0, 1)]) for one in (left, right))
    half = left.shape[-1] // 2
    numerator = (left[..., :half] + 1j * left[..., half:]) * np.conj(right[..., :half] + 1j * right[..., half:])
    scale = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    whole = numerator.sum(axis=-1)
    return np.asarray(np.abs((whole.real + whole.imag) / scale).astype(left.dtype))


class SimilarityFunction(Enum):
    """The measures that a model may have."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"  # noqa: PIE796 (both names are there)
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"

    @staticmethod
    def to_similarity_fn(similarity_function: str | SimilarityFunction) -> Measure:
        """The function that compares all with all by this measure."""
        return MEASURES[_named(similarity_function)][0]

    @staticmethod
    def to_similarity_pairwise_fn(similarity_function: str | SimilarityFunction) -> Measure:
        """The function that compares pairs by this measure."""
        return MEASURES[_named(similarity_function)][1]

    @staticmethod
    def possible_values() -> list[str]:
        return [one.value for one in SimilarityFunction]


MEASURES: dict[SimilarityFunction, tuple[Measure, Measure]] = {
    SimilarityFunction.COSINE: (cos_sim, pairwise_cos_sim),
    SimilarityFunction.DOT_PRODUCT: (dot_score, pairwise_dot_score),
    SimilarityFunction.EUCLIDEAN: (euclidean_sim, pairwise_euclidean_sim),
    SimilarityFunction.MANHATTAN: (manhattan_sim, pairwise_manhattan_sim),
}


def _named(measure: str | SimilarityFunction) -> SimilarityFunction:
    try:
        return SimilarityFunction(measure)
    except ValueError:
        what = f"must be one of {', '.join(SimilarityFunction.possible_values())}"
        raise InputError("compat", what, given=measure, field="similarity_function") from None
