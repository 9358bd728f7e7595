"""Any array as rows that the core reads, and the thread pool that scans them."""

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
BITS_METRIC = "hamming"  # the only metric of packed bits


class Matrix(NamedTuple):
    """Rows of one element type: `array` [n, size], 16-bit floats as uint16; `single` if one vector was given."""

    array: np.ndarray
    element: str
    single: bool

    @property
    def dim(self) -> int:
        return int(self.array.shape[1]) * (8 if self.element == "bits" else 1)

    def rows(self, norms: np.ndarray | None = None) -> Any:
        """The core's view of the rows, without a copy."""
        return _core.vectors.Rows(self.array, self.element, self.dim, norms)


def matrix(x: ArrayLike, dtype: str | None = None, *, name: str = "vectors") -> Matrix:
    """`x`, [d] or [n, d], as rows. Lists and float64 become float32; `dtype` "bf16" means that uint16 holds bfloat16.

    Rows may have any stride, as in `x[:, :256]`; they are copied only if the numbers within a row are not contiguous.
    """
    import numpy as np

    array = x if isinstance(x, np.ndarray) else _from_sequence(x, name)
    element = _element(array, dtype, name)
    if array.ndim not in (1, 2):
        raise ShapeError(name, "a vector must have shape [d], vectors [n, d]", given=array.shape)
    if array.shape[-1] == 0:
        raise ShapeError(name, "vectors must have at least one number", given=array.shape)
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

    if hasattr(x, "dequantise"):  # numpy would iterate over the rows for ever: each row is Codes again
        advice = "use top_k or PreparedQuery.scores, or give x.dequantise()"
        raise InputError(name, "codes cannot be used in place of vectors", advice=advice)
    try:
        array = np.asarray(x)
        if array.dtype.kind in "OUSc":  # numpy would convert None to NaN, "1" to 1, and 1j to 0
            for item in np.asarray(x, object).flat:
                if not hasattr(item, "__float__"):
                    raise TypeError(f"{item!r:.40} is {type(item).__name__}")
    except (ValueError, TypeError) as error:
        raise InputError(name, f"vectors must be rows of numbers of one length: {error}") from error
    return array if array.dtype.name in ELEMENTS else _as_float32(array, name)


def _as_float32(array: np.ndarray, name: str) -> np.ndarray:
    import numpy as np

    try:
        with np.errstate(over="raise"):
            return array.astype(np.float32)
    except (FloatingPointError, OverflowError):
        what = "a number is larger than 3.4e38, the limit of float32"
        raise InputError(name, what, advice="scale the vectors") from None


def _element(array: np.ndarray, dtype: str | None, name: str) -> str:
    if dtype is not None:
        if NAMED.get(dtype) != array.dtype.name and ELEMENTS.get(array.dtype.name) != dtype:
            raise InputError(name, f"does not fit an array of {array.dtype.name}", given=dtype, field="dtype")
        return dtype
    if array.dtype.name == "float64":
        return "f32"
    if array.dtype.name not in ELEMENTS:
        hint = "convert it with x.astype('float32')" if array.dtype.kind in "iub" else None
        hint = "give dtype='bf16' if it holds bfloat16" if array.dtype.name == "uint16" else hint
        what = f"elements must be {', '.join(ELEMENTS)} or float64"
        raise InputError(name, what, given=array.dtype.name, advice=hint)
    return ELEMENTS[array.dtype.name]


def same_length(a: Matrix, b: Matrix, name: str) -> None:
    """Refuse vectors of different lengths, or of types that cannot be compared."""
    if a.dim != b.dim:
        raise ShapeError(name, f"vectors of {a.dim} and {b.dim} numbers cannot be compared")
    floats = ("f32", "f16", "bf16")
    if a.element != b.element and not (a.element in floats and b.element in floats):
        what = f"{NAMED[a.element]} and {NAMED[b.element]} cannot be compared"
        raise InputError(name, what, advice="convert one of them")


@cache
def _pool(count: int) -> Any:
    return _core.Pool(count)


@cache
def _default_threads() -> int:
    from weft.runtime.threads import plan_threads

    return plan_threads().count


def team(threads: int | None = None) -> Any:
    """The pool of `threads` threads; WEFT_THREADS or weft's default if None."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise InputError("vectors", f"must be 1 to {MOST_THREADS}", given=threads, field="threads")
    return _pool(threads or flags.get("WEFT_THREADS") or _default_threads())
