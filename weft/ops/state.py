"""What outlives a step, as numpy arrays: the paged key/value state of one layer, and the adapters of one weight."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weft.dtype import DType
from weft.errors import InputError
from weft.ops.packed import Packed
from weft.ops.spec import Spec, as_dtype

PAGE = 32  # tokens per page: csrc/core/state.h


@dataclass(frozen=True, eq=False)
class KvArray:
    """key [pages, heads, dim, PAGE] and value [pages, heads, PAGE, dim], both of `dtype` (f16 or f32; f64 in oracles).

    Token p of a sequence lives in column p % PAGE of the sequence's page number p // PAGE. Keys are transposed inside a
    page because the kernels read PAGE keys of one channel at a time.
    """

    dtype: DType
    key: np.ndarray
    value: np.ndarray

    def __post_init__(self) -> None:
        pages, heads, dim, page = self.key.shape
        if page != PAGE or self.value.shape != (pages, heads, PAGE, dim):
            raise InputError(
                f"[state] key {self.key.shape} and value {self.value.shape} are not pages of {PAGE} tokens"
            )

    @classmethod
    def zeros(cls, pages: int, heads: int, dim: int, dtype: str | DType = "f32") -> "KvArray":
        dtype = as_dtype(dtype)
        key = np.zeros((pages, heads, dim, PAGE), dtype.numpy)
        return cls(dtype, key, np.zeros((pages, heads, PAGE, dim), dtype.numpy))

    @property
    def spec(self) -> Spec:
        return Spec((self.key.shape[1], self.key.shape[2]), self.dtype)

    @property
    def pages(self) -> int:
        return self.key.shape[0]

    def copy(self) -> "KvArray":
        return KvArray(self.dtype, self.key.copy(), self.value.copy())

    def write(self, page: int, column: int, key: np.ndarray, value: np.ndarray) -> None:
        """Store one token's key and value, both [heads, dim]."""
        self.key[page, :, :, column] = key
        self.value[page, :, column, :] = value

    def read(self, pages: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a sequence's first `count` tokens, float64 [count, heads, dim] each."""
        used = pages[: -(-count // PAGE)]
        heads, dim = self.spec.shape
        key = self.key[used].transpose(0, 3, 1, 2).reshape(-1, heads, dim)[:count]
        value = self.value[used].transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:count]
        return key.astype(np.float64), value.astype(np.float64)


Matrix = np.ndarray | Packed


@dataclass(frozen=True, eq=False)
class AdapterPart:
    """What an adapter makes of the products y = x Wᵀ + b of a weight [N, K]:

    gain * (y + up (scale * (down x))) + shift, or up x + shift where there is no `down`. What is None is left out.
    """

    down: Matrix | None = None  # [rank, K]
    up: Matrix | None = None  # [N, rank]; [N, K] where there is no `down`
    scale: np.ndarray | None = None  # [rank]
    gain: np.ndarray | None = None  # [N]
    shift: np.ndarray | None = None  # [N]


@dataclass(frozen=True, eq=False)
class AdapterArray:
    """The adapters of a weight [rows, cols], by index; 0 is none."""

    rows: int
    cols: int
    parts: Mapping[int, AdapterPart] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        return Spec((self.rows, self.cols), as_dtype("f32"))
