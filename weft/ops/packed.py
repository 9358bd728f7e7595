"""Arrays whose elements numpy has no type for: bfloat16, quantised weights, and rows of int8 activations."""

import math
from typing import cast

import numpy as np

from weft.dtype import DType, bf16_to_f32, f32_to_bf16
from weft.errors import InputError
from weft.frozen import frozen
from weft.ops.spec import Spec, as_dtype

# Rows of int8 activations, as the kernels read them: docs/design/core.md, "Numbers".
A8 = {
    "a8_32": np.dtype([("d", "<f4"), ("sum", "<i2", 2), ("q", "i1", 32)]),
    "a8_256": np.dtype([("d", "<f4"), ("sum", "<i2", 16), ("q", "i1", 256)]),
}


@frozen(eq=False)
class Packed:
    """`shape` elements of `dtype` in the bytes of `data` (uint8, one axis), row after row as a file lays them out."""

    dtype: DType
    shape: tuple[int, ...]
    data: np.ndarray

    def __post_init__(self) -> None:
        want = self.dtype.nbytes(self.shape[-1]) * math.prod(self.shape[:-1]) if self.shape else self.dtype.nbytes(1)
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or not self.data.flags.c_contiguous:
            given = f"{self.data.dtype} {self.data.shape}"
            raise InputError("packed", "must be contiguous uint8 with one axis", field="data", given=given)
        if self.data.size != want:
            raise InputError("packed", f"must have {want} bytes for {self.spec}", field="data", given=self.data.size)

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    def dense(self) -> np.ndarray:
        """The elements as float32, exactly what the format says they are."""
        return dequantise(self.dtype.name, self.data, math.prod(self.shape)).reshape(self.shape)

    def take(self, rows: np.ndarray) -> "Packed":
        """Rows of a matrix, still packed, so that a look-up does not widen a whole vocabulary."""
        picked = self.data.reshape(self.shape[0], -1)[rows]
        return Packed(self.dtype, (len(rows), *self.shape[1:]), picked.reshape(-1))


def dequantise(name: str, data: np.ndarray, count: int) -> np.ndarray:
    """`count` elements of type `name` as float32 [count]."""
    if name == "bf16":
        return bf16_to_f32(data.view("<u2"))
    if name in ("f32", "f16"):
        return data.view("<f4" if name == "f32" else "<f2").astype(np.float32)
    if name in A8:
        blocks = data.view(A8[name])
        return (blocks["d"][:, None] * blocks["q"].astype(np.float32)).reshape(-1)
    from weft._core import quant  # the block formats are read in one place, csrc/quant

    return cast(np.ndarray, quant.dequantise(name, data, count))


def pack(values: np.ndarray, dtype: str | DType) -> Packed:
    """`values` rounded to f32, f16 or bf16 and packed; block formats are read from files, never made here."""
    dtype = as_dtype(dtype)
    if dtype.name == "bf16":
        stored = f32_to_bf16(np.asarray(values, np.float32))
    elif dtype.name in ("f32", "f16"):
        stored = np.ascontiguousarray(values, dtype.numpy)
    else:
        raise InputError("packed", "must be f32, f16 or bf16", field="dtype", given=dtype.name)
    return Packed(dtype, values.shape, stored.reshape(-1).view(np.uint8))


def wide(weight: "np.ndarray | Packed") -> np.ndarray:
    """A weight as float64, however it is stored."""
    dense = weight.dense() if isinstance(weight, Packed) else weight
    return dense.astype(np.float64, copy=False)
