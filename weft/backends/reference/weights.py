"""The weights of a checkpoint as numpy arrays and packed blocks, and those of adapters."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.backends.base import AdapterPacker, AdapterWeights, Loaded, Loading, PartPlace, Source, WantedWeight, Weights
from weft.dtype import dtype
from weft.ops.matmul import round_rows
from weft.ops.packed import Packed
from weft.ops.state import ADAPTERS, AdapterArray, AdapterPart

SPLIT = "split"  # the layout of a weight that is read as two bfloat16 parts; of others it is the element type


class ReferenceWeights(Weights):
    """Each weight in the type that the program declares."""

    def load(self, wanted: Sequence[WantedWeight], source: Source, constants: Mapping[str, bytes]) -> Loading:
        for weight in wanted:
            key = (weight.name, weight.layout)
            if key not in self._kept:
                self._kept[key] = self._read(weight, source, constants.get(weight.name))
        return Loaded()

    def _read(self, wanted: WantedWeight, source: Source, constant: bytes | None) -> np.ndarray | Packed:
        name, shape, layout = wanted
        if constant is not None:
            return np.frombuffer(constant, np.float32).reshape(shape)
        tensor = source.tensor(name, shape)
        if layout == SPLIT:
            return round_rows(tensor.numpy().astype(np.float32), split=True)
        if layout in ("f32", "f16"):
            return tensor.numpy().astype(dtype(layout).numpy).reshape(shape)
        taken = tensor if tensor.row_order is None else tensor.rows(0, shape[0])
        return Packed(dtype(layout), shape, np.frombuffer(taken.view.buffer(), np.uint8))


class ArrayWeight:
    """A float32 array of an adapter."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = np.ascontiguousarray(values, np.float32)
        self.nbytes = self.values.nbytes

    def dense(self) -> np.ndarray:
        return self.values

    def row(self, index: int) -> np.ndarray:
        return self.values.reshape(1, -1)[index]


class ReferenceAdapterPacker(AdapterPacker):
    """Keeps the parts as they are."""

    def __init__(self) -> None:
        self._parts: dict[PartPlace, AdapterWeights] = {}

    def add(self, place: PartPlace, values: Mapping[str, Any]) -> None:
        made = {what: ArrayWeight(_array(value)) for what, value in values.items() if value is not None}
        if made:
            self._parts[place] = AdapterWeights(**made)

    def finish(self) -> Mapping[PartPlace, AdapterWeights]:
        return self._parts


def _array(value: Any) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else value.numpy()  # a TensorView


class ReferenceTable(AdapterArray):
    """The adapters of one weight or stack; `put` and `clear` change them between steps."""

    def __init__(self, rows: int, cols: int, matrices: int | None = None) -> None:
        super().__init__(rows, cols, {}, matrices)

    def put(self, index: int, down: Any, up: Any, scale: Any, gain: Any, shift: Any, matrix: int = 0) -> None:
        values = [None if weight is None else weight.values for weight in (down, up, scale, gain, shift)]
        self.parts[matrix * ADAPTERS + index] = AdapterPart(*values)  # type: ignore[index]

    def clear(self, index: int) -> None:
        for place in [place for place in self.parts if place % ADAPTERS == index]:
            del self.parts[place]  # type: ignore[attr-defined]
