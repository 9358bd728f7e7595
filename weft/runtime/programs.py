"""From checkpoint to executable: find the model file, trace it, optimise, plan, and bind the weights once for all."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft._core import pack
from weft.backends.cpu import CpuBackend
from weft.errors import UnsupportedError
from weft.models import ModelModule
from weft.models import model_module as model_module
from weft.nn.step import Step
from weft.runtime import store
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.prepared import Facts, Prepared, WantedWeight, prepare

if TYPE_CHECKING:
    import numpy as np

    from weft.backends.cpu.backend import CpuExecutable
    from weft.dtype import DType
    from weft.graph import Program, Tensor, Trace
    from weft.nn import Scope

# Types that a matrix may have in a file besides the quantised blocks.
DENSE = ("f32", "f16", "bf16")


if TYPE_CHECKING:
    Build = Callable[[Trace, Scope], Mapping[str, Tensor]]
    BuildWith = Callable[[Trace, Scope, Facts], Mapping[str, Tensor]]


class Programs:
    """The programs of one checkpoint on one backend. Weights are bound when first used and shared by all of them."""

    def __init__(self, checkpoint: Checkpoint, *, compute: str, threads: int, level: str | None = None) -> None:
        self.checkpoint = checkpoint
        self.compute = compute
        self.threads = threads
        self.backend = CpuBackend(level, threads)
        self._weights: dict[tuple[str, str], Any] = {}  # by name and layout
        self._arena = pack.Arena()

    @cached_property
    def module(self) -> ModelModule:
        """The file of the model's type."""
        with self.checkpoint.naming():
            return model_module(self.checkpoint.model_type)

    @cached_property
    def config(self) -> Any:
        """An instance of the model's Config."""
        from weft.nn import read_config

        with self.checkpoint.naming():
            return read_config(self.module.Config, self.checkpoint.config)

    def prepared(
        self, options: Sequence[Any], build: BuildWith, facts: Callable[[], Facts], *, adapters: bool = False
    ) -> Prepared:
        """The planned program that `options` name: from the cache, or the one whose outputs `build` returns.

        `options` are all that it and the facts depend on, beside the checkpoint and what is computed with.
        """
        key = store.key_of(self._decided_by([*options, "adapters"] if adapters else options))
        found = store.find(key)
        if found is None:
            known = facts()
            traced = self.trace(self.checkpoint.model_type, lambda trace, w: build(trace, w, known), adapters=adapters)
            found = prepare(*traced, known)
            store.keep(key, found)
        return found

    def _decided_by(self, options: Sequence[Any]) -> list[str]:
        tensors = [f"{name} {t.view.dtype} {t.view.shape}" for name, t in self.checkpoint.tensors.items()]
        types = {t.view.dtype for t in self.checkpoint.tensors.values() if _native(t.view.dtype)}
        panels = sorted(stored.name for stored in types if pack.has_panels(stored.name))
        config = json.dumps(self.checkpoint.config, sort_keys=True, default=str)
        decided = [self.compute, self.backend.level, self.checkpoint.format, *map(repr, options), *panels]
        return [*decided, config, *tensors]

    def trace(self, name: str, build: Build, *, adapters: bool = False) -> tuple[Program, dict[str, np.ndarray]]:
        """The planned program whose outputs `build` returns, and its constants; with `adapters` it takes them."""
        from weft.graph.passes import optimise
        from weft.graph.plan import plan
        from weft.nn import Scope
        from weft.runtime.tracing import CheckedTrace

        with self.checkpoint.naming(), CheckedTrace(name, self.checkpoint) as trace:
            for output, tensor in build(trace, Scope(trace, self.checkpoint.stored)).items():
                trace.output(output, tensor)
        program = optimise(trace.program(), compute=self.compute, adapters=adapters, half=self.backend.half)
        return plan(program), trace.constants

    def compile(self, prepared: Prepared, states: Mapping[str, Any]) -> CpuExecutable:
        """The program with all its weights packed."""
        packing = self.pack(prepared)
        executable = self.executable(prepared, states)
        packing.finish()
        return executable

    def pack(self, prepared: Prepared) -> Any:
        """Bind the weights that are not bound yet. Packing them has begun; nothing may run before its `finish`."""
        packing = pack.Packing(self.threads, self._arena, self.checkpoint.buffers())
        # Vectors first: they are written here and now, and should lie together, not on a page of each matrix.
        ordered = sorted(prepared.weights, key=lambda wanted: wanted.layout != "vector")
        bound = {
            (wanted.name, wanted.layout): self._bind(wanted, prepared.constants.get(wanted.name), packing)
            for wanted in ordered
            if (wanted.name, wanted.layout) not in self._weights
        }
        packing.start()
        self._weights.update(bound)
        return packing

    def _bind(self, wanted: WantedWeight, constant: bytes | None, packing: Any) -> Any:
        name, shape, layout = wanted
        if constant is not None:
            return pack.Weight.widened("f32", math.prod(shape), constant, arena=self._arena)
        tensor = self.checkpoint.tensor(name, shape)
        stored, data = tensor.view.dtype, tensor.view.buffer()
        if layout == "vector":
            if not _native(stored):
                return pack.Weight.vector(tensor.numpy().astype("f4").reshape(-1), self._arena)
            return pack.Weight.widened(stored.name, shape[0], data, tensor.row_order, tensor.plus_one, self._arena)
        if not _native(stored):
            raise UnsupportedError(f"[weights] {name} is stored as {stored}; matrices are f32, f16, bf16 or quantised")
        rows, cols = math.prod(shape[:-1]), shape[-1]
        if layout == "rows":
            taken = tensor if tensor.row_order is None else tensor.rows(0, shape[0])
            return pack.Weight.in_rows(stored.name, rows, cols, taken.view.buffer())
        return packing.add(layout, stored.name, rows, cols, data, tensor.row_order)

    def executable(self, prepared: Prepared, states: Mapping[str, Any], *, threads: int | None = None) -> CpuExecutable:
        """The program on the backend's team, or with `threads` on a team of its own; its weights are bound."""
        weights = {wanted.name: self._weights[wanted.name, wanted.layout] for wanted in prepared.weights}
        return self.backend.bind(prepared.text, lambda: prepared.program, weights, states, threads=threads)

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


def _native(stored: DType) -> bool:
    """Whether the core reads weights of this type."""
    return stored.quantised or stored.name in DENSE


def step_inputs(
    trace: Trace, *, max_pages: int = 0, types: bool = False, spans: bool = False, context: int = 0, kv: Any = None
) -> Step:
    """The symbolic step of a trace; `max_pages` 0 for a model without state."""
    from weft.graph import B, L, T

    return Step(
        ids=trace.input("ids", (T,), "i32"),
        positions=trace.input("positions", (T,), "i32"),
        segments=trace.input("segments", (B + 1,), "i32"),
        rows=trace.input("rows", (L,), "i32"),
        types=trace.input("types", (T,), "i32") if types else None,
        spans=trace.input("spans", (B + 1,), "i32") if spans else None,
        pages=trace.input("pages", (B, max_pages), "i32") if max_pages else None,
        context=context,
        kv=kv,
    )
