"""From checkpoint to executable: find the model file, trace it, optimise, plan, and bind the weights once for all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.backends.base import Backend, Executable, Loading
from weft.computes import DECODER_COMPUTES as COMPUTES
from weft.errors import UnsupportedError
from weft.models import ModelModule, model_module
from weft.runtime import store
from weft.runtime.checkpoint import Checkpoint
from weft.runtime.prepared import Facts, Prepared, prepare

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Program, Tensor, Trace
    from weft.nn import Scope


if TYPE_CHECKING:
    Build = Callable[[Trace, Scope], Mapping[str, Tensor]]
    BuildWith = Callable[[Trace, Scope, Facts], Mapping[str, Tensor]]


class Programs:
    """The programs of one checkpoint on one backend. Weights are bound when first used and shared by all of them."""

    def __init__(self, checkpoint: Checkpoint, backend: Backend, *, compute: str) -> None:
        self.checkpoint = checkpoint
        self.backend = backend
        self.compute = compute
        self._weights = backend.weights()

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

        `options` are everything that the program and the facts depend on, besides checkpoint, backend and compute.
        """
        key = store.key_of(self._decided_by([*options, "adapters"] if adapters else options))
        found = store.find(key)
        if found is None:
            known = facts()
            traced = self.trace(self.checkpoint.model_type, lambda trace, w: build(trace, w, known), adapters=adapters)
            found = prepare(*traced, known, self.backend)
            store.keep(key, found)
        return found

    def _decided_by(self, options: Sequence[Any]) -> list[str]:
        tensors = [f"{name} {t.view.dtype} {t.view.shape}" for name, t in self.checkpoint.tensors.items()]
        config = json.dumps(self.checkpoint.config, sort_keys=True, default=str)
        return [self.compute, self.backend.key, self.checkpoint.format, *map(repr, options), config, *tensors]

    def trace(self, name: str, build: Build, *, adapters: bool = False) -> tuple[Program, dict[str, np.ndarray]]:
        """The planned program whose outputs `build` returns, and its constants; with `adapters` it takes them.

        Ops that the backend has no kernel for are replaced by their decompositions.
        """
        from weft.graph.passes import decompose, optimise
        from weft.graph.plan import plan
        from weft.nn import Scope
        from weft.runtime.tracing import CheckedTrace

        with self.checkpoint.naming(), CheckedTrace(name, self.checkpoint) as trace:
            for output, tensor in build(trace, Scope(trace, self.checkpoint.stored)).items():
                trace.output(output, tensor)
        half = "f16" in self.backend.fast
        program = optimise(trace.program(), compute=self.compute, adapters=adapters, half=half)
        return plan(decompose(program, self.backend.supports)), trace.constants

    def compile(self, prepared: Prepared, states: Mapping[str, Any]) -> Executable:
        """The program with all its weights packed."""
        loading = self.load(prepared)
        executable = self.executable(prepared, states)
        loading.finish()
        return executable

    def load(self, prepared: Prepared) -> Loading:
        """Lay out the weights that are not there yet; nothing may run before `finish` of the result."""
        return self._weights.load(prepared.weights, self.checkpoint, prepared.constants)

    def executable(self, prepared: Prepared, states: Mapping[str, Any], *, threads: int | None = None) -> Executable:
        """The program on the backend's team, or with `threads` on a team of its own; its weights are loaded."""
        return self.backend.compile(prepared, self._weights.bound(prepared.weights), states, threads=threads)

    @property
    def info(self) -> dict[str, Any]:
        """What is computed, and how."""
        return {
            "model_type": self.checkpoint.model_type,
            "format": self.checkpoint.format,
            "path": str(self.checkpoint.path),
            "file_bytes": self.checkpoint.size_bytes,
            "compute": self.compute,
            **self.backend.info,
        }

    def limit_experts(self, nbytes: int, names: Iterable[str]) -> None:
        """Before weights are loaded: keep at most so much of these stacks of experts in memory."""
        self._weights.limit_stacks(nbytes, names, self.checkpoint)

    @property
    def expert_counts(self) -> Mapping[str, int]:
        """What Weights.stack_counts says of the experts."""
        return self._weights.stack_counts

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights bound so far."""
        return self._weights.nbytes


def pick_compute(checkpoint: Checkpoint, asked: str | None, fast: frozenset[str]) -> str:
    """The arithmetic of a decoder's activations: what was asked for, or what is fast here for the stored types."""
    if asked is not None and asked not in COMPUTES:
        raise UnsupportedError("load", f"must be one of {', '.join(COMPUTES)}", field="compute", given=asked)
    stored = [tensor.view for tensor in checkpoint.tensors.values()]
    if asked or any(view.dtype.quantised for view in stored):
        return asked or ("int8" if "int8" in fast else "f32")
    matrices = {view.dtype.name for view in stored if len(view.shape) > 1}
    if not matrices <= {"f16", "bf16"}:
        return "f32"
    return "bf16" if "bf16" in fast else "f16" if "f16" in fast else "f32"
