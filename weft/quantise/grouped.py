"""Rows of floats as integers with a scale for each group, and with a zero point: the codes of compressed-tensors.

Candidates for the scale of a group are tried, each is fitted to the codes that it gives, and the one that loses least
stays. A scale is a half; a row or a group of zeros has scale 1.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from weft.frozen import frozen

# Parts of the largest magnitude (4 bits) that the range of codes may end at: below one, what is outside is cut off.
SHRUNK = (1.07, 1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65)
ROWS = 256  # at a time: what they take in float32, several times over, stays in the caches


@frozen(eq=False)
class Grouped:
    """`codes` [rows, cols] from 0 up, `zeros` and `scales` (f16) [rows, groups]."""

    bits: int
    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray

    def dense(self) -> np.ndarray:
        """scale * (code - zero), float32."""
        rows, cols = self.codes.shape
        parts = self.codes.reshape(rows, self.zeros.shape[1], -1).astype(np.float32)
        parts -= self.zeros[..., None].astype(np.float32)
        parts *= self.scales[..., None].astype(np.float32)
        return parts.reshape(rows, cols)


def rounded(values: np.ndarray, *, bits: int, group: int | None, symmetric: bool, threads: int = 1) -> Grouped:
    """Rows [rows, cols] in groups of `group` columns, or one for each row; cols must be whole groups."""
    values = np.ascontiguousarray(values, np.float32)
    rows, cols = values.shape
    starts = [*range(0, rows, ROWS), rows]

    def part(ends: tuple[int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        taken = values[ends[0] : ends[1]].reshape(-1, group or cols)
        return _symmetric(taken, bits) if symmetric else _shifted(taken, bits)

    with ThreadPoolExecutor(max(1, threads)) as team:
        made = list(team.map(part, itertools.pairwise(starts)))
    codes, zeros, scales = (np.concatenate(parts) for parts in zip(*made))
    groups = cols // (group or cols)
    return Grouped(bits, codes.reshape(rows, cols), zeros.reshape(rows, groups), scales.reshape(rows, groups))


def _halves(scales: np.ndarray) -> np.ndarray:
    """As halves, and never 0: a group so small becomes zeros whatever its scale is."""
    halves = np.minimum(scales, np.float32(65504)).astype(np.float16)
    return np.where(halves > 0, halves, np.float16(1))


def _symmetric(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    middle = 1 << (bits - 1)
    largest = np.abs(groups).max(axis=1)
    zeros = np.full(len(groups), middle, np.uint8)
    best = _Best(groups, zeros)
    # eight bits: the range ends at the largest magnitude, where cutting off would lose more than it gains
    for shrunk in SHRUNK if bits == 4 else (middle / (middle - 1),):
        best.offer(_halves(largest * np.float32(shrunk / middle)), zeros, middle, refit=bits == 4)
    return best.codes, zeros, best.scales


def _shifted(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    top = (1 << bits) - 1
    low, high = np.minimum(groups.min(axis=1), 0), np.maximum(groups.max(axis=1), 0)
    best = _Best(groups, np.zeros(len(groups), np.uint8))
    for shrunk in SHRUNK[1:]:
        scales = _halves((high - low) * np.float32(shrunk / top))
        zeros = np.clip(np.rint(-low * np.float32(shrunk) / scales.astype(np.float32)), 0, top).astype(np.uint8)
        best.offer(scales, zeros, top - zeros.astype(np.float32), refit=True)
    return best.codes, best.zeros, best.scales


class _Best:
    """The codes of each group that lose least so far."""

    def __init__(self, groups: np.ndarray, zeros: np.ndarray) -> None:
        self.groups = groups
        self.lost = np.full(len(groups), np.inf, np.float32)
        self.codes = np.empty(groups.shape, np.uint8)
        self.scales = np.ones(len(groups), np.float16)
        self.zeros = zeros.copy()

    def offer(self, scales: np.ndarray, zeros: np.ndarray, above: np.ndarray | int, *, refit: bool) -> None:
        """`above` is how far the codes go from the zero up; `refit` also tries the scale that fits the codes best."""
        wide = zeros.astype(np.float32)[:, None]
        highest = np.broadcast_to(np.asarray(above, np.float32), len(zeros))[:, None]
        if np.ndim(above) == 0:
            highest = highest - 1  # as many codes as below the zero, less one
        for again in range(2 if refit else 1):
            inverse = np.float32(1) / scales.astype(np.float32)
            signed = np.rint(self.groups * inverse[:, None])
            np.clip(signed, -wide, highest, out=signed)
            left = self.groups - signed * scales.astype(np.float32)[:, None]
            lost = np.einsum("ij,ij->i", left, left)
            better = lost < self.lost
            self.lost[better], self.scales[better], self.zeros[better] = lost[better], scales[better], zeros[better]
            self.codes[better] = (signed[better] + wide[better]).astype(np.uint8)
            if refit and not again:
                square = np.einsum("ij,ij->i", signed, signed)
                fitted = np.einsum("ij,ij->i", self.groups, signed) / np.maximum(square, np.float32(1e-30))
                scales = np.where(square > 0, _halves(fitted), scales)


def packed_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [n, m] in int32 words along the second axis, the first in the lowest bits; padded with zeros."""
    count = 32 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % count)))
    if bits == 4:
        padded = padded[:, 0::2] | padded[:, 1::2] << 4
    return np.ascontiguousarray(padded, np.uint8).view("<i4")
