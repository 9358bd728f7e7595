"""The states of a model in the core's memory: pages of keys and values, slots of recurrent states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft import _core
from weft.backends.base import States, WantedState
from weft.dtype import bf16_to_f32, dtype, f32_to_bf16

if TYPE_CHECKING:
    from weft.ops.state import KvArray, SlotArray

SCALE_BYTES = 4  # beside each key or value that is stored as int8 codes
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
            row = dim * dtype(state.dtype).size_bytes + (SCALE_BYTES if state.dtype == "i8" else 0)
            page += 2 * page_tokens * heads * row
        else:
            slot += SLOT_ELEMENT_BYTES * slot_size(state)
    return page, slot


def native_kv(array: KvArray) -> Any:
    """The core's own state with these contents."""
    import numpy as np

    heads, dim = array.spec.shape
    state = _core.KvState.make(array.dtype.name, array.pages, heads, dim)
    stored = {"f16": lambda values: values.view(np.uint16), "bf16": f32_to_bf16}.get(array.dtype.name, np.asarray)
    state.key[...], state.value[...] = stored(array.key), stored(array.value)
    if array.dtype.name == "i8":
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
    scales = (state.key_scales.copy(), state.value_scales.copy()) if state.dtype == "i8" else ()
    return KvArray(dtype(state.dtype), stored(state.key.copy()), stored(state.value.copy()), *scales)


def slot_array(state: Any) -> SlotArray:
    """The contents of a native slot state. The core does not keep the shape of a slot, so it is flat."""
    from weft.ops.state import SlotArray

    values = state.values.copy()
    return SlotArray("recurrent", values.shape[1:], values)
