"""A GPU that is not here: programs are planned for it, and weights laid out, as a browser's WebGPU has them."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from weft.backends.base import WantedState, WantedWeight
from weft.backends.webgpu.backend import GpuBackend
from weft.backends.webgpu.launch import KERNELS, STORED, WORD
from weft.backends.webgpu.products import GPU_PRODUCTS, Rows
from weft.backends.webgpu.states import page_words
from weft.backends.webgpu.weights import CODES, ROWS, DeviceWeight, layout_of, row_bytes
from weft.dtype import DType, dtype
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.ops.spec import Spec

LARGEST_BINDING = 128 << 20  # bytes: what every device with WebGPU allows


@frozen
class Piece:
    """Rows of a weight in a buffer: from byte `at` on, each `stride` bytes; without rows, all numbers as they are
    stored. `codes`: where the scale of a block of the file is, its bytes, and where its codes begin and end, which come
    first in a row."""

    weight: str
    at: int = 0
    first: int = 0
    rows: int = 0
    stride: int = 0
    codes: tuple[int, int, int, int] | None = None


@frozen(eq=False)
class ListedBuffer:
    """A buffer as a host makes it: with pieces of weights, or for the pages of a state."""

    nbytes: int
    pieces: tuple[Piece, ...] = ()
    state: str = ""


class ListedState:
    """The pages of a layer: `buffer` has the bytes of one."""

    def __init__(self, wanted: WantedState) -> None:
        heads, dim = wanted.shape
        self.buffer = ListedBuffer(WORD * page_words(wanted.dtype, heads, dim), state=wanted.name)


class ListedDevice:
    """What launches ask of a device."""

    products = GPU_PRODUCTS
    kernels = KERNELS
    holds = ("f32", "i32")
    fusing = True
    busy = 256
    largest_buffer = LARGEST_BINDING

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def free_memory(self) -> None:
        return None

    def specialised(self, launch: Any) -> Any:
        return launch

    def attention(self, call: Any) -> None:
        return None

    def rows_of(self, program: Any, units: Any, call: Any) -> tuple[Any, ...]:
        return ()

    def joined(self, parts: Sequence[tuple[ListedBuffer, int]]) -> ListedBuffer:
        """A buffer with the first bytes of these, which are vectors, one after another."""
        pieces, at = [], 0
        for buffer, nbytes in parts:
            (piece,) = buffer.pieces
            pieces.append(Piece(piece.weight, at))
            at += nbytes
        return ListedBuffer(at, tuple(pieces))


class ListBackend(GpuBackend):
    """Plans programs as the GPU backend does; nothing runs on it."""

    def __init__(self) -> None:
        self.device: Any = ListedDevice()
        self.name = "gpu-list"


def listed_weights(
    wanted: Sequence[WantedWeight], stored: Mapping[str, tuple[DType, tuple[int, ...]]], largest: int
) -> dict[str, DeviceWeight]:
    """Where each weight lies, given the types and shapes that the bundle has; UnsupportedError for those of which the
    device has another form than the bundle."""
    found: dict[str, DeviceWeight] = {}
    groups: dict[str, list[WantedWeight]] = {}
    for weight in wanted:
        kind, _, together = layout_of(weight)
        if stored.get(weight.name) is None or math.prod(stored[weight.name][1]) != math.prod(weight.shape):
            raise UnsupportedError("export", f"the list for GPUs needs {weight.name}, which the bundle does not have")
        element = stored[weight.name][0]
        fits = element.name in STORED if kind == ROWS else element.name == "f32"
        if not fits:
            what = f"{weight.name} is {element}, which shaders do not read as it is stored"
            raise UnsupportedError("export", what, advice=f"export a model with weights in {', '.join(STORED)}")
        groups.setdefault(together or weight.name, []).append(weight)
    for group in groups.values():
        found.update(_laid_out(group, {weight.name: stored[weight.name][0] for weight in group}, largest))
    return found


def _laid_out(group: Sequence[WantedWeight], elements: Mapping[str, DType], largest: int) -> dict[str, DeviceWeight]:
    """Weights that lie together, where one buffer has room for them and their rows are alike; else each by itself."""
    first = group[0]
    if layout_of(first)[0] != ROWS:
        return {weight.name: _vector(weight) for weight in group}
    stride = row_bytes(elements[first.name], first.shape[-1])
    rows = [math.prod(weight.shape[:-1]) for weight in group]
    alike = all(
        elements[weight.name] == elements[first.name] and weight.shape[-1] == first.shape[-1] for weight in group
    )
    if len(group) == 1 or not alike or sum(rows) * stride > largest:
        return {weight.name: _rows(weight, elements[weight.name], largest) for weight in group}
    element, starts = elements[first.name], []
    pieces: list[Piece] = []
    for weight, count in zip(group, rows):
        starts.append(sum(piece.rows for piece in pieces))
        pieces.append(Piece(weight.name, starts[-1] * stride, 0, count, stride, CODES.get(element.name)))
    joint = ListedBuffer(sum(rows) * stride, tuple(pieces))
    return {
        weight.name: DeviceWeight(
            Spec(weight.shape, element), element.name, stride // WORD, (Rows(0, count, joint, start),)
        )
        for weight, count, start in zip(group, rows, starts)
    }


def _vector(weight: WantedWeight) -> DeviceWeight:
    count = math.prod(weight.shape)
    buffer = ListedBuffer(WORD * count, (Piece(weight.name),))
    return DeviceWeight(Spec(weight.shape, dtype("f32")), "f32", 1, (Rows(0, count, buffer),))


def _rows(weight: WantedWeight, element: DType, largest: int) -> DeviceWeight:
    stride = row_bytes(element, weight.shape[-1])
    total, each = math.prod(weight.shape[:-1]), max(1, largest // stride)
    parts = []
    for first in range(0, total, each):
        count = min(each, total - first)
        piece = Piece(weight.name, 0, first, count, stride, CODES.get(element.name))
        parts.append(Rows(first, count, ListedBuffer(count * stride, (piece,))))
    return DeviceWeight(Spec(weight.shape, element), element.name, stride // WORD, tuple(parts))
