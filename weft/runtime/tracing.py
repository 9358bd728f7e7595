"""The trace of a checkpoint's model."""

from typing import cast

from weft.dtype import DType
from weft.graph import Tensor, Trace
from weft.ops.spec import Shape
from weft.runtime.checkpoint import Checkpoint
from weft.weights.rotation import turned_of


class CheckedTrace(Trace):
    """A trace that ends at the first weight the checkpoint lacks: a config can ask for a thousand layers."""

    def __init__(self, name: str, checkpoint: Checkpoint) -> None:
        super().__init__(name)
        self._checkpoint = checkpoint
        self.turned = turned_of(checkpoint.config)

    def weight(self, name: str, shape: Shape, dtype: str | DType = "f32") -> Tensor:
        if name not in self.constants and self._checkpoint.stored(name) is None:
            self._checkpoint.tensor(name, cast(tuple[int, ...], shape))  # says what is missing
        return super().weight(name, shape, dtype)
