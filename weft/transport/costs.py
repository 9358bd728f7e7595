"""A cost as the core reads it: two sets of points and a metric, or a matrix; and passes over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft import _core, flags
from weft.errors import InputError, ShapeError
from weft.vectors.arrays import team

METRICS = ("sqeuclidean", "cosine")
KEPT_BYTES = 128 << 20  # of costs and kernels that are computed once and kept, unless `memory` says otherwise
WORK_OF_A_CALL = 4e9  # multiplications in one call into the core: Ctrl-C is heard between two calls

_core.transport.set_level(flags.get("WEFT_ISA") or "")


class Costs:
    """C [n, m]. `x` and `y` are the points, None where a matrix was given."""

    def __init__(
        self,
        x: Any = None,
        y: Any = None,
        cost: Any = "sqeuclidean",
        *,
        memory: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.pool = team(threads)
        self.x: np.ndarray | None = None
        self.y: np.ndarray | None = None
        self.metric: str | None = None
        self.shape = (0, 0)
        budget = KEPT_BYTES if memory is None else memory
        self.holds = False  # whether there is room for a kernel, which spares iterations their exponentials
        if isinstance(cost, str):
            self._from_points(x, y, cost)
            needed = self.shape[0] * self.shape[1] * 8
            self.holds = needed <= budget
            if 2 * needed <= budget:
                self._keep()
            return
        if x is not None or y is not None:
            raise InputError("transport", "give points or a matrix of costs, not both", field="cost")
        matrix = np.ascontiguousarray(cost, np.float64)
        if matrix.ndim != 2 or not matrix.size:
            raise ShapeError("transport", "must be a matrix with at least one entry", given=matrix.shape, field="cost")
        if not np.isfinite(matrix).all():
            raise InputError("transport", "must be finite", field="cost")
        self.native = _core.transport.Costs(matrix)
        self.shape = (int(matrix.shape[0]), int(matrix.shape[1]))
        self.holds = matrix.nbytes <= budget

    def _from_points(self, x: Any, y: Any, metric: str) -> None:
        if metric not in METRICS:
            advice = f"use {' or '.join(METRICS)}, or give a matrix"
            raise InputError("transport", "is not known", given=metric, field="cost", advice=advice)
        self.x, self.y = points_of(x, "x"), points_of(y, "y")
        if self.x.shape[1] != self.y.shape[1]:
            what = f"points of {self.x.shape[1]} and {self.y.shape[1]} dimensions have no cost"
            raise ShapeError("transport", what)
        if self.x.dtype != self.y.dtype:
            self.x, self.y = self.x.astype(np.float64), self.y.astype(np.float64)
        self.metric = metric
        self.native = _core.transport.Costs(self.x, self.y, metric, self.pool)
        self.shape = (len(self.x), len(self.y))

    def _keep(self) -> None:
        matrix = np.empty(self.shape)  # numpy's memory: of large pages where the system has them
        for first, count in self._ranges(False):
            _core.transport.cost_rows(self.native, False, first, matrix[first : first + count], self.pool)
        self.native = _core.transport.Costs(matrix)

    def _ranges(self, turned: bool) -> Iterator[tuple[int, int]]:
        """Ranges of rows (first, count), each a call into the core that takes a fraction of a second."""
        rows, cols = self.shape[::-1] if turned else self.shape
        each = max(16, int(WORK_OF_A_CALL / (cols * self.width())) // 16 * 16)
        for first in range(0, rows, each):
            yield first, min(each, rows - first)

    def width(self, *, held: bool = False) -> int:
        """Multiplications per pair, about: 8 where costs are kept, 1 where a kernel is held."""
        return 1 if held else 8 if self.native.kept or self.x is None else int(self.x.shape[1])

    @property
    def heavy(self) -> bool:
        """Whether a pass takes a second or so: iterations then show a bar on a terminal."""
        return self.shape[0] * self.shape[1] * self.width(held=self.holds) > 5 * WORK_OF_A_CALL

    def log_sums(self, h: np.ndarray, scale: float, *, turned: bool = False) -> np.ndarray:
        """log sum_j exp(h_j - C_ij * scale) for every row; for every column where `turned`."""
        out = np.empty(self.shape[1] if turned else self.shape[0])
        for first, count in self._ranges(turned):
            part = out[first : first + count]
            _core.transport.log_sums(self.native, turned, first, h, scale, part, self.pool)
        return out

    def plan_sums(
        self, u: np.ndarray, v: np.ndarray, scale: float, *, turned: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """The mass and the cost of every row of the plan exp(u_i + v_j - C_ij * scale)."""
        rows = self.shape[1] if turned else self.shape[0]
        mass, spent = np.empty(rows), np.empty(rows)
        for first, count in self._ranges(turned):
            part = slice(first, first + count)
            _core.transport.plan_sums(self.native, turned, first, u, v, scale, mass[part], spent[part], self.pool)
        return mass, spent

    def product(
        self, u: np.ndarray, v: np.ndarray, scale: float, values: np.ndarray, *, turned: bool = False
    ) -> np.ndarray:
        """The plan times `values` [m, width]."""
        rows = self.shape[1] if turned else self.shape[0]
        values = np.ascontiguousarray(values, np.float64)
        out = np.empty((rows, values.shape[1]))
        for first, count in self._ranges(turned):
            part = out[first : first + count]
            _core.transport.plan_product(self.native, turned, first, u, v, scale, values, part, self.pool)
        return out

    def plan_rows(self, u: np.ndarray, v: np.ndarray, scale: float, first: int, count: int) -> np.ndarray:
        out = np.empty((count, self.shape[1]))
        _core.transport.plan_rows(self.native, False, first, u, v, scale, out, self.pool)
        return out

    def rows(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Rows of C, computed where they are not kept."""
        out = np.empty((self.shape[0] - first if count is None else count, self.shape[1]))
        _core.transport.cost_rows(self.native, False, first, out, self.pool)
        return out


def points_of(given: Any, name: str) -> np.ndarray:
    """`given` as contiguous float32 or float64 points [n, d]; numbers on a line become [n, 1]."""
    if given is None:
        raise InputError("transport", "is missing: give points x and y, or cost= as a matrix", field=name)
    points = np.asarray(given)
    if points.dtype != np.float32:
        if points.dtype.kind not in "fiub":
            raise InputError("transport", "must be numbers", given=points.dtype.name, field=name)
        points = points.astype(np.float32 if points.dtype == np.float16 else np.float64)
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or not points.size:
        what = "must be points [n, d], at least one of at least one number"
        raise ShapeError("transport", what, given=points.shape, field=name)
    return np.ascontiguousarray(points)


def products(a: np.ndarray, b: np.ndarray, threads: int | None = None) -> np.ndarray:
    """a b^T of points of one type, the same bits for every number of threads."""
    out = np.empty((len(a), len(b)))
    _core.transport.products(a, b, out, team(threads))
    return out
