"""Any array as rows that the core reads, and the team of threads that reads them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from weft import _core, flags
from weft.errors import InputError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

ELEMENTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "uint8": "bits"}
NAMED = {"f32": "float32", "f16": "float16", "bf16": "uint16", "i8": "int8", "bits": "uint8"}
MOST_THREADS = 256
BITS_METRIC = "hamming"  # the one metric of plain bytes


class Matrix(NamedTuple):
    """Rows of one element type: `array` [n, size], 16-bit floats as uint16; `single` where one vector was given."""

    array: np.ndarray
    element: str
    single: bool

    @property
    def dim(self) -> int:
        return int(self.array.shape[1]) * (8 if self.element == "bits" else 1)

    def rows(self, norms: np.ndarray | None = None) -> Any:
        """For the core: without a copy."""
        return _core.vectors.Rows(self.array, self.element, self.dim, norms)


def matrix(x: ArrayLike, dtype: str | None = None, *, name: str = "vectors") -> Matrix:
    """`x`, [d] or [n, d], as rows. Lists and float64 become float32; `dtype` "bf16" says what uint16 holds.

    Rows may lie apart, as in `x[:, :256]`; only where the numbers of a row lie apart are they copied.
    """
    import numpy as np

    array = x if isinstance(x, np.ndarray) else _from_sequence(x, name)
    element = _element(array, dtype, name)
    if array.ndim not in (1, 2):
        raise ShapeError(f"[{name}] a vector is [d] and vectors are [n, d]: got {array.shape}")
    if array.shape[-1] == 0:
        raise ShapeError(f"[{name}] vectors of no numbers: got {array.shape}")
    single = array.ndim == 1
    wide = array.reshape(1, -1) if single else array
    if array.dtype.name != NAMED[element]:
        wide = wide.view(np.uint16) if element == "bf16" else _as_float32(wide, name)
    if wide.strides[1] != wide.itemsize or not wide.flags.aligned or not wide.dtype.isnative:
        wide = np.ascontiguousarray(wide, wide.dtype.newbyteorder("="))
    if wide.strides[0] % wide.itemsize:
        wide = np.ascontiguousarray(wide)
    return Matrix(wide.view(np.uint16) if element == "f16" else wide, element, single)


def _from_sequence(x: ArrayLike, name: str) -> np.ndarray:
    import numpy as np

    if hasattr(x, "dequantise"):  # numpy would go through codes row by row, and each row is codes again
        raise InputError(
            f"[{name}] codes are compared by top_k and PreparedQuery.scores; give those, or x.dequantise()"
        )
    try:
        array = np.asarray(x)
        if array.dtype.kind in "OUSc":  # numpy takes None for NaN, "1" for 1, and 1j for 0
            for item in np.asarray(x, object).flat:
                if not hasattr(item, "__float__"):
                    raise TypeError(f"{item!r:.40} is {type(item).__name__}")
    except (ValueError, TypeError) as error:
        raise InputError(f"[{name}] these are not numbers in rows of one length: {error}") from error
    return array if array.dtype.name in ELEMENTS else _as_float32(array, name)


def _as_float32(array: np.ndarray, name: str) -> np.ndarray:
    import numpy as np

    try:
        with np.errstate(over="raise"):
            return array.astype(np.float32)
    except (FloatingPointError, OverflowError):
        raise InputError(
            f"[{name}] a number is beyond 3.4e38, the most that float32 holds; scale the vectors"
        ) from None


def _element(array: np.ndarray, dtype: str | None, name: str) -> str:
    if dtype is not None:
        if NAMED.get(dtype) != array.dtype.name and ELEMENTS.get(array.dtype.name) != dtype:
            raise InputError(f"[{name}] dtype {dtype!r} does not describe an array of {array.dtype.name}")
        return dtype
    if array.dtype.name == "float64":
        return "f32"
    if array.dtype.name not in ELEMENTS:
        hint = "; x.astype('float32') makes it one" if array.dtype.kind in "iub" else ""
        hint = "; say dtype='bf16' where it holds bfloat16" if array.dtype.name == "uint16" else hint
        raise InputError(f"[{name}] elements are {array.dtype.name}; one of {', '.join(ELEMENTS)}, float64{hint}")
    return ELEMENTS[array.dtype.name]


def same_length(a: Matrix, b: Matrix, name: str) -> None:
    """Both have vectors of as many numbers, of types that compare."""
    if a.dim != b.dim:
        raise ShapeError(f"[{name}] vectors of {a.dim} and {b.dim} numbers do not compare")
    floats = ("f32", "f16", "bf16")
    if a.element != b.element and not (a.element in floats and b.element in floats):
        raise InputError(f"[{name}] {NAMED[a.element]} and {NAMED[b.element]} do not compare; convert one of them")


@cache
def _pool(count: int) -> Any:
    return _core.Pool(count)


@cache
def _default_threads() -> int:
    from weft.runtime.threads import plan_threads

    return plan_threads().count


def team(threads: int | None = None) -> Any:
    """The pool of `threads` threads; by default as many as weft uses elsewhere."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise InputError(f"[vectors] threads is {threads!r}; 1 to {MOST_THREADS} are possible")
    return _pool(threads or flags.get("WEFT_THREADS") or _default_threads())
