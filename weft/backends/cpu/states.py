"""The states of a model in the core's memory: pages of keys and values, slots of recurrent states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft import _core
from weft.backends.base import States, WantedState
from weft.dtype import bf16_to_f32, dtype, f32_to_bf16

if TYPE_CHECKING:
    import numpy as np

    from weft.ops.state import KvArray, SlotArray

SCALE_BYTES = 4  # beside each key or value that is stored as codes
SLOT_ELEMENT_BYTES = 4


class CpuStates(States):
    """All layers share one piece of memory, which the system provides where it is first written to."""

    def __init__(self, wanted: Sequence[WantedState], pages: int, slots: int) -> None:
        kv = [state for state in wanted if state.kind == "kv"]
        others = [state for state in wanted if state.kind != "kv"]
        made = _core.KvState.make_all([(state.dtype, *state.shape) for state in kv], pages) if kv else []
        made += _core.SlotState.make_all([slot_size(state) for state in others], slots) if others else []
        layers = {state.name: layer for state, layer in zip([*kv, *others], made, strict=True)}
        super().__init__(layers, {state.name: state.kind for state in wanted}, pages, slots)

    def part_bytes(self, layer: Any, what: str) -> int:
        return layer.page_bytes if what == "page" else layer.slot_bytes

    def read_part(self, layer: Any, what: str, index: int, out: memoryview) -> None:
        (layer.read_page if what == "page" else layer.read_slot)(index, out)

    def write_part(self, layer: Any, what: str, index: int, data: memoryview) -> None:
        (layer.write_page if what == "page" else layer.write_slot)(index, data)

    def copy_page(self, source: int, target: int) -> None:
        self._check("page", source)
        self._check("page", target)
        for layer in self._parts["page"]:
            layer.copy_page(source, target)


def slot_size(state: WantedState) -> int:
    """The float32 of one slot: a convolution's has all inputs but the newest."""
    if state.kind == "conv":
        channels, width = state.shape
        return channels * (width - 1)
    return math.prod(state.shape)


def state_bytes(wanted: Sequence[WantedState], page_tokens: int) -> tuple[int, int]:
    """Bytes of one page and of one slot, all layers together."""
    page = slot = 0
    for state in wanted:
        if state.kind == "kv":
            heads, dim = state.shape
            page += 2 * page_tokens * heads * row_bytes(dim, state.dtype)
        else:
            slot += SLOT_ELEMENT_BYTES * slot_size(state)
    return page, slot


def row_bytes(dim: int, element: str) -> int:
    """Bytes of one token's key, or value, of one head: csrc/core/state.h."""
    if element == "i4r":
        return -(-dim // 32) * 16 + SCALE_BYTES
    return dim * dtype(element).size_bytes + (SCALE_BYTES if element in ("i8", "i8r") else 0)


def _packed(array: KvArray) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of an i4r state as bytes of two codes [pages, heads, bytes]: csrc/core/state.h."""
    import numpy as np

    from weft.ops.state import LEVELS

    heads, dim = array.spec.shape
    extra, flat = (0, -dim % 32), (array.pages, heads, -1)
    keys, values = (np.searchsorted(LEVELS, part).astype(np.uint8) for part in (array.key, array.value))
    keys = np.pad(keys, ((0, 0), (0, 0), extra, (0, 0)))
    values = np.pad(values, ((0, 0), (0, 0), (0, 0), extra)).reshape(*values.shape[:3], -1, 2, 16)
    joined = keys[:, :, ::2] | keys[:, :, 1::2] << 4, values[..., 0, :] | values[..., 1, :] << 4
    return joined[0].reshape(flat), joined[1].reshape(flat)


def _unpacked(keys: np.ndarray, values: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """What `_packed` packs, as LEVELS."""
    import numpy as np

    from weft.ops.state import LEVELS, PAGE

    levels, whole, flat = np.asarray(LEVELS, np.int8), keys.shape[:2], -(-dim // 32) * 32
    pairs = keys.reshape(*whole, -1, 1, PAGE)
    halves = values.reshape(*whole, PAGE, -1, 1, 16)
    key = np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(*whole, flat, PAGE)
    value = np.concatenate([halves & 15, halves >> 4], axis=4).reshape(*whole, PAGE, flat)
    return levels[key[:, :, :dim]], levels[value[..., :dim]]


def native_kv(array: KvArray) -> Any:
    """The core's own state with these contents."""
    import numpy as np

    heads, dim = array.spec.shape
    state = _core.KvState.make(array.dtype.name, array.pages, heads, dim)
    if array.dtype.name == "i4r":
        state.key[...], state.value[...] = _packed(array)
    else:
        stored = {"f16": lambda values: values.view(np.uint16), "bf16": f32_to_bf16}.get(array.dtype.name, np.asarray)
        state.key[...], state.value[...] = stored(array.key), stored(array.value)
    if array.key_scale is not None:
        state.key_scales[...], state.value_scales[...] = array.key_scale, array.value_scale
    return state


def native_slots(array: SlotArray) -> Any:
    """The core's own state with these contents."""
    values = array.values.reshape(len(array.values), -1)
    (state,) = _core.SlotState.make_all([values.shape[1]], len(values))
    state.values[...] = values
    return state


def kv_array(state: Any) -> KvArray:
    """The contents of a native key/value state."""
    import numpy as np

    from weft.ops.state import KvArray

    stored = {"f16": lambda bits: bits.view(np.float16), "bf16": bf16_to_f32}.get(state.dtype, np.asarray)
    scales = () if state.key_scales is None else (state.key_scales.copy(), state.value_scales.copy())
    if state.dtype == "i4r":
        return KvArray(dtype("i4r"), *_unpacked(state.key.copy(), state.value.copy(), state.dim), *scales)
    return KvArray(dtype(state.dtype), stored(state.key.copy()), stored(state.value.copy()), *scales)


def slot_array(state: Any) -> SlotArray:
    """The contents of a native slot state. The core does not keep the shape of a slot, so it is flat."""
    from weft.ops.state import SlotArray

    values = state.values.copy()
    return SlotArray("recurrent", values.shape[1:], values)
