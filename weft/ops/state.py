"""What outlives a step, as numpy arrays: the paged key/value state of one layer, and the adapters of one weight."""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from weft.dtype import DType, rounded_bf16
from weft.errors import InputError
from weft.frozen import frozen
from weft.ops.packed import Packed
from weft.ops.spec import Spec, as_dtype

PAGE = 32  # tokens per page: csrc/core/state.h
STATE_TYPES = ("f32", "f16", "bf16", "i8")


@frozen(eq=False)
class KvArray:
    """key [pages, heads, dim, PAGE] and value [pages, heads, PAGE, dim], both of `dtype`: STATE_TYPES; f64 in oracles.

    Token p of a sequence lives in column p % PAGE of the sequence's page number p // PAGE. Keys are transposed inside a
    page because the kernels read PAGE keys of one channel at a time. bf16 is kept in float32 arrays, which hold it. Of
    i8 the elements are codes, and what a token's are multiplied by is in key_scale and value_scale, float32 [pages,
    heads, PAGE].
    """

    dtype: DType
    key: np.ndarray
    value: np.ndarray
    key_scale: np.ndarray | None = None
    value_scale: np.ndarray | None = None

    def __post_init__(self) -> None:
        pages, heads, dim, page = self.key.shape
        if page != PAGE or self.value.shape != (pages, heads, PAGE, dim):
            raise InputError(
                f"[state] key {self.key.shape} and value {self.value.shape} are not pages of {PAGE} tokens"
            )

    @classmethod
    def zeros(cls, pages: int, heads: int, dim: int, dtype: str | DType = "f32") -> "KvArray":
        return cls.of(np.zeros((pages, heads, dim, PAGE)), np.zeros((pages, heads, PAGE, dim)), dtype)

    @classmethod
    def of(cls, key: np.ndarray, value: np.ndarray, dtype: str | DType) -> "KvArray":
        """A state of these numbers, rounded to `dtype`."""
        dtype = as_dtype(dtype)
        (keys, key_scale), (values, value_scale) = rounded(key.swapaxes(-1, -2), dtype), rounded(value, dtype)
        return cls(dtype, keys.swapaxes(-1, -2), values, key_scale, value_scale)

    @property
    def spec(self) -> Spec:
        return Spec((self.key.shape[1], self.key.shape[2]), self.dtype)

    @property
    def pages(self) -> int:
        return self.key.shape[0]

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """All that is stored: keys and values, and of i8 their scales."""
        return tuple(a for a in (self.key, self.value, self.key_scale, self.value_scale) if a is not None)

    def copy(self) -> "KvArray":
        return KvArray(self.dtype, *(array.copy() for array in self.arrays))

    def write(self, page: int, column: int, key: np.ndarray, value: np.ndarray) -> None:
        """Store one token's key and value, both [heads, dim]."""
        self.key[page, :, :, column], key_scale = rounded(key, self.dtype)
        self.value[page, :, column, :], value_scale = rounded(value, self.dtype)
        if self.key_scale is not None and self.value_scale is not None:
            self.key_scale[page, :, column], self.value_scale[page, :, column] = key_scale, value_scale

    def read(self, pages: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a sequence's first `count` tokens, float64 [count, heads, dim] each."""
        used = pages[: -(-count // PAGE)]
        heads, dim = self.spec.shape
        key, value = self.key[used].astype(np.float64), self.value[used].astype(np.float64)
        if self.key_scale is not None and self.value_scale is not None:
            key, value = key * self.key_scale[used][..., None, :], value * self.value_scale[used][..., None]
        key = key.transpose(0, 3, 1, 2).reshape(-1, heads, dim)[:count]
        return key, value.transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:count]


def rounded(rows: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows [..., dim] as a state holds them; of i8 with their scales [...].

    A scale is the largest magnitude of its row / 127, rounded up to bfloat16: a weight of one times it is exact there.
    So a row is rounded once, and whatever else is in its page changes nothing. A row too small for that is zeros; one
    that is not finite has the scale NaN.
    """
    if dtype.name == "bf16":
        return rounded_bf16(rows).astype(np.float32), None
    if dtype.name != "i8":
        return rows.astype(dtype.numpy), None
    narrow = rows.astype(np.float32)
    top = np.max(np.abs(narrow), axis=-1, keepdims=True)
    finite = np.isfinite(top)
    nearest = np.where(finite, top, np.float32(0)) / np.float32(127)
    scale = ((nearest.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        steps = np.float32(1) / scale
    usable = np.isfinite(steps)
    codes = np.rint(np.where(finite, narrow, np.float32(0)) * np.where(usable, steps, np.float32(0))).clip(-127, 127)
    scale = np.where(finite, np.where(usable, scale, np.float32(0)), np.float32(np.nan))
    return codes.astype(np.int8), scale[..., 0]


Matrix = np.ndarray | Packed


@frozen(eq=False)
class AdapterPart:
    """What an adapter makes of the products y = x Wᵀ + b of a weight [N, K]:

    gain * (y + up (scale * (down x))) + shift, or up x + shift where there is no `down`. What is None is left out.
    """

    down: Matrix | None = None  # [rank, K]
    up: Matrix | None = None  # [N, rank]; [N, K] where there is no `down`
    scale: np.ndarray | None = None  # [rank]
    gain: np.ndarray | None = None  # [N]
    shift: np.ndarray | None = None  # [N]


@frozen(eq=False)
class AdapterArray:
    """The adapters of a weight [rows, cols], by index; 0 is none."""

    rows: int
    cols: int
    parts: Mapping[int, AdapterPart] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        return Spec((self.rows, self.cols), as_dtype("f32"))
