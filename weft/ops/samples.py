"""Operands worth testing an op on; every family draws from these, always through a seeded generator.

Sizes lie on both sides of a vector: 1, 16 (lanes), 17, 64, and 65, one past the widest vector in use.
"""

from collections.abc import Sequence

import numpy as np

from weft.dtype import DTYPES
from weft.ops.packed import Packed, pack
from weft.ops.state import PAGE, KvArray


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Standard normal float32 times `scale`."""
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def ugly(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Six orders of magnitude either side of 1 in one array, which is hard on sums and exponentials."""
    return (rng.standard_normal(shape) * 10.0 ** rng.uniform(-6, 6, shape)).astype(np.float32)


def strided(rng: np.random.Generator, rows: int, cols: int) -> np.ndarray:
    """A view [rows, cols] whose neighbours in a row are not neighbours in memory."""
    return normal(rng, cols, 2 * rows).T[::2]


def integers(values: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.asarray(values, np.int32)


def segments(lengths: Sequence[int]) -> np.ndarray:
    """Where sequences of these lengths start in the flat list, and where the last one ends."""
    return integers(np.cumsum([0, *lengths]))


# Where a block keeps its half-precision scales, so that random bytes become a block of sane numbers.
SCALES = {
    "q4_0": [0], "q4_1": [0, 2], "q5_0": [0], "q5_1": [0, 2], "q8_0": [0], "iq4_nl": [0],
    "q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208],
    "iq4_xs": [0], "iq2_xxs": [0], "iq2_xs": [0], "iq2_s": [0], "iq3_xxs": [0], "iq3_s": [0], "iq1_s": [0],
    "tq1_0": [52], "tq2_0": [64], "mxfp4": [], "iq1_m": [], "q4_z": [0, 2],
}  # fmt: skip


def weight(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray | Packed:
    """A weight of any type: float32 as an array, others packed; quantised blocks hold random codes."""
    if dtype == "f32":
        return normal(rng, *shape)
    if not DTYPES[dtype].quantised:
        return pack(normal(rng, *shape), dtype)
    count = int(np.prod(shape)) // DTYPES[dtype].block
    blocks = rng.integers(0, 256, (count, DTYPES[dtype].size_bytes), dtype=np.uint8)
    if dtype == "mxfp4":
        blocks[:, 0] = rng.integers(118, 124, count)  # exponents
    if dtype == "iq1_m":  # the upper halves of four bytes are the scale, here 0.02 to 0.03
        for byte, bits in zip((49, 51, 53, 55), (rng.integers(0, 16, count), 0x5, 0x5, 0x2), strict=True):
            blocks[:, byte] = blocks[:, byte] & 15 | np.uint8(16) * np.asarray(bits, np.uint8)
    for offset in SCALES[dtype]:
        scale = (rng.uniform(0.01, 0.1, (count, 1)) * rng.choice([-1, 1], (count, 1))).astype("<f2")
        blocks[:, offset : offset + 2] = scale.view(np.uint8)
    return Packed(DTYPES[dtype], shape, blocks.reshape(-1))


def paged(
    rng: np.random.Generator, starts: Sequence[int], lengths: Sequence[int], heads: int, dim: int, dtype: str
) -> tuple[KvArray, np.ndarray, np.ndarray, np.ndarray]:
    """A filled state, and positions, segments and pages of a step in which sequence b adds lengths[b] at starts[b].

    Pages are assigned in random order and some stay unused, so that a wrong index reads something else.
    """
    ends = [start + length for start, length in zip(starts, lengths)]
    counts = [-(-end // PAGE) for end in ends]
    order = integers(rng.permutation(sum(counts) + 2))
    table = np.zeros((len(ends), max(counts) + 1), np.int32)
    for b, count in enumerate(counts):
        table[b, :count] = order[sum(counts[:b]) :][:count]
    key, value = normal(rng, len(order), heads, dim, PAGE), normal(rng, len(order), heads, PAGE, dim)
    state = KvArray.of(key, value, dtype)
    positions = np.concatenate([np.arange(start, end) for start, end in zip(starts, ends)])
    return state, integers(positions), segments(lengths), table
