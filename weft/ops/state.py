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
from weft.ops.walsh import walsh

PAGE = 32  # tokens per page: csrc/core/state.h
KV_ELEMENTS = ("f32", "f16", "bf16", "i8", "i8r", "i4r")  # element types that keys and values are stored in
KV_CODES = ("i8", "i8r", "i4r")  # those of which a token and head has a scale
KV_ROTATED = ("i8r", "i4r")  # those of which rows are rotated before they are rounded
# What the codes of i4r stand for: Lloyd and Max's levels of the normal distribution, as int8.
LEVELS = (-127, -96, -75, -58, -44, -31, -18, -6, 6, 18, 31, 44, 58, 75, 96, 127)
STATE_KINDS = ("kv", "recurrent", "conv")
SLOT_KINDS = ("recurrent", "conv")
ADAPTERS = 256  # indices of adapters, 0 is none: csrc/core/state.h
NO_SLOT = -1  # read by a sequence that has no state yet: zeros


@frozen(eq=False)
class KvArray:
    """key [pages, heads, dim, PAGE] and value [pages, heads, PAGE, dim], both of `dtype`: KV_ELEMENTS; f64 in oracles.

    Token p of a sequence lives in column p % PAGE of the sequence's page number p // PAGE. Keys are transposed inside a
    page because the kernels read PAGE keys of one channel at a time. bf16 is kept in float32 arrays, which hold it. The
    elements of i8 and i8r are codes, those of i4r the LEVELS of its codes; key_scale and value_scale, float32
    [pages, heads, PAGE], hold the scales of the tokens.
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
        """All arrays: keys and values, and for codes their scales."""
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
        value = value.transpose(0, 2, 1, 3).reshape(-1, heads, dim)[:count]
        return (rotated(key), rotated(value)) if self.dtype.name in KV_ROTATED else (key, value)


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


def rotated(rows: np.ndarray) -> np.ndarray:
    """Rows [..., dim] times Walsh's matrix, orthonormal, of the largest size that divides dim: its own inverse.

    In the type of the rows; float32 has the kernels' bits.
    """
    dim = rows.shape[-1]
    size = dim & -dim
    return walsh(rows * (rows.dtype.type(1) / np.sqrt(rows.dtype.type(size))), size)


def rounded(rows: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows [..., dim] as a state holds them: those of KV_ROTATED rotated first, those of KV_CODES with scales [...].

    A scale of 8 bits is the largest magnitude of its row / 127, rounded up to bfloat16: a weight of one times it is
    exact there. So a row is rounded once, and whatever else is in its page changes nothing. A row too small for that is
    zeros; one that is not finite has the scale NaN.
    """
    if dtype.name == "bf16":
        return rounded_bf16(rows).astype(np.float32), None
    if dtype.name not in KV_CODES:
        return rows.astype(dtype.numpy), None
    narrow = rows.astype(np.float32)
    if dtype.name in KV_ROTATED:
        with np.errstate(invalid="ignore", over="ignore"):
            narrow = rotated(narrow)
    top = np.max(np.abs(narrow), axis=-1, keepdims=True)
    finite = np.isfinite(top)
    if dtype.name == "i4r":
        return _levelled(narrow, top, finite)
    nearest = np.where(finite, top, np.float32(0)) / np.float32(127)
    scale = ((nearest.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    with np.errstate(divide="ignore", over="ignore"):
        steps = np.float32(1) / scale
    usable = np.isfinite(steps)
    codes = np.rint(np.where(finite, narrow, np.float32(0)) * np.where(usable, steps, np.float32(0))).clip(-127, 127)
    scale = np.where(finite, np.where(usable, scale, np.float32(0)), np.float32(np.nan))
    return codes.astype(np.int8), scale[..., 0]


def _levelled(rows: np.ndarray, top: np.ndarray, finite: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotated rows as levels of i4r, with their scales, bfloat16: of a few the one under which a row is nearest.

    The row is rounded to 254 steps a side first, so that errors are compared exactly.
    """
    least = np.where(finite, top, np.float32(0)) / np.float32(254)
    usable = least >= np.finfo(np.float32).tiny
    steps = np.float32(254) / np.where(usable, top, np.float32(np.inf))
    stepped = np.rint(np.where(usable, rows, np.float32(0)) * steps)
    sizes, levels = np.abs(stepped), np.asarray(LEVELS[8:], np.float32)
    between = (levels[1:] + levels[:-1]) / 2
    best, chosen = np.full(top.shape, np.inf), np.zeros(top.shape, np.float32)
    found = np.zeros(rows.shape, np.float32)
    for n in range(17, 11, -1):
        ratio = np.float32(n / 8)
        near = levels[np.searchsorted(between * ratio, sizes)]
        error = np.sum((sizes - near * ratio).astype(np.float64) ** 2, axis=-1, keepdims=True)
        found = np.where(error < best, near, found)
        chosen = np.where(error < best, ratio, chosen)
        best = np.minimum(error, best)
    bits = (least * chosen).view(np.uint32)
    scale = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    scale = np.where(finite, np.where(usable, scale, np.float32(0)), np.float32(np.nan))
    return np.where(stepped < 0, -found, found).astype(np.int8), scale[..., 0]


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
