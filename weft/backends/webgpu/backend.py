"""The GPU backend: programs run as dispatches of WGSL shaders on Vulkan, Metal or Direct3D 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from weft.backends.base import (
    AdapterPacker,
    AdapterTable,
    Backend,
    Planned,
    States,
    WantedState,
    WantedTable,
    WantedWeight,
    Weights,
    check_bindings,
    fixed,
)
from weft.backends.webgpu.device import Device, open_device
from weft.backends.webgpu.executable import GpuExecutable
from weft.backends.webgpu.fuse import MOST_JOINED, grouped, plain_product
from weft.backends.webgpu.launch import supports
from weft.backends.webgpu.layers.adapters import GpuAdapterPacker, GpuAdapterTable, table_from
from weft.backends.webgpu.products import PRODUCTS
from weft.backends.webgpu.shader import FOLDER
from weft.backends.webgpu.states import (
    GpuStates,
    SlotLayer,
    layer_array,
    layer_from,
    slots_array,
    slots_from,
    state_bytes,
)
from weft.backends.webgpu.top import KEPT
from weft.backends.webgpu.weights import ROWS, STACK, VECTOR, DeviceWeight, GpuWeights, upload
from weft.dtype import DType
from weft.graph.program import Program
from weft.ops.state import AdapterArray, KvArray, SlotArray

BATCH_TOKENS = 2048  # of an encoder's step
# Ops that read a weight as it is stored, and which operand it is.
READ_IN_ROWS = dict.fromkeys((*PRODUCTS, "embedding"), 1)


class GpuBackend(Backend):
    """`index` chooses among several GPUs: see `device.adapters`."""

    lanes = False
    top = KEPT[-1]

    def __init__(self, index: int | None = None) -> None:
        self.device: Device = open_device(index)
        self.name = f"gpu-{self.device.adapter.api.lower()}"
        if not self.device.adapter.software:
            self.batch_tokens = BATCH_TOKENS

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return supports(op, dtypes)

    def compile(
        self, planned: Planned, weights: Mapping[str, Any], states: Mapping[str, Any], *, threads: int | None = None
    ) -> GpuExecutable:
        program = planned.program
        check_bindings(program, weights, states)
        layouts = {wanted.name: wanted.layout.partition(":")[0] for wanted in self.layouts(program)}
        bound: dict[str, Any] = {
            name: value if isinstance(value, DeviceWeight) else upload(self.device, value, layouts[name], name)
            for name, value in weights.items()
            if name in layouts
        }
        return GpuExecutable(self.device, program, {**bound, **states})

    def layouts(self, program: Program) -> tuple[WantedWeight, ...]:
        """ "rows" of matrices that are multiplied or looked up, in their own type, also as a "stack"; all others are
        floats."""
        kinds = {
            str(instr.inputs[READ_IN_ROWS[instr.op]]): STACK if instr.op in PRODUCTS and grouped(instr) else ROWS
            for instr in program.body
            if instr.op in READ_IN_ROWS
        }
        together = _together(program)
        return tuple(
            WantedWeight(
                value.name,
                fixed(value.shape),
                f"{kinds.get(value.name, VECTOR)}:{value.dtype.name}{together.get(value.name, '')}",
            )
            for value in program.weights
        )

    def weights(self) -> Weights:
        return GpuWeights(self.device)

    def state_bytes(self, wanted: Sequence[WantedState]) -> tuple[int, int]:
        return state_bytes(wanted)

    def page_limit(self, wanted: Sequence[WantedState]) -> int | None:
        """A layer's pages are one buffer."""
        largest = self.device.largest_buffer
        return min((largest // state_bytes([one])[0] for one in wanted if one.kind == "kv"), default=None)

    def slot_limit(self, wanted: Sequence[WantedState]) -> int | None:
        largest = self.device.largest_buffer
        return min((largest // state_bytes([one])[1] for one in wanted if one.kind != "kv"), default=None)

    @property
    def memory(self) -> tuple[int, str] | None:
        return self.device.free_memory()

    def bandwidth(self, nbytes: int) -> list[float]:
        return self.device.bandwidth(nbytes)

    def states(self, wanted: Sequence[WantedState], pages: int, slots: int) -> States:
        return GpuStates(self.device, wanted, pages, slots)

    def state_from(self, array: KvArray | SlotArray | AdapterArray) -> Any:
        if isinstance(array, AdapterArray):
            return table_from(self.device, array)
        return layer_from(self.device, array) if isinstance(array, KvArray) else slots_from(self.device, array)

    def state_to_array(self, state: Any) -> KvArray | SlotArray:
        return slots_array(state) if isinstance(state, SlotLayer) else layer_array(state)

    def adapter_table(self, wanted: WantedTable) -> AdapterTable:
        return GpuAdapterTable(self.device, wanted)

    def adapter_packer(self) -> AdapterPacker:
        return GpuAdapterPacker()

    @property
    def key(self) -> str:
        return "gpu " + _source_digest().hex()

    @property
    def digest(self) -> tuple[str | bytes, ...]:
        adapter = self.device.adapter
        return "gpu", _source_digest(), adapter.name, adapter.api, adapter.driver

    @property
    def info(self) -> dict[str, Any]:
        adapter = self.device.adapter
        lost = {"lost": self.device.lost} if self.device.lost else {}
        return {"backend": "gpu", "device": adapter.name, "api": adapter.api, **lost}


def _together(program: Program) -> dict[str, str]:
    """For weights that products of the same operand read, what their layouts end with: see weights.py."""
    found: dict[str, list[str]] = {}
    for instr in program.body:
        weight = program.table[str(instr.inputs[1])] if plain_product(instr) else None
        if weight is None or weight.kind != "weight" or len(weight.shape) != 2:
            continue
        if len(program.readers[weight.name]) == 1:
            found.setdefault(f"{instr.inputs[0]} {weight.dtype.name}", []).append(weight.name)
    groups = [names[:MOST_JOINED] for names in found.values() if len(names) > 1]
    return {name: f":{names[0]}" for names in groups for name in names}


@lru_cache(maxsize=1)
def _source_digest() -> bytes:
    """Of all shaders, and of what launches them."""
    digest = blake2b(digest_size=16)
    for path in sorted([*FOLDER.rglob("*.wgsl"), *FOLDER.parent.rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.digest()
