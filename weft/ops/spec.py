"""What a shape rule sees of an operand: its sizes and its element type, nothing else.

A size is an integer or a `Dim`, a linear form of the three symbols of a step: T (tokens), B (sequences) and L (rows
whose results are wanted). Linear is enough for every shape of a ragged batch, and keeps the planner's arena linear too.
"""

import math
import re
from dataclasses import field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from weft.dtype import DTYPES, DType
from weft.errors import ShapeError
from weft.frozen import frozen

SYMBOLS = ("T", "B", "L")

TERM = re.compile(r"([+-]?)(?:(\d+)\*)?(?:([TBL])|(\d+))")


@frozen
class Dim:
    """T*t + B*b + L*l + const. Arithmetic returns an int, not a Dim, where no symbol is left."""

    T: int = 0
    B: int = 0
    L: int = 0
    const: int = 0

    @property
    def coefficients(self) -> tuple[int, int, int, int]:
        return self.T, self.B, self.L, self.const

    def at(self, T: int = 0, B: int = 0, L: int = 0) -> int:
        """The value for these sizes."""
        return self.T * T + self.B * B + self.L * L + self.const

    def __add__(self, other: "Size") -> "Size":
        return simplest(Dim(*(a + b for a, b in zip(self.coefficients, linear(other).coefficients))))

    def __sub__(self, other: "Size") -> "Size":
        return self + linear(other) * -1

    def __rsub__(self, other: int) -> "Size":
        return linear(other) - self

    def __mul__(self, factor: "Size") -> "Size":
        if isinstance(factor, Dim):
            raise ShapeError(
                "dim", f"cannot multiply {self} by {factor}: a product of two symbolic sizes is not linear"
            )
        return simplest(Dim(*(a * factor for a in self.coefficients)))

    __radd__ = __add__
    __rmul__ = __mul__

    def __str__(self) -> str:
        parts = [f"{a:+d}*{s}" for a, s in zip(self.coefficients, SYMBOLS) if a]
        parts += [f"{self.const:+d}"] if self.const or not parts else []
        return re.sub(r"(?<!\d)1\*", "", "".join(parts)).removeprefix("+")

    __repr__ = __str__


Size = int | Dim
Shape = tuple[Size, ...]

T, B, L = Dim(T=1), Dim(B=1), Dim(L=1)


def linear(size: Size) -> Dim:
    """`size` as a Dim, whether or not it has symbols."""
    return size if isinstance(size, Dim) else Dim(const=int(size))


def simplest(dim: Dim) -> Size:
    """An int where the Dim has no symbol, else the Dim."""
    return dim if dim.T or dim.B or dim.L else dim.const


def parse_size(text: Any) -> Size:
    """The size written as "T", "B+1", "2*T", "2*T+B-1", or as an integer."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    found: dict[str, int] = {}
    at = 0
    while isinstance(text, str) and (term := TERM.match(text, at)) and (at == 0 or term[1]):
        sign, factor, symbol, const = term.groups()
        key = symbol or "const"
        if key in found or (factor and const):
            break
        found[key] = int(const if const else factor or 1) * (-1 if sign == "-" else 1)
        at = term.end()
    if not found or at != len(text):
        raise ShapeError("dim", "not a size", given=text, advice="write an integer or a sum of terms like 2*T, B, 1")
    return simplest(Dim(**found))


def as_dtype(dtype: str | DType) -> DType:
    """The element type of this name; raises ShapeError for an unknown one."""
    if isinstance(dtype, DType):
        return dtype
    if dtype not in DTYPES:
        raise ShapeError("dtype", "unknown element type", given=dtype, advice=f"the types are {', '.join(DTYPES)}")
    return DTYPES[dtype]


BY_NUMPY = {np.dtype(d.numpy): d for d in DTYPES.values() if d.numpy}


@frozen
class Spec:
    """Shape and element type. A quantised spec has its logical shape; a key/value state has [heads, dim]."""

    shape: tuple[Any, ...]  # of Size; Any, because rules compare and multiply sizes of either kind
    dtype: DType = field(default_factory=lambda: DTYPES["f32"])

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Elements; linear in the symbols."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> Any:
        """Bytes; linear in the symbols. The last axis is whole blocks."""
        if self.dtype.quantised:
            return math.prod(self.shape[:-1]) * self.dtype.nbytes(self.shape[-1])
        return self.size * self.dtype.size_bytes

    @property
    def floating(self) -> bool:
        return self.dtype.name in ("f16", "f32", "f64")

    def is_vector(self, size: Size) -> bool:
        """[size] of f32 or f64. Vectors are small, and kernels read them as f32 whatever the matrices are stored in."""
        return self.shape == (size,) and self.dtype.name in ("f32", "f64")

    def like(self, *shape: Size, dtype: str | DType | None = None) -> "Spec":
        """Another shape, the same element type unless one is given."""
        return replace(self, shape=shape, dtype=self.dtype if dtype is None else as_dtype(dtype))

    def at(self, **sizes: int) -> "Spec":
        """The spec with these values for the symbols."""
        return replace(self, shape=tuple(linear(size).at(**sizes) for size in self.shape))

    def __str__(self) -> str:
        return _spec_text(self.dtype.name, self.shape)

    __repr__ = __str__  # errors show the given value by its repr


@lru_cache(maxsize=4096)  # shape rules format specs for errors they do not raise: a quarter of a trace otherwise
def _spec_text(dtype: str, shape: tuple[Any, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def spec_of(operand: Any) -> Spec:
    """The spec of an array, or of anything that carries `spec` (a Packed, a KvArray, a symbolic tensor)."""
    if isinstance(operand, Spec):
        return operand
    if hasattr(operand, "spec"):
        return operand.spec
    if isinstance(operand, (np.ndarray, np.generic)):
        if operand.dtype not in BY_NUMPY:
            raise ShapeError("ops", f"an operand cannot be an array of {operand.dtype}", advice="use float32 or int32")
        return Spec(operand.shape, BY_NUMPY[operand.dtype])
    advice = "use an array, a packed weight, a state or a tensor"
    raise ShapeError("ops", f"an operand cannot be a {type(operand).__name__}", advice=advice)
