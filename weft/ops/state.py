"""What outlives a step, as numpy arrays: the states of one layer, and the adapters of one weight.

A model declares states of three kinds, each with its shape:

    kv         [heads, dim]        keys and values of every token, in pages                         KvArray
    recurrent  any                 one array per sequence, in slots                                 SlotArray
    conv       [channels, width]   the last width - 1 inputs of a causal convolution, in slots      SlotArray
"""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from weft.dtype import DType, rounded_bf16
from weft.errors import InputError
from weft.frozen import frozen
from weft.ops.packed import Packed
from weft.ops.spec import Spec, as_dtype

PAGE = 32  # tokens per page: csrc/core/state.h
KV_ELEMENTS = ("f32", "f16", "bf16", "i8")  # element types that keys and values are stored in
STATE_KINDS = ("kv", "recurrent", "conv")
SLOT_KINDS = ("recurrent", "conv")
ADAPTERS = 256  # indices of adapters, 0 is none: csrc/core/state.h
NO_SLOT = -1  # read by a sequence that has no state yet: zeros


@frozen(eq=False)
class KvArray:
    """key [pages, heads, dim, PAGE] and value [pages, heads, PAGE, dim], both of `dtype`: KV_ELEMENTS; f64 in oracles.

    Token p of a sequence lives in column p % PAGE of the sequence's page number p // PAGE. Keys are transposed inside a
    page because the kernels read PAGE keys of one channel at a time. bf16 is kept in float32 arrays, which hold it. The
    elements of i8 are codes; key_scale and value_scale, float32 [pages, heads, PAGE], hold the scales of the tokens.
    """

    dtype: DType
    key: np.ndarray
    value: np.ndarray
    key_scale: np.ndarray | None = None
    value_scale: np.ndarray | None = None

    def __post_init__(self) -> None:
        pages, heads, dim, page = self.key.shape
        if page != PAGE or self.value.shape != (pages, heads, PAGE, dim):
            what = f"key and value must be pages of {PAGE} tokens"
            raise InputError("state", what, given=(self.key.shape, self.value.shape))

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
        """All arrays: keys and values, and for i8 their scales."""
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


def slot_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one slot of a state: that of a convolution holds all inputs but the newest, oldest first."""
    return (shape[1] - 1, shape[0]) if kind == "conv" else shape


@frozen(eq=False)
class SlotArray:
    """values [slots, *slot_shape(kind, shape)], float32 (float64 in oracles): the state of one layer.

    A step reads the state of a sequence from one slot and writes it to another.
    """

    kind: str  # of SLOT_KINDS
    shape: tuple[int, ...]  # as the model declares it
    values: np.ndarray

    def __post_init__(self) -> None:
        if self.kind not in SLOT_KINDS or self.values.shape[1:] != slot_shape(self.kind, self.shape):
            raise InputError("state", f"values {self.values.shape} are not slots of a {self.kind} state {self.shape}")

    @classmethod
    def zeros(cls, kind: str, slots: int, shape: tuple[int, ...], dtype: type = np.float32) -> "SlotArray":
        return cls(kind, shape, np.zeros((slots, *slot_shape(kind, shape)), dtype))

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, as_dtype("f32"))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (self.values,)

    def copy(self) -> "SlotArray":
        return SlotArray(self.kind, self.shape, self.values.copy())

    def read(self, slot: int) -> np.ndarray:
        """The state in a slot, float64; zeros for NO_SLOT."""
        if slot == NO_SLOT:
            return np.zeros(self.values.shape[1:])
        return self.values[slot].astype(np.float64)

    def write(self, slot: int, value: np.ndarray) -> None:
        self.values[slot] = value


def rounded(rows: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows [..., dim] as a state holds them, for i8 with their scales [...].

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
    """How an adapter changes the products y = x Wᵀ + b of a weight [N, K]:

    gain * (y + up (scale * (down x))) + shift, or up x + shift where there is no `down`. Parts that are None are left
    out.
    """

    down: Matrix | None = None  # [rank, K]
    up: Matrix | None = None  # [N, rank]; [N, K] where there is no `down`
    scale: np.ndarray | None = None  # [rank]
    gain: np.ndarray | None = None  # [N]
    shift: np.ndarray | None = None  # [N]


@frozen(eq=False)
class AdapterArray:
    """The adapters of a weight [rows, cols], by index; 0 is none.

    With `matrices`, of a stack of so many of them: the part of index i for matrix m is at m * ADAPTERS + i.
    """

    rows: int
    cols: int
    parts: Mapping[int, AdapterPart] = field(default_factory=dict)
    matrices: int | None = None

    @property
    def spec(self) -> Spec:
        stack = () if self.matrices is None else (self.matrices,)
        return Spec((*stack, self.rows, self.cols), as_dtype("f32"))
