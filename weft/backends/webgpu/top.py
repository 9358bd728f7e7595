"""The largest numbers of the rows of an output, found on the device: a step then reads back a few hundred bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.backends.base import TopRows
from weft.backends.webgpu.device import PARAMS_BYTES, Buffer, Device
from weft.backends.webgpu.native import Dispatch
from weft.backends.webgpu.shader import Shader

CHUNK = 1024  # numbers that a workgroup takes: top.wgsl
WIDEST = 65_535  # workgroups on one axis: what every device allows
KEPT = (1, 64)  # how many a dispatch leaves of a chunk


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


class Top:
    """The passes over rows of `width` numbers that leave the `kept` largest."""

    def __init__(self, device: Device, width: int, kept: int) -> None:
        self._device = device
        self._sizes = sizes_of(width, kept)
        self._width = width
        self._kept = kept
        self._made: list[tuple[Shader, Any]] = [
            device.pipeline("top", (("FIRST", str(at == 0)), ("KEEP", str(kept)))) for at in range(len(self._sizes) - 1)
        ]
        self._params = device.buffer(len(self._made) * PARAMS_BYTES, "parameters")

    def dispatches(self, arena: Buffer, rows: int, source: int, scratch: int) -> tuple[list[Dispatch], int]:
        """For rows that begin at word `source`, with results from word `scratch` on; and the word of the last ones."""
        found, numbers = [], np.zeros((len(self._made), PARAMS_BYTES // 4), np.uint32)
        for at, (shader, compiled) in enumerate(self._made):
            count = self._sizes[at]
            chunks = -(-count // CHUNK)
            given = {"x": source, "out": scratch, "rows": rows, "count": count, "chunks": chunks}
            numbers[at, : len(shader.params)] = [given[name] for name, _ in shader.params]
            group = self._device.bind(shader.written, arena, self._params, ())
            across = min(rows * chunks, WIDEST)
            found.append(Dispatch(compiled, group, at * PARAMS_BYTES, across, -(-rows * chunks // across)))
            source, scratch = scratch, scratch + 2 * rows * self._sizes[at + 1]
        self._params.write(0, numbers)
        return found, source

    def nbytes(self, rows: int) -> int:
        return 8 * rows * self._sizes[-1]

    def rows(self, data: np.ndarray, rows: int) -> TopRows:
        """What was read back."""
        pairs = data[: self.nbytes(rows)].view(np.uint32).reshape(rows, self._sizes[-1], 2)
        pairs = pairs[:, : min(self._kept, self._width)]
        keys = pairs[..., 0]
        bits = np.where(keys >> 31, keys & np.uint32(0x7FFFFFFF), ~keys)
        return TopRows(pairs[..., 1].astype(np.int64), bits.view(np.float32))
