"""LoRA adapters on the device: a table for each weight, which changes while steps run, and the shaders that read it.

A table is one buffer. Its first words say where the parts of each adapter are, 0 for none; there a word for each matrix
of a stack says where its part is: lib/adapter.wgsl. All numbers are floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from weft.backends.base import AdapterPacker, AdapterWeights, PartPlace, WantedTable
from weft.backends.webgpu.device import Device
from weft.backends.webgpu.launch import LANES, WORD, Call, Form, Launch, kernel
from weft.frozen import frozen
from weft.ops.packed import Packed
from weft.ops.state import ADAPTERS, AdapterArray

PART_WORDS = 6  # rank, and where down, up, scale, gain and shift are


@frozen(eq=False)
class HostWeight:
    """A matrix or vector of an adapter in the machine's memory, from which tables are filled."""

    values: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    def dense(self) -> np.ndarray:
        return self.values

    def row(self, index: int) -> np.ndarray:
        row: np.ndarray = self.values.reshape(-1, self.values.shape[-1])[index]
        return row


class GpuAdapterPacker(AdapterPacker):
    """Widens the parts of one version."""

    def __init__(self) -> None:
        self._parts: dict[PartPlace, AdapterWeights] = {}

    def add(self, place: PartPlace, values: Mapping[str, Any]) -> None:
        made: dict[str, Any] = {}
        for name, value in values.items():
            if value is not None:
                given = value if isinstance(value, np.ndarray) else value.numpy()
                made[name] = HostWeight(np.ascontiguousarray(given, np.float32))
        if made:
            self._parts[place] = AdapterWeights(**made)

    def finish(self) -> Mapping[PartPlace, AdapterWeights]:
        return self._parts


class GpuAdapterTable:
    """The adapters of one weight, or of a stack of `matrices`. `buffer` is another one after it has grown.

    What is written reaches the device after the steps that were submitted before, and no step that is submitted later
    reads what was cleared: an adapter stays as long as a step uses it.
    """

    def __init__(self, device: Device, wanted: WantedTable) -> None:
        self._device = device
        self.name = wanted.name
        self.matrices = wanted.matrices or 1
        self.buffer = device.buffer(ADAPTERS * WORD, wanted.name)
        self._end = ADAPTERS  # words in use, with the free ones between
        self._free: list[tuple[int, int]] = []  # first word and how many, in order
        self._held: dict[int, list[tuple[int, int]]] = {}  # by adapter; the first are its words for the matrices

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def put(self, index: int, down: Any, up: Any, scale: Any, gain: Any, shift: Any, matrix: int = 0) -> None:
        """The part of adapter `index` for a matrix: HostWeights, None where it has none."""
        vectors = [None if one is None else one.row(0) for one in (scale, gain, shift)]
        rows = None if down is None else down.dense()
        # Neighbouring columns of a result are neighbours in memory.
        turned = None if up is None else np.ascontiguousarray(up.dense().T)
        with self._device.lock, self._device.guard():
            if index not in self._held:
                first = self._take(index, self.matrices)
                self._write(first, np.zeros(self.matrices, np.uint32))
                self._write(index, np.array([first], np.uint32))
            sizes = [0 if one is None else one.size for one in (rows, turned, *vectors)]
            at = self._take(index, PART_WORDS + sum(sizes))
            ends = at + PART_WORDS + np.cumsum(sizes)
            starts = [int(end) - size if size else 0 for end, size in zip(ends, sizes)]
            words = [np.array([0 if rows is None else len(rows), *starts], np.uint32)]
            words += [one.reshape(-1).view(np.uint32) for one in (rows, turned, *vectors) if one is not None]
            self._write(at, np.concatenate(words))
            self._write(self._held[index][0][0] + matrix, np.array([at], np.uint32))

    def clear(self, index: int) -> None:
        with self._device.lock, self._device.guard():
            if index in self._held:
                self._write(index, np.zeros(1, np.uint32))
                self._free = _merged([*self._free, *self._held.pop(index)])

    def _write(self, at: int, words: np.ndarray) -> None:
        self.buffer.write(at * WORD, words)

    def _take(self, index: int, count: int) -> int:
        """The first of so many words, which adapter `index` has then."""
        room = next((one for one in self._free if one[1] >= count), None)
        if room is not None:
            self._free.remove(room)
            if room[1] > count:
                self._free = _merged([*self._free, (room[0] + count, room[1] - count)])
            at = room[0]
        else:
            at, end = self._end, self._end + count
            if end * WORD > self.buffer.nbytes:
                self._grow(end)
            self._end = end
        self._held.setdefault(index, []).append((at, count))
        return at

    def _grow(self, words: int) -> None:
        before, most = self.buffer, self._device.largest_buffer
        size = max(words * WORD, min(2 * before.nbytes, most))
        self.buffer = self._device.buffer(size, f"the adapters of {self.name}", data_of=before)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Spans in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, count in sorted(spans):
        if found and sum(found[-1]) == first:
            found[-1] = (found[-1][0], found[-1][1] + count)
        else:
            found.append((first, count))
    return found


def table_from(device: Device, array: AdapterArray) -> GpuAdapterTable:
    """The device's own table with these adapters."""
    table = GpuAdapterTable(device, WantedTable("table", array.rows, array.cols, array.matrices))
    for place, part in array.parts.items():
        matrix, index = divmod(place, ADAPTERS)
        down, up, scale, gain, shift = map(_held, (part.down, part.up, part.scale, part.gain, part.shift))
        table.put(index, down, up, scale, gain, shift, matrix)
    return table


def _held(value: np.ndarray | Packed | None) -> HostWeight | None:
    if value is None:
        return None
    return HostWeight(np.ascontiguousarray(value.dense() if isinstance(value, Packed) else value, np.float32))


def _owners(call: Call) -> tuple[dict[str, Any], Form]:
    """Where rows begin, what their sequences are and which adapters these have; and how many rows there are."""
    rows, width = call.shape(0)
    places: dict[str, Any] = {"y": call.at(0), "out": call.out(), "rows": rows, "width": width}
    places |= {"segments": call.at(3), "sequences": call.shape(4)[0], "adapters": call.at(4)}
    return places, rows


@kernel("lora")
def lora(call: Call) -> Iterator[Launch]:
    places, rows = _owners(call)
    places |= {"x": call.at(1), "depth": call.shape(1)[1]}
    if call.given(5):
        places["chosen"] = call.at(5)
    if call.given(6):
        places |= {"starts": call.at(6), "matrices": call.bound(2).matrices}
    defines = (("CHOSEN", str(call.given(5))), ("STARTS", str(call.given(6))))
    times = -(-places["width"] // (4 * LANES))
    yield Launch("lora", defines, places, (call.bound(2),), rows, 1, times)


@kernel("lora_embedding")
def lora_embedding(call: Call) -> Iterator[Launch]:
    places, rows = _owners(call)
    places |= {"ids": call.at(1), "depth": call.shape(2)[1]}
    times = -(-places["width"] // LANES)
    yield Launch("lora_embedding", (), places, (call.bound(2),), rows, 1, times)
