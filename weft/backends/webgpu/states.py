"""The states of a model on the device: a buffer for each layer, with pages as lib/pages.wgsl has them, or slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.base import States, WantedState
from weft.backends.webgpu.device import Device
from weft.backends.webgpu.launch import PER_WORD, WORD
from weft.dtype import bf16_to_f32, dtype, f32_to_bf16
from weft.ops.state import KV_CODES, LEVELS, PAGE, KvArray, SlotArray, slot_shape

SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)  # of the codes of a word
NUMPY = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "i8r": np.int8}


def page_words(kind: str, heads: int, dim: int) -> int:
    """Words of one page of one layer."""
    return heads * (2 * PAGE * -(-dim // PER_WORD[kind]) + (2 * PAGE if kind in KV_CODES else 0))


def slot_words(kind: str, shape: tuple[int, ...]) -> int:
    """Words of one slot of one layer."""
    return math.prod(slot_shape(kind, shape))


def state_bytes(wanted: Sequence[WantedState]) -> tuple[int, int]:
    """Of one page and of one slot, all layers together."""
    pages = sum(WORD * page_words(state.dtype, *state.shape) for state in wanted if state.kind == "kv")
    return pages, sum(WORD * slot_words(state.kind, state.shape) for state in wanted if state.kind != "kv")


class KvLayer:
    """The pages of one layer."""

    def __init__(self, device: Device, wanted: WantedState, pages: int) -> None:
        self.dtype = wanted.dtype
        self.heads, self.dim = wanted.shape
        self.pages = pages
        self.page_bytes = WORD * page_words(self.dtype, self.heads, self.dim)
        self.buffer = device.buffer(max(1, pages) * self.page_bytes, f"the KV cache of layer {wanted.name}")


class SlotLayer:
    """The slots of one layer: a state for each sequence."""

    def __init__(self, device: Device, wanted: WantedState, slots: int) -> None:
        self.kind, self.shape = wanted.kind, wanted.shape
        self.slots = slots
        self.slot_bytes = WORD * slot_words(self.kind, self.shape)
        self.buffer = device.buffer(max(1, slots) * self.slot_bytes, f"the recurrent state of layer {wanted.name}")


class GpuStates(States):
    """All layers; a page or slot as bytes is what the device has."""

    def __init__(self, device: Device, wanted: Sequence[WantedState], pages: int, slots: int) -> None:
        layers = {
            state.name: KvLayer(device, state, pages) if state.kind == "kv" else SlotLayer(device, state, slots)
            for state in wanted
        }
        super().__init__(layers, {state.name: state.kind for state in wanted}, pages, slots)
        self._device = device

    def part_bytes(self, layer: Any, what: str) -> int:
        size: int = layer.page_bytes if what == "page" else layer.slot_bytes
        return size

    def read_part(self, layer: Any, what: str, index: int, out: memoryview) -> None:
        size = self.part_bytes(layer, what)
        with self._device.lock:
            out[:] = layer.buffer.read(index * size, size)

    def write_part(self, layer: Any, what: str, index: int, data: memoryview) -> None:
        with self._device.lock:
            layer.buffer.write(index * self.part_bytes(layer, what), bytes(data))

    def copy_page(self, source: int, target: int) -> None:
        """On the device."""
        self._check("page", source)
        self._check("page", target)
        size = {layer: layer.page_bytes for layer in self.of("page")}
        with self._device.lock:
            self._device.copy([(layer.buffer, source * n, target * n, n) for layer, n in size.items()])


def layer_from(device: Device, array: KvArray) -> KvLayer:
    """The device's own state with these contents."""
    heads, dim = array.spec.shape
    layer = KvLayer(device, WantedState("state", "kv", array.dtype.name, (heads, dim)), array.pages)
    keys = _words(array.key.swapaxes(-1, -2), array.dtype.name).swapaxes(-1, -2)  # [pages, heads, words, PAGE]
    values = _words(array.value, array.dtype.name)
    parts = [keys.reshape(array.pages, heads, -1), values.reshape(array.pages, heads, -1)]
    if array.key_scale is not None and array.value_scale is not None:
        parts += [array.key_scale.astype("f4").view("u4"), array.value_scale.astype("f4").view("u4")]
    layer.buffer.write(0, np.ascontiguousarray(np.concatenate(parts, axis=-1)))
    return layer


def slots_from(device: Device, array: SlotArray) -> SlotLayer:
    """The device's own slots with these contents."""
    layer = SlotLayer(device, WantedState("state", array.kind, "f32", array.shape), len(array.values))
    layer.buffer.write(0, np.ascontiguousarray(array.values, np.float32))
    return layer


def slots_array(layer: SlotLayer) -> SlotArray:
    """The contents of slots."""
    raw = np.frombuffer(layer.buffer.read(0, layer.slots * layer.slot_bytes), np.float32)
    return SlotArray(layer.kind, layer.shape, raw.reshape(layer.slots, *slot_shape(layer.kind, layer.shape)).copy())


def layer_array(layer: KvLayer) -> KvArray:
    """The contents of a layer."""
    raw = np.frombuffer(layer.buffer.read(0, layer.pages * layer.page_bytes), np.uint32)
    parts = raw.reshape(layer.pages, layer.heads, -1)
    words = -(-layer.dim // PER_WORD[layer.dtype])
    shape = (layer.pages, layer.heads)
    keys = parts[..., : PAGE * words].reshape(*shape, words, PAGE).swapaxes(-1, -2)
    values = parts[..., PAGE * words : 2 * PAGE * words].reshape(*shape, PAGE, words)
    scales = parts[..., 2 * PAGE * words :].view(np.float32)
    found = [_elements(one, layer.dtype, layer.dim) for one in (keys, values)]
    both = (scales[..., :PAGE].copy(), scales[..., PAGE:].copy()) if layer.dtype in KV_CODES else ()
    return KvArray(dtype(layer.dtype), found[0].swapaxes(-1, -2), found[1], *both)


def _words(rows: np.ndarray, kind: str) -> np.ndarray:
    """Rows [..., dim] as words."""
    per = PER_WORD[kind]
    raw = f32_to_bf16(np.ascontiguousarray(rows)) if kind == "bf16" else rows
    if kind == "i4r":
        raw = np.searchsorted(LEVELS, rows).astype(np.uint32)
    padded = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // per) * per), raw.dtype)
    padded[..., : rows.shape[-1]] = raw
    if kind == "i4r":
        padded = np.bitwise_or.reduce(padded.reshape(*rows.shape[:-1], -1, per) << SHIFTS, axis=-1)
    return padded.view(np.uint32)


def _elements(words: np.ndarray, kind: str, dim: int) -> np.ndarray:
    raw = np.ascontiguousarray(words)
    if kind == "bf16":
        return bf16_to_f32(raw.view(np.uint16))[..., :dim]
    if kind == "i4r":
        codes = (raw[..., None] >> SHIFTS) & np.uint32(15)
        return np.asarray(LEVELS, np.int8)[codes.reshape(*raw.shape[:-1], -1)[..., :dim]]
    return raw.view(NUMPY[kind])[..., :dim]
