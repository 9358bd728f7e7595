"""The CPU backend: a program goes to the core as JSON, once; after that a step is one native call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft import _core, flags
from weft.backends.base import Backend, Executable
from weft.backends.cpu.binding import native_table, native_weight, weight_layouts
from weft.dtype import bf16_to_f32, dtype, f32_to_bf16

if TYPE_CHECKING:
    import numpy as np

    from weft.dtype import DType
    from weft.graph.program import Program, Value
    from weft.ops.state import AdapterArray, KvArray


HALF_LEVELS = ("neon_dot", "neon_i8mm")  # with arithmetic of half precision


def levels_present() -> list[str]:
    """Instruction-set levels that this machine runs, lowest first."""
    return list(_core.levels_present())


def level_for(asked: str | None) -> str:
    """The level that is used when this one is asked for: None is WEFT_ISA, else the best."""
    return (asked if asked is not None else flags.get("WEFT_ISA")) or levels_present()[-1]


class CpuBackend(Backend):
    """`level` forces a lower instruction set (default: WEFT_ISA, else the best); `threads` is the team's size."""

    def __init__(self, level: str | None = None, threads: int = 1) -> None:
        self.level = level_for(level)
        self.name = f"cpu-{self.level}"
        self.half = self.level in HALF_LEVELS
        self._kernels = frozenset(_core.kernels(self.level))
        self.pool = _core.Pool(threads)

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return op == "reshape" or op in self._kernels

    def compile(
        self, program: Program, weights: Mapping[str, Any], states: Mapping[str, Any], *, threads: int | None = None
    ) -> CpuExecutable:
        """Weights may be arrays, `Packed`, or the core's own (`native_weight`), which programs can share.

        With `threads` the executable gets a team of its own, to run beside others; else it shares the backend's.
        """
        from weft.ops.packed import A8

        layouts = weight_layouts(program)
        native = {
            name: value if isinstance(value, _core.pack.Weight) else native_weight(value, layouts[name])
            for name, value in weights.items()
            if name in layouts
        }
        wanted = {value.name for value in (*program.states, *program.tables)}
        bound = {name: state for name, state in states.items() if name in wanted}
        packed = {v.name: v for v in (*program.inputs, *program.outputs) if v.dtype.name in (*A8, "bf16")}
        return self.bind(program.to_json(), lambda: program, native, bound, threads=threads, packed=packed)

    def bind(
        self,
        text: str,
        program: Callable[[], Program],
        weights: Mapping[str, Any],
        states: Mapping[str, Any],
        *,
        threads: int | None = None,
        packed: Mapping[str, Value] | None = None,
    ) -> CpuExecutable:
        """The program whose JSON is `text`, with the core's own weights, states and tables, these among the states;
        `program` makes it where it is asked for. `packed` are the inputs and outputs that numpy has no type for."""
        tables = {name: state for name, state in states.items() if isinstance(state, _core.AdapterTable)}
        kept = {name: state for name, state in states.items() if name not in tables}
        native = _core.Executable(text, dict(weights), kept, self.level, tables)
        return CpuExecutable(native, program, self.pool if threads is None else _core.Pool(threads), packed or {})

    def state_from(self, array: KvArray | AdapterArray) -> Any:
        import numpy as np

        from weft.ops.state import AdapterArray

        if isinstance(array, AdapterArray):
            return native_table(array)
        heads, dim = array.spec.shape
        state = _core.KvState.make(array.dtype.name, array.pages, heads, dim)
        stored = {"f16": lambda values: values.view(np.uint16), "bf16": f32_to_bf16}.get(array.dtype.name, np.asarray)
        state.key[...], state.value[...] = stored(array.key), stored(array.value)
        if array.dtype.name == "i8":
            state.key_scales[...], state.value_scales[...] = array.key_scale, array.value_scale
        return state

    def state_to_array(self, state: Any) -> KvArray:
        import numpy as np

        from weft.ops.state import KvArray

        stored = {"f16": lambda bits: bits.view(np.float16), "bf16": bf16_to_f32}.get(state.dtype, np.asarray)
        scales = (state.key_scales.copy(), state.value_scales.copy()) if state.dtype == "i8" else ()
        return KvArray(dtype(state.dtype), stored(state.key.copy()), stored(state.value.copy()), *scales)


class CpuExecutable(Executable):
    """A bound program. Steps take turns; the GIL is released while one runs."""

    def __init__(self, native: Any, program: Callable[[], Program], pool: Any, packed: Mapping[str, Value]) -> None:
        self.native = native
        self._make_program = program
        self._pool = pool
        self._packed = packed
        watched = flags.get("WEFT_WATCH")
        if watched:
            labels = {value.label: value.name for value in self.program.values}
            native.watch([labels[label] for label in watched if label in labels])

    @cached_property
    def program(self) -> Program:
        return self._make_program()

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        results: dict[str, Any] = self.native.run(
            {name: self._given(name, value) for name, value in inputs.items()}, self._pool
        )
        for name in self._packed.keys() & results.keys():
            results[name] = _as_packed(self._packed[name], results[name])
        return results

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The op and the nanoseconds of every instruction of one step."""
        _, times = self.native.profile({name: self._given(name, value) for name, value in inputs.items()}, self._pool)
        return [(instr.op, time) for instr, time in zip(self.program.body, times)]

    def _given(self, name: str, value: Any) -> np.ndarray:
        import numpy as np

        if name in self._packed:  # a Packed
            return value.data.reshape(*value.shape[:-1], -1)
        return np.ascontiguousarray(value)


def _as_packed(value: Value, raw: np.ndarray) -> Any:
    from weft.ops.packed import Packed

    shape = (*raw.shape[:-1], raw.shape[-1] // value.dtype.size_bytes * value.dtype.block)
    return Packed(value.dtype, shape, raw.reshape(-1))
