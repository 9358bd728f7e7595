"""Weights on the device: rows as the file stores them, cut into buffers that one binding can have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.base import Loaded, Loading, Source, StoredTensor, WantedWeight, Weights
from weft.backends.webgpu.device import Buffer, Device
from weft.backends.webgpu.launch import PART, STORED, WORD
from weft.backends.webgpu.products import Rows
from weft.dtype import DType, dtype
from weft.errors import MemoryPlanError
from weft.frozen import frozen
from weft.ops.packed import Packed, pack
from weft.ops.spec import Spec

# A layout is "rows:f16", rows that a product or a look-up reads, in that type, or "vector:f32", floats. "rows:f16:NAME"
# are rows that follow those of the weight NAME in one buffer, so that one dispatch multiplies by all of them.
# "stack:f16" are matrices of which a row of a product has one; none is cut.
ROWS = "rows"
STACK = "stack"
VECTOR = "vector"
ALIGNED = 16  # bytes: rows begin where four words can be read at once
# The largest half, and what the largest number of a matrix may be where two halves, the second one 2^11 times, are to
# have 21 bits of it.
LARGEST_HALF, LEAST_MOST = 65_504.0, 2.0**-14
# Where a block's scale is, its bytes, and the codes from and to: blocks that are no whole words, or begin in the middle
# of what can be read at once, are taken apart.
CODES = {
    "q8_0": (0, 2, 2, 34),
    "q4_0": (0, 2, 2, 18),
    "q4_1": (0, 4, 4, 20),
    "q5_0": (0, 2, 2, 22),
    "q5_1": (0, 4, 4, 24),
    "q3_k": (108, 2, 0, 108),
    "q6_k": (208, 2, 0, 208),
    "iq4_nl": (0, 2, 2, 18),
    "mxfp4": (0, 1, 1, 17),
}


@frozen(eq=False)
class DeviceWeight:
    """A weight of the program's type and shape; `stored` is the type it has on the device, rows are `stride` words.
    `far`: two halves do not have its floats, so that products on matrix units do not compute with it."""

    spec: Spec
    stored: str
    stride: int
    parts: tuple[Rows, ...]
    far: bool = False

    @property
    def nbytes(self) -> int:
        return sum(part.rows * self.stride * WORD for part in self.parts)


def upload(device: Device, value: np.ndarray | Packed, layout: str, name: str) -> DeviceWeight:
    """The device's form of a weight."""
    if layout == VECTOR:
        dense = value.dense() if isinstance(value, Packed) else value
        numbers = np.ascontiguousarray(dense, np.float32).reshape(-1)
        buffer = device.buffer(numbers.nbytes, name, data=numbers)
        return DeviceWeight(_spec(value), "f32", 1, (Rows(0, numbers.size, buffer),))
    rows, stored = _rows(value)
    stride = rows.shape[1] // WORD
    each = max(1, device.largest_buffer // max(rows.shape[1], 1))
    if layout == STACK:
        each = max(1, each // value.shape[-2]) * value.shape[-2]
    parts = []
    for first in range(0, len(rows), each):
        some = np.ascontiguousarray(rows[first : first + each])
        parts.append(Rows(first, len(some), device.buffer(some.nbytes, name, data=some)))
    return DeviceWeight(_spec(value), stored, stride, tuple(parts), _far(rows, stored))


def _far(rows: np.ndarray, stored: str) -> bool:
    """Of bytes [rows, bytes of a row]."""
    if stored != "f32" or not rows.size:
        return False
    numbers = np.ascontiguousarray(rows).view(np.float32)
    most = max(float(numbers.max()), -float(numbers.min()))
    return most > LARGEST_HALF or 0 < most < LEAST_MOST


def upload_stack(device: Device, matrices: Sequence[Packed], name: str) -> DeviceWeight:
    """The device's form of a stack, matrix by matrix, so that no second copy of it is in memory."""
    first, stored = _rows(matrices[0])
    size, count = first.nbytes, len(matrices)
    each = min(count, max(1, device.largest_buffer // size))
    parts = []
    for start in range(0, count, each):
        some = matrices[start : start + each]
        buffer = device.buffer(len(some) * size, name)
        for index, matrix in enumerate(some):
            buffer.write(index * size, np.ascontiguousarray(_rows(matrix)[0]))
        parts.append(Rows(start * len(first), len(some) * len(first), buffer))
    spec = Spec((count, *matrices[0].shape), matrices[0].dtype)
    return DeviceWeight(spec, stored, first.shape[1] // WORD, tuple(parts))


def _spec(value: np.ndarray | Packed) -> Spec:
    if isinstance(value, Packed):
        return value.spec
    return Spec(value.shape, dtype("f16" if value.dtype == np.float16 else "f32"))


def _rows(value: np.ndarray | Packed) -> tuple[np.ndarray, str]:
    """Bytes [rows, bytes of a row], padded to PART columns, and their type."""
    packed = value if isinstance(value, Packed) else pack(value, "f16" if value.dtype == np.float16 else "f32")
    if packed.dtype.name not in STORED:
        packed = pack(packed.dense(), "f32")
    kind = packed.dtype
    rows, cols = math.prod(packed.shape[:-1]), packed.shape[-1]
    data = packed.data.reshape(rows, -1)
    if kind.name in CODES:
        data = _codes_first(data.reshape(rows, -1, kind.size_bytes), *CODES[kind.name])
    wanted = row_bytes(kind, cols)
    if data.shape[1] == wanted:
        return data, kind.name
    padded = np.zeros((rows, wanted), np.uint8)
    padded[:, : data.shape[1]] = data
    return padded, kind.name


def row_bytes(kind: DType, cols: int) -> int:
    """Of a row on the device."""
    wanted = max(kind.nbytes(cols), kind.nbytes(-(-cols // PART) * PART))
    return -(-wanted // ALIGNED) * ALIGNED


def _codes_first(blocks: np.ndarray, scale: int, wide: int, first: int, end: int) -> np.ndarray:
    """Rows of blocks [rows, blocks, bytes] whose scales, `wide` bytes at `scale`, follow all the codes."""
    rows = len(blocks)
    parts = (blocks[:, :, first:end].reshape(rows, -1), blocks[:, :, scale : scale + wide].reshape(rows, -1))
    return np.concatenate(parts, axis=1)


def layout_of(wanted: WantedWeight) -> tuple[str, str, str]:
    """How a weight is laid out, its type, and the first weight of those that lie together, or nothing."""
    kind, _, rest = wanted.layout.partition(":")
    element, _, group = rest.partition(":")
    return kind, element, group


class GpuWeights(Weights):
    """The weights of one checkpoint, uploaded once."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def load(self, wanted: Sequence[WantedWeight], source: Source, constants: Mapping[str, bytes]) -> Loading:
        missing = [weight for weight in wanted if (weight.name, weight.layout) not in self._kept]
        self._check_room(missing)
        groups: dict[str, list[WantedWeight]] = {}
        for weight in missing:
            groups.setdefault(layout_of(weight)[2] or weight.name, []).append(weight)
        with self._device.guard():
            for group in groups.values():
                self._upload(group, source, constants)
        return Loaded()

    def _upload(self, group: Sequence[WantedWeight], source: Source, constants: Mapping[str, bytes]) -> None:
        """Weights that lie together, where one buffer has room for them; else, and with rows unlike, each by itself."""
        joint: Buffer | None = None
        start = 0
        for weight in group:
            if layout_of(weight)[0] == STACK and weight.name not in constants:
                found = [_packed(one, weight) for one in source.matrices(weight.name, _stack_shape(weight))]
                self._kept[weight.name, weight.layout] = upload_stack(self._device, found, weight.name)
                continue
            value = _read(weight, source, constants.get(weight.name))
            kind = layout_of(weight)[0]
            made = None
            if kind == ROWS and len(group) > 1:
                rows, stored = _rows(value)
                if joint is None and weight is group[0]:
                    size = sum(one.shape[0] for one in group) * rows.shape[1]
                    joint = self._device.buffer(size, weight.name) if size <= self._device.largest_buffer else None
                    like = (rows.shape[1], stored)
                if joint is not None and like == (rows.shape[1], stored):
                    joint.write(start * rows.shape[1], np.ascontiguousarray(rows))
                    part = Rows(0, len(rows), joint, start)
                    made = DeviceWeight(_spec(value), stored, rows.shape[1] // WORD, (part,), _far(rows, stored))
                    start += len(rows)
            self._kept[weight.name, weight.layout] = made or upload(self._device, value, kind, weight.name)

    def _check_room(self, wanted: Sequence[WantedWeight]) -> None:
        """MemoryPlanError, before anything is uploaded, where these do not fit."""
        free = self._device.free_memory()
        total = sum(_device_bytes(weight) for weight in wanted)
        if free is not None and total > free[0]:
            given = f"{total / 1e9:.2f} GB, and {free[1]} is {free[0] / 1e9:.2f} GB"
            advice = "use a smaller quantisation, or device cpu"
            raise MemoryPlanError("gpu", f"the weights do not fit: they take {given}", advice=advice)


def _device_bytes(wanted: WantedWeight) -> int:
    """What a weight takes on the device."""
    layout, kind, _ = layout_of(wanted)
    count = math.prod(wanted.shape)
    return dtype(kind).nbytes(count) if layout in (ROWS, STACK) and kind in STORED else 4 * count


def _stack_shape(wanted: WantedWeight) -> tuple[int, int, int]:
    count, rows, cols = wanted.shape
    return count, rows, cols


def _read(wanted: WantedWeight, source: Source, constant: bytes | None) -> np.ndarray | Packed:
    name, shape, _ = wanted
    if constant is not None:
        return np.frombuffer(constant, np.float32).reshape(shape)
    tensor = source.tensor(name, shape)
    declared: Any = dtype(layout_of(wanted)[1])
    if declared.name in ("f32", "f16"):
        return tensor.numpy().astype(declared.numpy).reshape(shape)
    if tensor.view.dtype.name != declared.name:  # rounded, as the program asks
        return pack(tensor.numpy().reshape(shape), declared)
    return _packed_as(tensor, declared, shape)


def _packed(tensor: StoredTensor, wanted: WantedWeight) -> Packed:
    """A matrix of a stack."""
    declared: Any = dtype(layout_of(wanted)[1])
    shape = wanted.shape[-2:]
    if declared.name in ("f32", "f16"):
        return pack(tensor.numpy().reshape(shape), declared)
    return _packed_as(tensor, declared, shape)


def _packed_as(tensor: StoredTensor, declared: Any, shape: tuple[int, ...]) -> Packed:
    taken = tensor if tensor.row_order is None else tensor.rows(0, shape[0])
    return Packed(declared, shape, np.frombuffer(taken.view.buffer(), np.uint8))
