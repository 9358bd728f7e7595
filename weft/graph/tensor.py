"""The symbolic tensor that a model's functions pass around while it is traced: a shape and a type, no elements."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.dtype import DType
from weft.ops import elementwise, gather
from weft.ops.registry import Op, Symbolic
from weft.ops.spec import B, Dim, L, Shape, Size, Spec, T

if TYPE_CHECKING:
    from weft.graph.trace import Trace

__all__ = ["B", "Dim", "L", "Shape", "Size", "Spec", "T", "Tensor", "named"]


class Tensor(Symbolic):
    """A value of a trace: an input, a weight, a state, or the result of an op.

    Made by `Trace` only. Ops called on it record an instruction in its trace and return the result's tensor.
    """

    def __init__(self, trace: "Trace", name: str, kind: str, spec: Spec) -> None:
        self.trace = trace
        self.name = name
        self.kind = kind
        self.spec = spec
        self.label = ""

    @property
    def shape(self) -> Shape:
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    def record(self, op: Op, operands: Sequence[Symbolic | None], attrs: dict[str, Any]) -> Any:
        return self.trace.record(op, operands, attrs)

    def reshape(self, *shape: Size) -> "Tensor":
        """The same elements under another shape; one size may be -1: the others determine it."""
        if shape.count(-1) == 1:
            shape = tuple(self._missing(shape) if size == -1 else size for size in shape)
        result: Tensor = gather.reshape(self, shape=shape)
        return result

    def _missing(self, shape: Shape) -> Size:
        known = Spec(tuple(size for size in shape if size != -1)).size
        whole = self.spec.size
        if isinstance(known, int) and known and isinstance(whole, Dim):
            return Dim(*(c // known for c in whole.coefficients))  # reshape's shape rule refuses a remainder
        if isinstance(known, int):
            return int(whole // known) if known else 0
        factors = {w // k for w, k in zip(_forms(whole), known.coefficients) if k}
        return factors.pop() if len(factors) == 1 else 0

    def __add__(self, other: "Tensor") -> "Tensor":
        result: Tensor = elementwise.add(self, other)
        return result

    def __mul__(self, other: "Tensor | float") -> "Tensor":
        """Elementwise product with a tensor, or scaling by a number."""
        product = elementwise.mul(self, other) if isinstance(other, Tensor) else elementwise.scale(self, by=other)
        result: Tensor = product
        return result

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<{self.name} : {self.spec}>"


def _forms(size: Size) -> tuple[int, int, int, int]:
    return size.coefficients if isinstance(size, Dim) else (0, 0, 0, size)


def named(x: Tensor, label: str) -> Tensor:
    """Label an intermediate, so that WEFT_WATCH can show it; returns the tensor."""
    return x.trace.label(x, label)
