"""Runs programs by calling each op's reference.

By default intermediate results stay in float64, so the whole program is computed wider than any kernel; `wide=False`
rounds each result to its declared type, which is how far a perfect kernel could get. WEFT_WATCH=attn_out,logits prints
the norm and first values of results with these labels.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft import flags
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
    check_bindings,
    fixed,
)
from weft.backends.reference.weights import SPLIT, ReferenceAdapterPacker, ReferenceTable, ReferenceWeights
from weft.dtype import DType
from weft.errors import BackendError
from weft.graph.program import Instr, Program, Value, bind_sizes
from weft.graph.verify import verify
from weft.ops.packed import Packed
from weft.ops.registry import known
from weft.ops.spec import spec_of
from weft.ops.state import AdapterArray, KvArray, SlotArray

ARRAYS: dict[str, Any] = {"kv": KvArray, "recurrent": SlotArray, "conv": SlotArray, "table": AdapterArray}


class ReferenceBackend(Backend):
    """Every op, every element type, on numpy. States are KvArrays and SlotArrays; those of float64 are unrounded."""

    name = "reference"

    def __init__(self, *, wide: bool = True) -> None:
        self.wide = wide

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return known(op) is not None

    def compile(
        self, planned: Planned, weights: Mapping[str, Any], states: Mapping[str, Any], *, threads: int | None = None
    ) -> "ReferenceExecutable":
        program = planned.program
        verify(program)
        check_bindings(program, weights, states)
        for value in (*program.states, *program.tables):
            state, kind = states[value.name], ARRAYS[value.kind]
            if not isinstance(state, kind) or state.spec.shape != value.shape:
                raise BackendError(program.name, f"{value.kind} {value.name} must be a {kind.__name__} of {value.spec}")
        return ReferenceExecutable(program, dict(weights), dict(states), self.wide)

    def layouts(self, program: Program) -> tuple[WantedWeight, ...]:
        split = {
            str(instr.inputs[1]) for instr in program.body if instr.op == "matmul_bf16" and instr.attrs.get("split")
        }
        return tuple(_wanted(value, value.name in split) for value in program.weights)

    def weights(self) -> Weights:
        return ReferenceWeights()

    def state_bytes(self, wanted: Sequence[WantedState]) -> tuple[int, int]:
        made = ReferenceStates(wanted, 1, 1)
        return tuple(sum(made.part_bytes(x, what) for x in made.of(what)) for what in ("page", "slot"))  # type: ignore[return-value]

    def states(self, wanted: Sequence[WantedState], pages: int, slots: int) -> States:
        return ReferenceStates(wanted, pages, slots)

    def adapter_table(self, wanted: WantedTable) -> AdapterTable:
        return ReferenceTable(wanted.rows, wanted.cols, wanted.matrices)

    def adapter_packer(self) -> AdapterPacker:
        return ReferenceAdapterPacker()

    @property
    def key(self) -> str:
        return self.name

    @property
    def digest(self) -> tuple[str | bytes, ...]:
        """With the version of numpy; the ops' own source is part of every program's key."""
        return self.name, str(self.wide), np.__version__


def _wanted(value: Value, split: bool) -> WantedWeight:
    shape = fixed(value.shape)
    if split:
        return WantedWeight(value.name, (*shape[:-1], shape[-1] // 2), SPLIT)
    return WantedWeight(value.name, shape, value.dtype.name)


class ReferenceStates(States):
    """Keys and values in pages, recurrent states in slots, as numpy arrays."""

    def __init__(self, wanted: Sequence[WantedState], pages: int, slots: int) -> None:
        layers: dict[str, KvArray | SlotArray] = {}
        for state in wanted:
            if state.kind == "kv":
                heads, dim = state.shape
                layers[state.name] = KvArray.zeros(pages, heads, dim, state.dtype)
            else:
                layers[state.name] = SlotArray.zeros(state.kind, slots, state.shape)
        super().__init__(layers, {state.name: state.kind for state in wanted}, pages, slots)

    def part_bytes(self, layer: Any, what: str) -> int:
        return sum(array[0].nbytes for array in layer.arrays)

    def read_part(self, layer: Any, what: str, index: int, out: memoryview) -> None:
        out[:] = b"".join(array[index].tobytes() for array in layer.arrays)

    def write_part(self, layer: Any, what: str, index: int, data: memoryview) -> None:
        start = 0
        for array in layer.arrays:
            size = array[index].nbytes
            array[index] = np.frombuffer(data[start : start + size], array.dtype).reshape(array[index].shape)
            start += size


class ReferenceExecutable(Executable):
    def __init__(
        self,
        program: Program,
        weights: dict[str, np.ndarray | Packed],
        states: dict[str, KvArray | SlotArray | AdapterArray],
        wide: bool,
    ) -> None:
        self._program = program
        # Widened once, here, where it is possible; packed weights are widened by each op that reads them.
        dense = {name: w if isinstance(w, Packed) else w.astype(np.float64) for name, w in weights.items()}
        self.bound: dict[str, Any] = {**dense, **states}
        self.wide = wide
        self.table = program.table
        self.last_use = {name: index for index, instr in enumerate(program.body) for name in instr.operands}
        self.watched = set(flags.get("WEFT_WATCH"))

    @property
    def program(self) -> Program:
        return self._program

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        sizes = bind_sizes(self.program, inputs)
        given = {value.name: self._typed(value, inputs[value.name]) for value in self.program.inputs}
        live: dict[str, Any] = {**self.bound, **given}
        for index, instr in enumerate(self.program.body):
            self._step(instr, live, sizes)
            for name in instr.operands:  # dead buffers go, so a long program fits
                if self.last_use[name] == index and self.table[name].kind == "buffer":
                    live.pop(name, None)
        return {value.name: live[value.name] for value in self.program.outputs}

    def _typed(self, value: Value, array: Any) -> Any:
        if isinstance(array, Packed):
            return array
        whole = value.dtype.name in ("i32", "i8")
        if whole != (array.dtype.kind in "iu"):
            raise BackendError(self.program.name, f"{value.name} must be {value.dtype}: got {array.dtype}")
        return array.astype(value.dtype.numpy if whole else np.float64)

    def _step(self, instr: Instr, live: dict[str, Any], sizes: dict[str, int]) -> None:
        operands = [None if name is None else live[name] for name in instr.inputs]
        attrs = dict(instr.attrs)
        if "shape" in attrs:
            attrs["shape"] = self.table[instr.outputs[0]].spec.at(**sizes).shape
        for name, result in zip(instr.outputs, instr.meaning.wide(*operands, **attrs)):
            value = self.table[name]
            want = value.spec.at(**sizes).shape
            assert spec_of(result).shape == want, f"{instr.op} gave {result.shape}, its shape rule says {want}"
            live[name] = self._kept(value, result)
            if value.label in self.watched:
                self._show(value, live[name])

    def _kept(self, value: Value, result: Any) -> Any:
        if isinstance(result, Packed) or self.wide:
            return result
        return result.astype(value.dtype.numpy)

    def _show(self, value: Value, result: Any) -> None:
        dense = result.dense() if isinstance(result, Packed) else result
        first = ", ".join(f"{number:.6g}" for number in dense.reshape(-1)[:4])
        print(f"{value.label} {list(dense.shape)} norm {np.linalg.norm(dense):.9g} [{first}, …]", file=sys.stderr)
