"""The largest numbers of the rows of an output, found on the device: a step then reads back a few hundred bytes."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.base import Aside, Masks, Temperatures, TopRows
from weft.backends.webgpu.device import PARAMS_BYTES, Buffer, Device
from weft.backends.webgpu.launch import Form, Launch
from weft.backends.webgpu.native import Dispatch
from weft.backends.webgpu.shader import Shader
from weft.ops.spec import Dim

CHUNK = 1024  # numbers that a workgroup takes: top.wgsl
WIDEST = 65_535  # workgroups on one axis: what every device allows
KEPT = (1, 64)  # how many a dispatch leaves of a chunk
LEAST_ASIDE = 64  # columns for which there is room
NOWHERE = 0xFFFFFFFF  # a column that no row has
AT_ONCE = 64  # numbers that a workgroup takes: put_aside.wgsl
LEAST = np.finfo(np.float32).min  # what is written where a number was that is put aside


def kept_for(wanted: int) -> int:
    """How many are found where so many are wanted."""
    return next(kept for kept in KEPT if wanted <= kept)


def sizes_of(width: int, kept: int) -> list[int]:
    """How many numbers of a row go into each pass, and in the end how many come out of the last."""
    sizes = [width]
    while len(sizes) == 1 or sizes[-1] > kept:
        sizes.append(-(-sizes[-1] // CHUNK) * kept)
    return sizes


def scratch_words(rows: int, width: int, kept: int) -> int:
    """Words that all passes write."""
    return sum(2 * rows * size for size in sizes_of(width, kept)[1:])


def beside_words(width: int, aside: int, summed: bool) -> int:
    """Words that a row has beside its largest numbers: columns that are put aside, and the masses of chunks."""
    return aside + 2 * -(-width // CHUNK) * summed


def mask_words(width: int) -> int:
    """Words of the bits of a row."""
    return -(-width // 32)


def mask_rows(masks: Sequence[np.ndarray | None], width: int) -> np.ndarray:
    """Bits of the numbers that count, uint32 [rows, words]; None is all of them."""
    found = np.full((len(masks), mask_words(width)), 0xFFFFFFFF, np.uint32)
    for row, mask in zip(found, masks):
        if mask is not None:
            row[: len(mask)] = mask
            row[len(mask) :] = 0
    return found


def room_for(aside: int) -> int:
    """Places for columns that are put aside: a power of two, so that few steps differ."""
    return max(LEAST_ASIDE, 1 << (aside - 1).bit_length()) if aside else 0


class Asked:
    """What is asked of each row beside its largest numbers: which columns count, which are put aside and read back
    whatever they are, and the temperature of `TopRows.masses`."""

    def __init__(self, masks: Masks, aside: Aside, temperatures: Temperatures, rows: int, width: int) -> None:
        self.masked = masks is not None
        self.aside = room_for(max(map(len, aside or ()), default=0))
        self.summed = temperatures is not None
        self._columns = np.full((rows, self.aside), NOWHERE, np.uint32)
        self._barred = np.zeros((rows, self.aside), bool)  # put aside, and not allowed
        allowed = np.zeros((rows, 0), np.uint32) if masks is None else mask_rows(masks, width)
        for row, given in enumerate(aside or ()):
            self._columns[row, : len(given)] = given
            if self.masked:
                self._barred[row, : len(given)] = ~(allowed[row, given >> 5] >> (given & 31)) & 1
        by = (1 / np.array(temperatures or (), np.float64)).astype(np.float32)
        self.words = np.concatenate([allowed.ravel(), self._columns.ravel(), by.view(np.uint32)])

    def joined(self, found: TopRows, picked: np.ndarray) -> TopRows:
        """The largest numbers, and behind them the numbers put aside, `picked` [rows, aside]."""
        if not self.aside:
            return found
        found.values[~np.isfinite(picked).all(axis=1), 0] = np.nan
        values = np.concatenate([found.values, np.where(self._barred, LEAST, picked)], axis=1)
        values[values == LEAST] = -np.inf  # where there is nothing, or where what was put aside had been
        ids = np.concatenate([found.ids, self._columns], axis=1)
        return TopRows(ids, values, found.ids.shape[1])

    def restore(self, numbers: np.ndarray, row: int, picked: np.ndarray) -> None:
        """Put back what was put aside of this row: `picked` [aside]."""
        there = self._columns[row] != NOWHERE
        numbers[self._columns[row][there]] = picked[there]


def top_launches(width: int, kept: int, source: Form, scratch: Form) -> tuple[list[Launch], Form]:
    """The passes as launches, for rows [L, width] that begin at word `source`, and the word of the last results."""
    sizes, found = sizes_of(width, kept), []
    for at, size in enumerate(sizes[:-1]):
        defines = (("FIRST", str(at == 0)), ("KEEP", str(kept)), ("MASKED", "False"))
        chunks = -(-size // CHUNK)
        params = {"x": source, "out": scratch, "rows": Dim(L=1), "count": size, "chunks": chunks}
        found.append(Launch("top", defines, params, (), Dim(L=chunks)))
        source, scratch = scratch, scratch + Dim(L=2 * sizes[at + 1])
    return found, source


class Top:
    """The passes over rows of `width` numbers that leave the `kept` largest; `masked`, of those that a mask allows;
    `aside` columns of each row as they are; and, `summed`, the masses of its chunks."""

    def __init__(self, device: Device, width: int, kept: int, masked: bool, aside: int, summed: bool) -> None:
        self._device = device
        self._sizes = sizes_of(width, kept)
        self._width = width
        self._kept = kept
        self._masked = masked
        self._aside = aside
        self._summed = summed
        self._made: list[tuple[Shader, Any]] = [device.pipeline("put_aside", ())] if aside else []
        self._made += [device.pipeline("mass", (("MASKED", str(masked)),))] if summed else []
        self._made += [
            device.pipeline("top", (("FIRST", str(at == 0)), ("KEEP", str(kept)), ("MASKED", str(masked and at == 0))))
            for at in range(len(self._sizes) - 1)
        ]
        self._params = device.buffer(len(self._made) * PARAMS_BYTES, "parameters")

    def dispatches(self, arena: Buffer, rows: int, source: int, scratch: int, asked: int) -> tuple[list[Dispatch], int]:
        """For rows that begin at word `source`, with results from word `scratch` on and `Asked.words` at word `asked`;
        and the word of the last ones."""
        width, chunks = self._width, -(-self._width // CHUNK)
        ids = asked + rows * mask_words(width) * self._masked
        out = scratch + scratch_words(rows, width, self._kept)
        work: list[tuple[dict[str, int], int]] = []  # of each shader its parameters and its groups
        if self._aside:
            given = {"x": source, "columns": ids, "out": out, "rows": rows, "width": width, "each": self._aside}
            work.append((given, -(-rows * self._aside // AT_ONCE)))
        if self._summed:
            by, out = ids + rows * self._aside, out + rows * self._aside
            given = {"x": source, "by": by, "out": out, "rows": rows, "count": width, "chunks": chunks, "mask": asked}
            work.append((given, rows * chunks))
        for count, left in zip(self._sizes, self._sizes[1:]):
            chunks = -(-count // CHUNK)
            given = {"x": source, "out": scratch, "rows": rows, "count": count, "chunks": chunks, "mask": asked}
            work.append((given, rows * chunks))
            source, scratch = scratch, scratch + 2 * rows * left
        found, numbers = [], np.zeros((len(self._made), PARAMS_BYTES // 4), np.uint32)
        for at, ((shader, compiled), (given, groups)) in enumerate(zip(self._made, work)):
            numbers[at, : len(shader.params)] = [given[name] for name, _ in shader.params]
            group = self._device.bind(shader.written, arena, self._params, ())
            across = min(groups, WIDEST)
            found.append(Dispatch(compiled, group, at * PARAMS_BYTES, across, -(-groups // across)))
        self._params.write(0, numbers)
        return found, source

    def nbytes(self, rows: int) -> int:
        return 4 * rows * (2 * self._sizes[-1] + beside_words(self._width, self._aside, self._summed))

    def rows(self, data: np.ndarray, rows: int) -> TopRows:
        """What was read back."""
        if rows == 1 and self._kept == 1:  # a step of one sequence, where each microsecond counts
            key, found = data[:8].view(np.uint32).tolist()
            word = key ^ 0x80000000 if key >> 31 else ~key & 0xFFFFFFFF
            value = struct.unpack("<f", struct.pack("<I", word))[0] if key else -math.inf
            return TopRows(np.array([[found]]), np.array([[value]], np.float32))
        pairs = data[: 8 * rows * self._sizes[-1]].view(np.uint32).reshape(rows, self._sizes[-1], 2)
        pairs = pairs[:, : min(self._kept, self._width)]
        keys = pairs[..., 0]
        bits = np.where(keys >> 31, keys & np.uint32(0x7FFFFFFF), ~keys)
        values = np.where(
            keys == 0, np.float32(-np.inf), bits.view(np.float32)
        )  # fewer are allowed than were asked for
        return TopRows(pairs[..., 1].astype(np.int64), values)

    def picked(self, data: np.ndarray, rows: int) -> np.ndarray:
        """The numbers put aside, of what was read back: [rows, aside]."""
        first = 8 * rows * self._sizes[-1]
        return data[first : first + 4 * rows * self._aside].view(np.float32).reshape(rows, self._aside)

    def masses(self, data: np.ndarray, rows: int) -> np.ndarray | None:
        """Those of chunks, of what was read back: [rows, chunks, 2]."""
        first = 4 * rows * (2 * self._sizes[-1] + self._aside)
        return data[first : self.nbytes(rows)].view(np.float32).reshape(rows, -1, 2) if self._summed else None
