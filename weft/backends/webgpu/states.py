"""The states of a model on the device: a buffer for each layer, with pages as lib/pages.wgsl has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.backends.base import States, WantedState
from weft.backends.webgpu.device import Device
from weft.backends.webgpu.launch import PER_WORD, WORD
from weft.dtype import bf16_to_f32, dtype, f32_to_bf16
from weft.errors import UnsupportedError
from weft.ops.state import PAGE, KvArray

NUMPY = {"f32": np.float32, "f16": np.float16, "i8": np.int8}


def page_words(kind: str, heads: int, dim: int) -> int:
    """Words of one page of one layer."""
    return heads * (2 * PAGE * -(-dim // PER_WORD[kind]) + (2 * PAGE if kind == "i8" else 0))


def page_bytes(wanted: Sequence[WantedState]) -> int:
    """Of one page, all layers together. UnsupportedError where a state is not of keys and values."""
    for state in wanted:
        if state.kind != "kv":
            what = f"{state.kind} states do not run on a GPU yet"
            raise UnsupportedError("gpu", what, field="state", given=state.name, advice="use device cpu")
    return sum(WORD * page_words(state.dtype, *state.shape) for state in wanted)


class KvLayer:
    """The pages of one layer."""

    def __init__(self, device: Device, wanted: WantedState, pages: int) -> None:
        self.dtype = wanted.dtype
        self.heads, self.dim = wanted.shape
        self.pages = pages
        self.page_bytes = WORD * page_words(self.dtype, self.heads, self.dim)
        self.buffer = device.buffer(max(1, pages) * self.page_bytes, f"the KV cache of layer {wanted.name}")


class GpuStates(States):
    """All layers; a page as bytes is what the device has."""

    def __init__(self, device: Device, wanted: Sequence[WantedState], pages: int) -> None:
        page_bytes(wanted)
        layers = {state.name: KvLayer(device, state, pages) for state in wanted}
        super().__init__(layers, {state.name: state.kind for state in wanted}, pages, 0)
        self._device = device

    def part_bytes(self, layer: Any, what: str) -> int:
        return layer.page_bytes

    def read_part(self, layer: Any, what: str, index: int, out: memoryview) -> None:
        with self._device.lock:
            out[:] = layer.buffer.read(index * layer.page_bytes, layer.page_bytes)

    def write_part(self, layer: Any, what: str, index: int, data: memoryview) -> None:
        with self._device.lock:
            layer.buffer.write(index * layer.page_bytes, bytes(data))

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
    both = (scales[..., :PAGE].copy(), scales[..., PAGE:].copy()) if layer.dtype == "i8" else ()
    return KvArray(dtype(layer.dtype), found[0].swapaxes(-1, -2), found[1], *both)


def _words(rows: np.ndarray, kind: str) -> np.ndarray:
    """Rows [..., dim] as words."""
    per = PER_WORD[kind]
    raw = f32_to_bf16(np.ascontiguousarray(rows)) if kind == "bf16" else rows
    padded = np.zeros((*rows.shape[:-1], -(-rows.shape[-1] // per) * per), raw.dtype)
    padded[..., : rows.shape[-1]] = raw
    return padded.view(np.uint32)


def _elements(words: np.ndarray, kind: str, dim: int) -> np.ndarray:
    raw = np.ascontiguousarray(words)
    if kind == "bf16":
        return bf16_to_f32(raw.view(np.uint16))[..., :dim]
    return raw.view(NUMPY[kind])[..., :dim]
