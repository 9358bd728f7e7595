"""The CPU backend: a program goes to the core as JSON, once; after that a step is one native call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from weft import _core, flags
from weft.backends.base import (
    AdapterPacker,
    AdapterTable,
    Backend,
    Executable,
    Planned,
    States,
    WantedState,
    WantedTable,
    WantedWeight,
    Weights,
    fixed,
)
from weft.backends.cpu.binding import STACK, native_table, native_weight, stored_shape, weight_layouts
from weft.backends.cpu.states import CpuStates, kv_array, native_kv, native_slots, slot_array, state_bytes
from weft.backends.cpu.weights import DENSE, CpuAdapterPacker, CpuWeights
from weft.dtype import DTYPES

if TYPE_CHECKING:
    import numpy as np

    from weft.dtype import DType
    from weft.graph.program import Program, Value
    from weft.ops.state import AdapterArray, KvArray, SlotArray


# Levels where arithmetic beside that of f32 and int8 is fast: a matrix unit for bfloat16, instructions for halves. At
# the other levels such products take longer than those of f32.
MATRIX_LEVELS = ("amx",)
HALF_LEVELS = ("neon_dot", "neon_i8mm")


def levels_present() -> list[str]:
    """Instruction-set levels that this machine runs, lowest first."""
    return list(_core.levels_present())


def level_for(asked: str | None) -> str:
    """The level that is used when this one is asked for: None is WEFT_ISA, else the best."""
    return (asked if asked is not None else flags.get("WEFT_ISA")) or levels_present()[-1]


def fast_at(level: str) -> frozenset[str]:
    """The arithmetic that beats f32 at a level."""
    found = {"int8"}
    found |= {"bf16"} if level in MATRIX_LEVELS else set()
    found |= {"f16"} if level in HALF_LEVELS else set()
    return frozenset(found)


class CpuBackend(Backend):
    """`level` forces a lower instruction set (default: WEFT_ISA, else the best); `threads` is the team's size."""

    def __init__(self, level: str | None = None, threads: int = 1) -> None:
        self.level = level_for(level)
        self.name = f"cpu-{self.level}"
        self.fast = fast_at(self.level)
        self.threads = threads
        self._kernels = frozenset(_core.kernels(self.level))
        self.pool = _core.Pool(threads)

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return op == "reshape" or op in self._kernels

    def compile(
        self, planned: Planned, weights: Mapping[str, Any], states: Mapping[str, Any], *, threads: int | None = None
    ) -> CpuExecutable:
        """With `threads` the executable gets a team of its own, to run beside others; else it shares the backend's."""
        if not all(isinstance(weight, _core.pack.Weight) for weight in weights.values()):
            weights = _native_weights(planned.program, weights)
        tables = {name: state for name, state in states.items() if isinstance(state, _core.AdapterTable)}
        kept = {name: state for name, state in states.items() if name not in tables}
        native = _core.Executable(planned.json, dict(weights), kept, self.level, tables)
        return CpuExecutable(native, planned, self.pool if threads is None else _core.Pool(threads))

    def layouts(self, program: Program) -> tuple[WantedWeight, ...]:
        found = weight_layouts(program)
        return tuple(
            WantedWeight(v.name, stored_shape(fixed(v.shape), found[v.name]), found[v.name]) for v in program.weights
        )

    def stacks(self, wanted: Iterable[WantedWeight]) -> list[WantedWeight]:
        """Those that are packed; matrices in rows are read from the mapped file anyway."""
        return [one for one in wanted if one.layout.startswith(STACK) and one.layout != f"{STACK}rows"]

    def weights(self) -> Weights:
        return CpuWeights(self.threads)

    def state_bytes(self, wanted: Sequence[WantedState]) -> tuple[int, int]:
        return state_bytes(wanted, _core.PAGE_TOKENS)

    def states(self, wanted: Sequence[WantedState], pages: int, slots: int) -> States:
        return CpuStates(wanted, pages, slots)

    def adapter_table(self, wanted: WantedTable) -> AdapterTable:
        return _core.AdapterTable(wanted.rows, wanted.cols, wanted.matrices)

    def adapter_packer(self) -> AdapterPacker:
        return CpuAdapterPacker()

    @property
    def key(self) -> str:
        stored = (name for name, one in DTYPES.items() if one.quantised or name in DENSE)
        panels = sorted(name for name in stored if _core.pack.has_panels(name))
        return " ".join([self.name, *panels])

    @property
    def digest(self) -> tuple[str | bytes, ...]:
        """A hash of the compiled core, and the level: other kernels may round in another order."""
        return _core_digest(), self.level

    @property
    def info(self) -> dict[str, Any]:
        return {"backend": "cpu", "level": self.level, "threads": self.threads}

    def state_from(self, array: KvArray | SlotArray | AdapterArray) -> Any:
        from weft.ops.state import AdapterArray, SlotArray

        if isinstance(array, AdapterArray):
            return native_table(array)
        return native_slots(array) if isinstance(array, SlotArray) else native_kv(array)

    def state_to_array(self, state: Any) -> KvArray | SlotArray:
        return slot_array(state) if isinstance(state, _core.SlotState) else kv_array(state)


def _native_weights(program: Program, weights: Mapping[str, Any]) -> dict[str, Any]:
    """Weights that are arrays or `Packed`, laid out for the program."""
    layouts = weight_layouts(program)
    return {
        name: value if isinstance(value, _core.pack.Weight) else native_weight(value, layouts[name])
        for name, value in weights.items()
        if name in layouts
    }


@lru_cache(maxsize=1)
def _core_digest() -> bytes:
    with open(_core.__file__, "rb") as file:
        return blake2b(file.read(), digest_size=16).digest()


class CpuExecutable(Executable):
    """A bound program. Steps take turns; the GIL is released while one runs."""

    def __init__(self, native: Any, planned: Planned, pool: Any) -> None:
        self.native = native
        self._planned = planned
        self._pool = pool
        self._packed = _packed_values(planned)
        watched = flags.get("WEFT_WATCH")
        if watched:
            labels = {value.label: value.name for value in self.program.values}
            native.watch([labels[label] for label in watched if label in labels])

    @property
    def program(self) -> Program:
        return self._planned.program

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = self.native.run(
            {name: self._given(name, value) for name, value in inputs.items()}, self._pool
        )
        for name in self._packed.keys() & results.keys():
            results[name] = _as_packed(self._packed[name], results[name])
        return results

    def run_into(self, inputs: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
        given = {name: self._given(name, value) for name, value in inputs.items()}
        found: dict[str, Any] = self.native.run_into(given, dict(arrays), self._pool)
        return found

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The op and the nanoseconds of every instruction of one step."""
        _, times = self.native.profile({name: self._given(name, value) for name, value in inputs.items()}, self._pool)
        return [(instr.op, time) for instr, time in zip(self.program.body, times)]

    def _given(self, name: str, value: Any) -> np.ndarray:
        import numpy as np

        if name in self._packed:  # a Packed
            return value.data.reshape(*value.shape[:-1], -1)
        return np.ascontiguousarray(value)


def _packed_values(planned: Planned) -> dict[str, Value]:
    """The inputs and outputs that numpy has no type for. Prepared programs of models have none and are not parsed."""
    if not planned.parsed:
        return {}
    from weft.ops.packed import A8

    ends = (*planned.program.inputs, *planned.program.outputs)
    return {value.name: value for value in ends if value.dtype.name in (*A8, "bf16")}


def _as_packed(value: Value, raw: np.ndarray) -> Any:
    from weft.ops.packed import Packed

    shape = (*raw.shape[:-1], raw.shape[-1] // value.dtype.size_bytes * value.dtype.block)
    return Packed(value.dtype, shape, raw.reshape(-1))
