"""Iterations over a cost: log sums of rows and columns in one read of it, or of a kernel held where memory allows.

The kernel is exp(q_j - C_ij / epsilon) relative to each row's largest exponent, so what underflows does not matter.
Potentials move away from q as iterations go on. A sweep whose potentials are too far from it, or whose sums are so
small that underflow might show in them, computes the kernel anew or falls back to sums in the log domain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import _core
from weft.transport.costs import WORK_OF_A_CALL, Costs
from weft.transport.weights import NO_WEIGHT

FARTHEST = 100.0  # of a potential from the held kernel's: what underflowed in it is then below 1e-200 of any sum
SMALLEST_SUM = 1e-150


class Sweeps:
    """Sweeps over `costs`; a kernel is kept between them where `costs.holds`."""

    def __init__(self, costs: Costs) -> None:
        self.costs = costs
        self.kernel: np.ndarray | None = np.empty(costs.shape) if costs.holds else None
        self._tops = np.empty(costs.shape[0]) if costs.holds else None
        self._q: np.ndarray | None = None  # of the held kernel
        self._scale = 0.0

    def both(
        self, logs: np.ndarray, potential: np.ndarray, scale: float, log_a: np.ndarray, part: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Log sums of rows for h = logs + potential * scale, and of columns for u = log_a - part * the rows'."""
        h = added(logs, potential * scale)
        rows, columns, good = self._swept(h, _finite(logs, potential, scale), scale, log_a=log_a, part=part)
        if not good:
            rows = self.costs.log_sums(h, scale)
            columns = None
        if columns is None:
            columns = self.costs.log_sums(added(log_a, -part * rows), scale, turned=True)
        return rows, columns

    def rows(self, logs: np.ndarray, potential: np.ndarray, scale: float) -> np.ndarray:
        """Log sums of rows alone."""
        h = added(logs, potential * scale)
        if self.kernel is not None:
            rows, _, good = self._swept(h, _finite(logs, potential, scale), scale)
            if good:
                return rows
        return self.costs.log_sums(h, scale)

    def columns(self, u: np.ndarray, start: np.ndarray, scale: float) -> np.ndarray:
        """Log sums of columns for a given u [n]. A kernel that is made for them starts from the potentials `start`."""
        if self.kernel is not None:
            _, columns, _ = self._swept(start * scale, start * scale, scale, u=u)
            if columns is not None:
                return columns
        return self.costs.log_sums(u, scale, turned=True)

    def _swept(
        self, h: np.ndarray, q: np.ndarray, scale: float, *, part: float = 1.0, **given: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None, bool]:
        """Sums of rows, of columns (None where they cannot be trusted), and whether the rows' can be."""
        if self._near(h, scale):
            assert self._q is not None
            found = self._run(h, self._q, scale, part, True, given)
            if found[2] and (found[1] is not None or not given):
                return found
        self._q = None
        found = self._run(h, q, scale, part, False, given)
        if self.kernel is not None and found[2]:
            self._q, self._scale = q, scale
        return found

    def _near(self, h: np.ndarray, scale: float) -> bool:
        if self._q is None or scale != self._scale:
            return False
        return bool(np.abs(h - self._q)[h > NO_WEIGHT].max(initial=0) <= FARTHEST)

    def _run(
        self, h: np.ndarray, q: np.ndarray, scale: float, part: float, reuse: bool, given: dict[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None, bool]:
        native, (n, m) = self.costs.native, self.costs.shape
        w = np.exp(np.where(h > NO_WEIGHT, h - q, -np.inf))
        sums = np.empty(n)
        groups, steps = _core.transport.sweep_groups(n), _core.transport.sweep_steps(n)
        parts = np.zeros((groups, m)) if given else None  # of the sums of columns
        task: list[Any] = [native, q, w, scale, given.get("log_a"), part, given.get("u"), sums, parts]
        each = max(1, int(WORK_OF_A_CALL / (16 * groups * m * self.costs.width(held=reuse))))
        good = True
        for first in range(0, steps, each):
            call = [*task, first, min(each, steps - first), self.kernel, self._tops, reuse, self.costs.pool]
            good = _core.transport.sweep(*call) and good
        if parts is None or not good:
            return sums, None, good
        total = parts.sum(0)
        if not (np.isfinite(total).all() and total.min() > SMALLEST_SUM):
            return sums, None, good
        return sums, np.log(total) - q, good


def added(logs: np.ndarray, potential: np.ndarray) -> np.ndarray:
    """Logarithms of weights plus scaled potentials; a weight of zero stays one."""
    return np.where(logs > NO_WEIGHT, logs + potential, NO_WEIGHT)


def _finite(logs: np.ndarray, potential: np.ndarray, scale: float) -> np.ndarray:
    """The same, where a weight of zero counts as one: what a kernel's exponents start from."""
    return np.where(logs > NO_WEIGHT, logs, 0.0) + potential * scale
