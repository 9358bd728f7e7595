"""A network in the native core: one row in microseconds, or many on all threads, with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import _core, flags
from weft.errors import InputError
from weft.tiny.layers import NAMES, Layer, shaped_rows
from weft.vectors.arrays import team


class Compiled:
    """`row(x)` for one row, with little overhead; the object itself for many. `Tiny.compiled` makes it.

    `row(x, out)` writes to `out` and allocates nothing; a float32 vector is read in place. The outputs of a row have
    the same bits alone and among others, and for every number of threads. With `int8`, weights are rounded to 127 steps
    of the largest of their output, and rows to 127 steps of their largest number.
    """

    row: Callable[..., np.ndarray]

    def __init__(self, layers: Sequence[Layer], temperature: float, int8: bool, threads: int | None = None) -> None:
        self._pool = team(threads)
        self._net = _core.tiny.Net(
            [np.ascontiguousarray(layer.weight, np.float32) for layer in layers],
            [np.ascontiguousarray(layer.bias, np.float32) for layer in layers],
            [[*NAMES].index(layer.activation) for layer in layers],
            [layer.slope for layer in layers],
            temperature,
            int8,
            flags.get("WEFT_ISA") or "",
            np.zeros(layers[-1].outputs, np.float32),
        )
        self.row = self._net.row
        self.bytes = int(self._net.bytes)  # of weights, biases and scales

    def __call__(self, rows: Any, *, raw: bool = False) -> np.ndarray:
        """The outputs of rows [n, inputs] -> [n, outputs]; `raw`: without the last activation."""
        x = shaped_rows(rows, self._net.inputs)
        out = np.empty((len(x), self._net.outputs), np.float32)
        wrong = self._net.rows(x, raw, out, self._pool)
        if wrong >= 0:
            _refuse(x[wrong], wrong)
        return out


def _refuse(row: np.ndarray, number: int) -> None:
    given = float(row[~np.isfinite(row)][0])
    raise InputError("tiny", "must be finite numbers", field="rows", index=number, given=given)


def _other_row(net: Any, row: Any, out: Any) -> np.ndarray:
    """A row that is not a float32 vector, or is wrong."""
    x = shaped_rows(row, net.inputs)
    if len(x) != 1:
        raise InputError("tiny", "takes one row; call the object itself for many", field="row", given=list(x.shape))
    if out is not None and not (
        isinstance(out, np.ndarray) and out.dtype == np.float32 and out.shape == (net.outputs,) and out.flags.writeable
    ):
        given = f"{out.dtype} {list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InputError("tiny", f"must be a writable float32 array [{net.outputs}]", field="out", given=given)
    if not np.isfinite(x).all():
        _refuse(x[0], 0)
    found = np.empty((1, net.outputs), np.float32)
    net.rows(x, False, found, team(1))
    if out is None:
        return found[0]
    out[:] = found[0]
    return np.asarray(out)


_core.tiny.start(np.zeros(3, np.float32), _other_row)
