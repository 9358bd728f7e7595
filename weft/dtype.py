"""Element types, packed quantised blocks included; the same table as csrc/core/dtype.h."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np


@frozen
class DType:
    """`block` elements are stored in `size_bytes` bytes; `gguf` and `safetensors` are its names in those files."""

    name: str
    block: int
    size_bytes: int
    gguf: int | None = None
    safetensors: str | None = None
    numpy: str | None = None

    @property
    def quantised(self) -> bool:
        return self.block > 1

    @property
    def stores_weights(self) -> bool:
        """Whether a matrix of a model may have this type; rows of int8 activations are quantised as well."""
        return self.name in ("f32", "f16", "bf16") or (self.quantised and not self.name.startswith("a8_"))

    def nbytes(self, count: int) -> int:
        """Bytes of `count` elements; whole blocks only."""
        if count % self.block:
            raise ValueError(f"[dtype] {count} elements are not whole blocks of {self.block} ({self.name})")
        return count // self.block * self.size_bytes

    def __str__(self) -> str:
        return self.name


def _table(*rows: DType) -> dict[str, DType]:
    return {row.name: row for row in rows}


DTYPES = _table(
    DType("f32", 1, 4, 0, "F32", "<f4"),
    DType("f16", 1, 2, 1, "F16", "<f2"),
    DType("bf16", 1, 2, 30, "BF16"),
    DType("i8", 1, 1, 24, "I8", "i1"),
    DType("u8", 1, 1, None, "U8", "u1"),
    DType("i16", 1, 2, 25, "I16", "<i2"),
    DType("i32", 1, 4, 26, "I32", "<i4"),
    DType("i64", 1, 8, 27, "I64", "<i8"),
    DType("f64", 1, 8, 28, "F64", "<f8"),
    DType("bool", 1, 1, None, "BOOL", "?"),
    DType("q4_0", 32, 18, 2),
    DType("q4_1", 32, 20, 3),
    DType("q5_0", 32, 22, 6),
    DType("q5_1", 32, 24, 7),
    DType("q8_0", 32, 34, 8),
    DType("q2_k", 256, 84, 10),
    DType("q3_k", 256, 110, 11),
    DType("q4_k", 256, 144, 12),
    DType("q5_k", 256, 176, 13),
    DType("q6_k", 256, 210, 14),
    DType("iq2_xxs", 256, 66, 16),
    DType("iq2_xs", 256, 74, 17),
    DType("iq3_xxs", 256, 98, 18),
    DType("iq1_s", 256, 50, 19),
    DType("iq4_nl", 32, 18, 20),
    DType("iq3_s", 256, 110, 21),
    DType("iq2_s", 256, 82, 22),
    DType("iq4_xs", 256, 136, 23),
    DType("iq1_m", 256, 56, 29),
    DType("tq1_0", 256, 54, 34),
    DType("tq2_0", 256, 66, 35),
    DType("mxfp4", 32, 17, 39),
    DType("q4_z", 32, 20),  # weft's own: 4-bit codes with an integer zero point
    DType("i8r", 1, 1),  # keys and values of a state whose rows are rotated,
    DType("i4r", 1, 1),  # and in 4 bits, two in a byte of a page
    DType("a8_32", 32, 40),
    DType("a8_256", 256, 292),
)

BY_GGUF = {d.gguf: d for d in DTYPES.values() if d.gguf is not None}
BY_SAFETENSORS = {d.safetensors: d for d in DTYPES.values() if d.safetensors is not None}


def dtype(name: str) -> DType:
    """The element type called `name`. A KeyError is weft's own bug: file readers use BY_GGUF and BY_SAFETENSORS."""
    return DTYPES[name]


def bf16_to_f32(bits: np.ndarray) -> np.ndarray:
    """Widen bfloat16 bits (uint16) to float32; exact."""
    import numpy as np

    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """Round float32 to bfloat16 bits (uint16), nearest even; NaN stays NaN."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def rounded_bf16(values: np.ndarray) -> np.ndarray:
    """Values rounded to bfloat16, nearest even, subnormals to zero, as a matrix unit reads them; as float64."""
    import numpy as np

    narrow = bf16_to_f32(f32_to_bf16(values.astype(np.float32))).astype(np.float64)
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, 0.0 * narrow, narrow)
