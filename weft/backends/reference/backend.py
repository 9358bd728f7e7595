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
from weft.backends.base import Backend, Executable, check_bindings
from weft.dtype import DType
from weft.errors import BackendError
from weft.graph.program import Instr, Program, Value, bind_sizes
from weft.graph.verify import verify
from weft.ops.packed import Packed
from weft.ops.registry import catalogue
from weft.ops.spec import spec_of
from weft.ops.state import AdapterArray, KvArray


class ReferenceBackend(Backend):
    """Every op, every element type, on numpy. States are KvArrays; one of float64 keeps even the cache unrounded."""

    name = "reference"

    def __init__(self, *, wide: bool = True) -> None:
        self.wide = wide

    def supports(self, op: str, dtypes: Sequence[DType]) -> bool:
        return op in catalogue()

    def compile(
        self, program: Program, weights: Mapping[str, np.ndarray | Packed], states: Mapping[str, Any]
    ) -> "ReferenceExecutable":
        verify(program)
        check_bindings(program, weights, states)
        for value in (*program.states, *program.tables):
            state, kind = states[value.name], KvArray if value.kind == "state" else AdapterArray
            if not isinstance(state, kind) or state.spec.shape != value.shape:
                raise BackendError(
                    f"[{program.name}] {value.kind} {value.name} must be a {kind.__name__} of {value.spec}"
                )
        return ReferenceExecutable(program, dict(weights), dict(states), self.wide)


class ReferenceExecutable(Executable):
    def __init__(
        self,
        program: Program,
        weights: dict[str, np.ndarray | Packed],
        states: dict[str, KvArray | AdapterArray],
        wide: bool,
    ) -> None:
        self.program = program
        # Widened once, here, where it is possible; packed weights are widened by each op that reads them.
        dense = {name: w if isinstance(w, Packed) else w.astype(np.float64) for name, w in weights.items()}
        self.bound: dict[str, Any] = {**dense, **states}
        self.wide = wide
        self.table = program.table
        self.last_use = {name: index for index, instr in enumerate(program.body) for name in instr.operands}
        self.watched = set(flags.get("WEFT_WATCH"))

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
            raise BackendError(f"[{self.program.name}] {value.name} must be {value.dtype}: got {array.dtype}")
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
