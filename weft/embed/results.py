"""Results of embedding: vectors with token counts and fingerprint, ranked documents, and interrupted calls.

Vectors are float32, float16, int8 with a scale per vector, or one bit per number:

    f16      rounded to nearest
    int8     scale = 127 / max |v| (1 if max |v| is below 1e-10); q = round-half-away(v * scale), within ±127
    binary   bit = v >= 0, eight to a byte, the first number in the highest bit; zeros fill the last byte

Cosines of int8 vectors need no scale; of binary ones, cosine is about 1 - 2 h / dimension for a Hamming distance h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

OUTPUT_DTYPES = ("f32", "f16", "int8", "binary")
LEAST = 1e-10  # a vector whose largest number is below this counts as zero


@frozen
class Ranked:
    """A document's index in the caller's list, and its similarity to the query."""

    index: int
    score: float


@frozen
class Embedded:
    """Vectors of n texts, row i of text i, and how each was made.

    `tokens[i]` tokens were computed for text i, special tokens and prompt included, in `windows[i]` sequences;
    `dropped[i]` were cut off. int8 vectors have `scales`, float32 [n]: row i divided by scales[i] approximates the
    vector.
    """

    vectors: np.ndarray  # [n, dimension], or [n, ceil(dimension / 8)] of binary
    tokens: np.ndarray  # int32 [n]
    dropped: np.ndarray  # int32 [n]
    windows: np.ndarray  # int32 [n]
    made_by: Callable[[], str]  # computes the fingerprint when it is first read: hashing the weights takes time
    cached: int = 0  # texts whose vectors came from the cache
    scales: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the embedder that made the vectors."""
        return self.made_by()

    def counting(self, cached: int) -> Embedded:
        """A copy with `cached` set."""
        return replace(self, cached=cached)

    def first(self, count: int) -> Embedded:
        """The results of the first `count` texts."""
        cut = {name: getattr(self, name)[:count] for name in ("vectors", "tokens", "dropped", "windows")}
        return replace(self, **cut, scales=None if self.scales is None else self.scales[:count])


class EmbedInterrupted(KeyboardInterrupt):
    """Ctrl-C while texts were embedded: `done` holds the vectors of the first of them, in order."""

    def __init__(self, done: Embedded) -> None:
        super().__init__(f"interrupted after {len(done)} texts; their vectors are in `done`")
        self.done = done

    @property
    def vectors(self) -> np.ndarray:
        return self.done.vectors


def check_output(dtype: str) -> str:
    if dtype not in OUTPUT_DTYPES:
        raise InputError("embed", f"must be one of {', '.join(OUTPUT_DTYPES)}", given=dtype, field="output_dtype")
    return dtype


def converted(made: Embedded, dtype: str) -> Embedded:
    """`made` with its float32 vectors converted to `dtype`."""
    import numpy as np

    if dtype == "f16":
        return replace(made, vectors=made.vectors.astype(np.float16))
    if dtype == "int8":
        codes, scales = int8_codes(made.vectors)
        return replace(made, vectors=codes, scales=scales)
    if dtype == "binary":
        return replace(made, vectors=np.packbits(made.vectors >= 0, axis=1))
    return made


def int8_codes(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes int8 [n, dimension] and scales float32 [n] of vectors float32."""
    import numpy as np

    largest = np.abs(vectors).max(axis=1, initial=0)
    scales = np.where(largest > LEAST, np.float32(127) / np.maximum(largest, np.float32(LEAST)), np.float32(1))
    wide = vectors * scales[:, None]
    rounded = np.copysign(np.floor(np.abs(wide) + np.float32(0.5)), wide)  # numpy's own rounds halves to even
    return np.clip(rounded, -127, 127).astype(np.int8), scales.astype(np.float32)
