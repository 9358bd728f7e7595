"""The weights of a checkpoint as the kernels read them, packed by a team of threads, and those of adapters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft._core import pack
from weft.backends.base import (
    AdapterPacker,
    AdapterWeights,
    Loading,
    PartPlace,
    Source,
    StoredTensor,
    WantedWeight,
    Weights,
)
from weft.backends.cpu.binding import STACK
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.dtype import DType

DENSE = ("f32", "f16", "bf16")  # types that a matrix may have in a file besides the quantised blocks


class CpuWeights(Weights):
    """Native weights; those of one checkpoint share an arena."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads
        self._arena = pack.Arena()
        self._experts: Any = None
        self._limited: frozenset[str] = frozenset()  # the names of stacks that _experts keeps some matrices of

    def limit_stacks(self, nbytes: int, names: Iterable[str], source: Source) -> None:
        self._experts, self._limited = pack.ExpertMemory(nbytes, source.buffers()), frozenset(names)

    @property
    def stack_counts(self) -> Mapping[str, int]:
        return {} if self._experts is None else self._experts.counts

    def load(self, wanted: Sequence[WantedWeight], source: Source, constants: Mapping[str, bytes]) -> Loading:
        """Packing goes on in other threads after this returns."""
        files = source.buffers(soon=not self._limited)  # a file whose experts do not fit is not read as a whole
        packing = pack.Packing(self._threads, self._arena, files)
        # Vectors first: they are written here and now, and should lie together, not on a page of each matrix.
        ordered = sorted(wanted, key=lambda weight: weight.layout != "vector")
        made = {
            (weight.name, weight.layout): self._made(weight, source, constants.get(weight.name), packing)
            for weight in ordered
            if (weight.name, weight.layout) not in self._kept
        }
        packing.start()
        self._kept.update(made)
        return packing

    def _made(self, wanted: WantedWeight, source: Source, constant: bytes | None, packing: Any) -> Any:
        name, shape, layout = wanted
        if constant is not None and layout == "rows":
            import numpy as np

            return pack.Weight.in_rows("f32", *shape, np.frombuffer(constant, np.uint8))
        if constant is not None:
            return pack.Weight.widened("f32", math.prod(shape), constant, arena=self._arena)
        if layout.startswith(STACK):
            return self._stacked(wanted, source, packing)
        return self._one(source.tensor(name, shape), wanted, packing)

    def _stacked(self, wanted: WantedWeight, source: Source, packing: Any) -> Any:
        """Each matrix packed by itself, so that those of one expert lie together and nothing is copied before."""
        name, (count, rows, cols), layout = wanted
        each = WantedWeight(name, (rows, cols), layout.removeprefix(STACK))
        matrices = source.matrices(name, (count, rows, cols))
        if name in self._limited:
            stored = matrices[0].view.dtype.name
            data, orders = [one.view.buffer() for one in matrices], [one.row_order for one in matrices]
            return self._experts.add(each.layout, stored, rows, cols, data, orders)
        return pack.Weight.stacked([self._one(matrix, each, packing) for matrix in matrices])

    def _one(self, tensor: StoredTensor, wanted: WantedWeight, packing: Any) -> Any:
        name, shape, layout = wanted
        stored, data = tensor.view.dtype, tensor.view.buffer()
        if layout == "vector":
            if not _native(stored):
                return pack.Weight.vector(tensor.numpy().astype("f4").reshape(-1), self._arena)
            return pack.Weight.widened(stored.name, shape[0], data, tensor.row_order, tensor.plus_one, self._arena)
        if not _native(stored):
            raise UnsupportedError("weights", f"{name} is stored as {stored}; matrices are f32, f16, bf16 or quantised")
        rows, cols = math.prod(shape[:-1]), shape[-1]
        if layout == "rows":
            taken = tensor if tensor.row_order is None else tensor.rows(0, shape[0])
            return pack.Weight.in_rows(stored.name, rows, cols, taken.view.buffer())
        if tensor.view.made:  # packed at once, so that its bytes are in memory beside the packed ones for a moment only
            own = pack.Packing(self._threads, self._arena)
            weight = own.add(layout, stored.name, rows, cols, data, tensor.row_order)
            own.start()
            own.finish()
            return weight
        return packing.add(layout, stored.name, rows, cols, data, tensor.row_order)


def _native(stored: DType) -> bool:
    """Whether the core reads weights of this type."""
    return stored.quantised or stored.name in DENSE


class CpuAdapterPacker(AdapterPacker):
    """Packs the parts of one version, in memory of its own."""

    def __init__(self) -> None:
        self._arena = pack.Arena()
        self._packing = pack.Packing(1, self._arena)
        self._parts: dict[PartPlace, AdapterWeights] = {}

    def add(self, place: PartPlace, values: Mapping[str, Any]) -> None:
        matrices = [view for view in (values.get("down"), values.get("up")) if view is not None]
        stored = {view.dtype.name for view in matrices}
        one = stored.pop() if len(stored) == 1 else "f32"
        made: dict[str, Any] = {}
        for what in ("down", "up"):
            if (view := values.get(what)) is not None:
                made[what] = self._packing.add("panels", one, *view.shape, _as_type(view, one))
        for what in ("scale", "gain", "shift"):
            if (vector := values.get(what)) is not None:
                made[what] = pack.Weight.vector(vector, self._arena)
        if made:
            self._parts[place] = AdapterWeights(**made)

    def finish(self) -> Mapping[PartPlace, AdapterWeights]:
        self._packing.finish()
        return self._parts


def _as_type(view: Any, dtype: str) -> Any:
    """The bytes of a matrix in its own type, or widened."""
    import numpy as np

    if view.dtype.name == dtype:
        return view.bytes()
    return np.ascontiguousarray(view.numpy(), np.float32).reshape(-1).view(np.uint8)
