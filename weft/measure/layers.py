"""A decoder that also gives the hidden states after each of its layers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weft.graph.tensor import T
from weft.runtime.decoder import Decoder
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step
from weft.weights.rotation import rotation_of

if TYPE_CHECKING:
    import numpy as np

    from weft.graph import Tensor, Trace
    from weft.nn import Scope
    from weft.runtime.prepared import Facts, Prepared

HEAD = -1  # what stands before and after the layers: embeddings, the last norm, the last product
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")


class LayeredDecoder(Decoder):
    """A decoder with a second program over the same weights and states: its outputs are the residual stream after each
    layer. The program that answers is untouched."""

    @cached_property
    def _layered(self) -> Prepared:
        return self._programs.prepared((*self._options, "layers"), self._build_layers, self._facts)

    @cached_property
    def _layered_executable(self) -> Any:
        self.ready()
        loading = self._programs.load(self._layered)
        executable = self._programs.executable(self._layered, self._states_of(self._layered))
        loading.finish()
        return executable

    def _build_layers(self, trace: Trace, w: Scope, facts: Facts) -> Mapping[str, Tensor]:
        outputs = self._build(trace, w, facts)
        return {**outputs, **residuals(trace, self.config.hidden_size)}

    def hidden_states(self, ids: np.ndarray) -> list[np.ndarray]:
        """The hidden states [tokens, hidden] of one sequence after each layer, float64. Empty for a model whose layers
        cannot be told apart."""
        import numpy as np

        holding = self.holding()
        holding.grow(len(ids))
        try:
            holding.ready()
            step = build_step([ids], starts=[0], asked=[1], pages=[holding.row], slots=slots_of([holding]))
            self._check(step)
            found = self._layered_executable.run(step.arrays(self._layered.inputs))
        finally:
            holding.release()
        count = sum(name.startswith("layer_") for name in found)
        states = [found[f"layer_{number}"].astype(np.float64) for number in range(count)]
        rotation = rotation_of(self.checkpoint.config)
        return states if rotation is None else [rotation.unturned(state) for state in states]


def residuals(trace: Trace, hidden: int) -> dict[str, Tensor]:
    """The last tensor [T, hidden] before the first op that reads a weight of the next layer, or before the head: what a
    layer hands on. A model whose layers are not numbered from 0 in order gives nothing."""
    body = [(_layers_of(trace, given), results) for _, given, results, _ in trace.recorded]
    ends = max((place for place, (layers, _) in enumerate(body) if layers - {HEAD}), default=-1)
    found: list[Tensor] = []
    last: Tensor | None = None
    current = -1
    for place, (layers, results) in enumerate(body):
        after = {layer for layer in layers if layer != HEAD} or (layers if place > ends else set())
        if after and after != {current}:
            if len(after) > 1 or (HEAD not in after and after != {current + 1}):
                return {}
            if current >= 0 and last is not None:
                found.append(last)
            if HEAD in after:
                break
            current += 1
        if len(results) == 1 and results[0].shape == (T, hidden):
            last = results[0]
    return {f"layer_{number}": tensor for number, tensor in enumerate(found)}


def _layers_of(trace: Trace, given: Sequence[Tensor | None]) -> set[int]:
    """The layers whose weights an op reads; HEAD stands for weights of none."""
    names = [t.name for t in given if t is not None and t.kind == "weight" and t.name not in trace.constants]
    numbers = [_LAYER.search(f".{name}") for name in names]
    return {int(number[1]) if number else HEAD for number in numbers}
