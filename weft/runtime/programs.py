"""From checkpoint to executable: find the model file, trace it, optimise, plan, and bind the weights once for all."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import numpy as np

from weft._core import pack
from weft.backends.cpu import CpuBackend, native_weight, stored_shape, weight_layouts
from weft.backends.cpu.backend import CpuExecutable
from weft.dtype import DType
from weft.errors import UnsupportedError
from weft.graph import Program, Tensor, Trace
from weft.graph.passes import optimise
from weft.graph.plan import plan
from weft.graph.program import Value
from weft.nn import Scope, Step, read_config
from weft.ops.packed import Packed
from weft.ops.spec import Shape
from weft.runtime.checkpoint import Checkpoint

# Types that a matrix may have in a file besides the quantised blocks.
DENSE = ("f32", "f16", "bf16")


def model_module(model_type: str) -> ModuleType:
    """The file weft/models/<model_type>.py; xlm-roberta is xlm_roberta.py."""
    file = model_type.replace("-", "_")
    name = f"weft.models.{file}"
    if not file.isidentifier() or importlib.util.find_spec(name) is None:
        raise UnsupportedError(f"[load] model_type {model_type!r:.80} is not one weft runs; see `weft list --models`")
    return importlib.import_module(name)


class _Tracing(Trace):
    """A trace that ends at the first weight the checkpoint lacks: a config can ask for a thousand layers."""

    def __init__(self, name: str, checkpoint: Checkpoint) -> None:
        super().__init__(name)
        self._checkpoint = checkpoint

    def weight(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        if name not in self.constants and self._checkpoint.stored(name) is None:
            self._checkpoint.tensor(name, cast(tuple[int, ...], shape))  # says what is missing
        return super().weight(name, shape, dtype)


class Programs:
    """The programs of one checkpoint on one backend. Weights are bound when first used and shared by all of them."""

    def __init__(self, checkpoint: Checkpoint, *, compute: str, threads: int, level: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.compute = compute
        self.threads = threads
        with checkpoint.naming():
            self.module = model_module(checkpoint.model_type)
            self.config = read_config(self.module.Config, checkpoint.config)
        self.backend = CpuBackend(level, threads)
        self._weights: dict[str, Any] = {}
        self._arena = pack.Arena()

    def trace(
        self, name: str, build: Callable[[Trace, Scope], Mapping[str, Tensor]]
    ) -> tuple[Program, dict[str, np.ndarray]]:
        """The planned program whose outputs `build` returns, and its constants."""
        with self.checkpoint.naming(), _Tracing(name, self.checkpoint) as trace:
            for output, tensor in build(trace, Scope(trace, self.checkpoint.stored)).items():
                trace.output(output, tensor)
        return plan(optimise(trace.program(), compute=self.compute)), trace.constants

    def compile(
        self,
        program: Program,
        constants: Mapping[str, np.ndarray],
        states: Mapping[str, Any],
        *,
        threads: int | None = None,
    ) -> CpuExecutable:
        """The program on the backend's team, or with `threads` on a team of its own."""
        layouts = weight_layouts(program)
        for value in program.weights:
            if value.name not in self._weights:
                self._weights[value.name] = self._bind(program, value, constants, layouts[value.name])
        return self.backend.compile(program, self._weights, states, threads=threads)

    def _bind(self, program: Program, value: Value, constants: Mapping[str, np.ndarray], layout: str) -> Any:
        if value.name in constants:
            return native_weight(constants[value.name], "vector", arena=self._arena)
        shape = stored_shape(program, value)
        tensor = self.checkpoint.tensor(value.name, shape)
        if layout == "vector":
            return native_weight(tensor.numpy(), "vector", arena=self._arena)
        stored = tensor.view.dtype
        if not stored.quantised and stored.name not in DENSE:
            raise UnsupportedError(
                f"[weights] {value.name} is stored as {stored}; matrices are f32, f16, bf16 or quantised"
            )
        packed = Packed(stored, shape, tensor.view.bytes())
        weight = native_weight(
            packed,
            layout,
            columns=cast(int, value.shape[-1]),
            row_order=tensor.row_order,
            threads=self.threads,
            arena=self._arena,
        )
        if layout != "rows":
            # All of the file, not only this tensor: a fault maps its neighbours too, and those would stay.
            self.checkpoint.release()
        return weight

    @property
    def info(self) -> dict[str, Any]:
        """What is computed, and how."""
        return {
            "model_type": self.checkpoint.model_type,
            "format": self.checkpoint.format,
            "path": str(self.checkpoint.path),
            "file_bytes": self.checkpoint.size_bytes,
            "compute": self.compute,
            "level": self.backend.level,
            "threads": self.threads,
        }

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights bound so far."""
        return sum(weight.nbytes for weight in self._weights.values())


def step_inputs(trace: Trace, *, max_pages: int = 0, types: bool = False, context: int = 0, kv: Any = None) -> Step:
    """The symbolic step of a trace; `max_pages` 0 for a model without state."""
    from weft.graph import B, L, T

    return Step(
        ids=trace.input("ids", (T,), "i32"),
        positions=trace.input("positions", (T,), "i32"),
        segments=trace.input("segments", (B + 1,), "i32"),
        rows=trace.input("rows", (L,), "i32"),
        types=trace.input("types", (T,), "i32") if types else None,
        pages=trace.input("pages", (B, max_pages), "i32") if max_pages else None,
        context=context,
        kv=kv,
    )
