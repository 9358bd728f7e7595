"""Output types of vectors: float32, float16, int8 with a scale per vector, or one bit per number.

    f16      rounded to nearest
    int8     scale = 127 / max |v| (1 if max |v| is below 1e-10); q = round-half-away(v * scale), within ±127
    binary   bit = v >= 0, eight to a byte, the first number in the highest bit; zeros fill the last byte

Cosines of int8 vectors need no scale; of binary ones, cosine is about 1 - 2 h / dimension for a Hamming distance h.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.embed.results import Embedded
from weft.errors import InputError

if TYPE_CHECKING:
    import numpy as np

OUTPUT_DTYPES = ("f32", "f16", "int8", "binary")
LEAST = 1e-10  # a vector whose largest number is below this counts as zero


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
