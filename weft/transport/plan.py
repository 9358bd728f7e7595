"""A transport plan, which exists as a function of two potentials until somebody asks for its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.errors import InputError, ShapeError
from weft.transport.costs import Costs

DENSE_BYTES = 4 << 30  # a larger plan is not made dense: that it fits memory would be an accident
BLOCK_BYTES = 16 << 20  # of rows that are read at a time to find the large entries


class SparsePlan(NamedTuple):
    """The entries of at least a threshold, by rows and then columns; `left_out` is the mass of all others."""

    rows: np.ndarray
    cols: np.ndarray
    values: np.ndarray
    left_out: float


@dataclass(frozen=True)
class Plan:
    """P_ij = exp(u_i + v_j - C_ij / epsilon), never stored."""

    costs: Costs
    u: np.ndarray
    v: np.ndarray
    epsilon: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.costs.shape

    def rows(self, first: int, count: int = 1) -> np.ndarray:
        """Rows [count, m], computed now."""
        if not (first >= 0 and count > 0 and first + count <= self.shape[0]):
            raise InputError(
                "plan", f"rows must lie in 0 to {self.shape[0]}", given=(first, count), field="first, count"
            )
        return self.costs.plan_rows(self.u, self.v, 1 / self.epsilon, first, count)

    def dense(self) -> np.ndarray:
        """The whole plan [n, m]."""
        size = self.shape[0] * self.shape[1] * 8
        if size > DENSE_BYTES:
            advice = "use sparse(), apply() or rows()"
            raise InputError("plan", f"a dense plan of {self.shape} takes {size / 2**30:.0f} GiB", advice=advice)
        return self.rows(0, self.shape[0])

    def sparse(self, threshold: float = 1e-6) -> SparsePlan:
        """The entries of at least `threshold`, found block by block."""
        each = max(1, BLOCK_BYTES // (8 * self.shape[1]))
        rows, cols, values, left = [], [], [], 0.0
        for first in range(0, self.shape[0], each):
            block = self.rows(first, min(each, self.shape[0] - first))
            kept = block >= threshold
            at, col = np.nonzero(kept)
            rows.append(at + first)
            cols.append(col)
            values.append(block[at, col])
            left += float(block[~kept].sum())
        return SparsePlan(np.concatenate(rows), np.concatenate(cols), np.concatenate(values), left)

    def apply(self, values: np.ndarray, *, turned: bool = False) -> np.ndarray:
        """P @ values, or P.T @ values where `turned`; values [m] or [m, width]."""
        values = np.asarray(values, np.float64)
        wanted = self.shape[0] if turned else self.shape[1]
        if values.ndim not in (1, 2) or values.shape[0] != wanted:
            raise ShapeError("plan", f"must have {wanted} rows", given=values.shape, field="values")
        u, v = (self.v, self.u) if turned else (self.u, self.v)
        wide = values[:, None] if values.ndim == 1 else values
        out = self.costs.product(u, v, 1 / self.epsilon, wide, turned=turned)
        return out[:, 0] if values.ndim == 1 else out

    def marginals(self) -> tuple[np.ndarray, np.ndarray]:
        """The mass that leaves each row and arrives at each column."""
        scale = 1 / self.epsilon
        return (
            self.costs.plan_sums(self.u, self.v, scale)[0],
            self.costs.plan_sums(self.v, self.u, scale, turned=True)[0],
        )

    def map(self, points: np.ndarray) -> np.ndarray:
        """Where each row goes on average, [n, d], of `points` [m, d]; NaN for a row without mass."""
        mass = self.costs.plan_sums(self.u, self.v, 1 / self.epsilon)[0]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(mass[:, None] > 0, self.apply(points) / mass[:, None], np.nan)
