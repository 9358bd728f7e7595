"""A detector of drift in vectors that come one by one, at a chosen rate of false alarms.

Every block of new vectors is compared with all vectors before it: an energy distance, and its rank among those of
random blocks of the same vectors. As long as nothing changes, all vectors are exchangeable, so the ranks are
independent and uniform, whatever the vectors are. Their evidence is summed from the time at which the sum was lowest
(CUSUM), and the height at which the sum is an alarm is found by simulating uniform ranks over as many checks as the
rate is said for: looking often costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.transport.costs import points_of
from weft.transport.debiased import divergence
from weft.transport.drift.nulls import DIVERGENCE_EPSILON

SMALLEST_WINDOW, LARGEST_WINDOW = 128, 4096
BET = 0.5  # evidence of a rank p is log(BET p^(BET - 1)): negative on average where p is uniform
SIMULATED = 20_000  # streams that find the height of an alarm


@dataclass(frozen=True)
class Signal:
    """What the detector says about a vector.

    state        "warming": the reference is not full; "skipped": no check is due; "stable" or "drift"
    seen         vectors so far
    wait         vectors until the reference is full, or until the next check
    divergence   of the last window from the reference; None before the first check
    evidence     the sum that raises the alarm when it reaches `height`
    p            the rank of the last block
    """

    state: str
    seen: int
    wait: int
    divergence: float | None = None
    evidence: float = 0.0
    height: float = 0.0
    p: float | None = None


class Detector:
    """A frozen reference and a sliding window.

    reference      vectors [n, d]; None takes the first `window` vectors
    window         vectors of the reference that divergences are measured from, and of the sliding window
    every          vectors between two checks
    false_alarms   the probability of an alarm within `horizon` checks as long as nothing changes
    measure        whether to compute the divergence at each check; alarms do not need it
    """

    def __init__(
        self,
        reference: Any = None,
        *,
        window: int = 128,
        every: int = 16,
        false_alarms: float = 0.01,
        horizon: int = 1000,
        permutations: int = 199,
        epsilon: float | None = None,
        measure: bool = True,
        most: int = 4096,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        if not 0 < false_alarms < 1:
            raise InputError("drift", "must be between 0 and 1", given=false_alarms, field="false_alarms")
        for name, value, least in (("every", every, 2), ("horizon", horizon, 1), ("permutations", permutations, 19)):
            if value < least:
                raise InputError("drift", f"must be at least {least}", given=value, field=name)
        self.window = min(max(window, SMALLEST_WINDOW), LARGEST_WINDOW)
        self.every, self.permutations, self.most = every, permutations, max(most, 2 * self.window)
        self.measure, self.epsilon, self.threads = measure, epsilon, threads
        self.height = alarm_height(false_alarms, horizon)
        self._rng = np.random.default_rng(seed)
        self._given = None if reference is None else points_of(reference, "reference").astype(np.float32)
        if self._given is not None and len(self._given) < self.window:
            advice = "give more vectors, or none: then the first that come are the reference"
            what = f"must have at least {self.window} vectors"
            raise InputError("drift", what, given=len(self._given), field="reference", advice=advice)
        self.reset_reference()

    def reset_reference(self) -> None:
        """Begin again: with the reference that was given, or with the next vectors."""
        self.seen, self.evidence = 0, 0.0
        self.last_divergence: float | None = None
        self.last_p: float | None = None
        self._waiting: list[np.ndarray] = []
        self._recent: list[np.ndarray] = []
        self._bag: _Bag | None = None
        self._reference = np.empty((0, 0), np.float32)
        if self._given is not None:
            self._freeze(self._given)

    def _freeze(self, vectors: np.ndarray) -> None:
        kept = vectors
        if len(kept) > self.most - self.window:
            kept = kept[np.sort(self._rng.choice(len(kept), self.most - self.window, replace=False))]
        self._reference = kept[np.sort(self._rng.choice(len(kept), self.window, replace=False))]
        self._bag = _Bag(kept)

    def observe(self, vector: Any) -> Signal:
        """Take one vector [d]."""
        taken = np.asarray(vector, np.float32)
        dim = (
            self._reference.shape[1]
            if self._bag is not None
            else len(self._waiting[0])
            if self._waiting
            else taken.size
        )
        if taken.ndim != 1 or taken.size != dim or not dim:
            raise ShapeError("drift", f"must be a vector of {dim} numbers", given=taken.shape, field="vector")
        if not np.isfinite(taken).all():
            raise InputError("drift", "must be finite", field="vector")
        self.seen += 1
        self._waiting.append(taken)
        if self._bag is None:
            if len(self._waiting) < self.window:
                return Signal("warming", self.seen, self.window - len(self._waiting))
            self._freeze(np.stack(self._waiting))
            self._waiting.clear()
            return self._signal("skipped", self.every)
        if len(self._waiting) < self.every:
            return self._signal("skipped", self.every - len(self._waiting))
        return self._check()

    def observe_all(self, vectors: Any) -> list[Signal]:
        """Take vectors [n, d], in order."""
        return [self.observe(vector) for vector in points_of(vectors, "vectors")]

    def _check(self) -> Signal:
        assert self._bag is not None
        block = np.stack(self._waiting)
        self._waiting.clear()
        keep = len(self._bag) + len(block) <= self.most
        self.last_p = self._bag.take(block, self.permutations, self._rng, keep=keep)
        gained = math.log(BET) + (BET - 1) * math.log(self.last_p)
        self.evidence = max(0.0, self.evidence) + gained
        self._recent = [*self._recent, *block][-self.window :]
        if self.measure and len(self._recent) == self.window:
            self.last_divergence = self._measured()
        return self._signal("drift" if self.evidence >= self.height else "stable", self.every)

    def _measured(self) -> float:
        recent = np.stack(self._recent)
        squares = (self._reference**2).sum(1).mean() + (recent**2).sum(1).mean()
        mean = float(squares - 2 * self._reference.mean(0) @ recent.mean(0))  # of all costs
        epsilon = self.epsilon or max(DIVERGENCE_EPSILON * mean, 1e-12)
        options: dict[str, Any] = {"epsilon": epsilon, "tolerance": 1e-4, "max_iterations": 200}
        return divergence(self._reference, recent, threads=self.threads, **options).value

    def _signal(self, state: str, wait: int) -> Signal:
        return Signal(state, self.seen, wait, self.last_divergence, self.evidence, self.height, self.last_p)


class _Bag:
    """All vectors so far, with their distances: of `most` vectors 4 bytes a pair."""

    def __init__(self, vectors: np.ndarray) -> None:
        self.count, dim = vectors.shape
        self._vectors = np.empty((0, dim), np.float32)
        self._squares = np.empty(0)
        self._apart = np.empty((0, 0), np.float32)
        self._grow(2 * self.count, 0)
        self._vectors[: self.count] = vectors
        self._squares[: self.count] = _squares(vectors)
        for first in range(0, self.count, 256):
            part = slice(first, min(first + 256, self.count))
            self._apart[part, : self.count] = self._distances(vectors[part], self._squares[part])
        np.fill_diagonal(self._apart, 0)
        self._sums = self._apart[: self.count, : self.count].sum(1, dtype=np.float64)

    def __len__(self) -> int:
        return self.count

    def _grow(self, room: int, kept: int) -> None:
        for name, shape in (
            ("_vectors", (room, self._vectors.shape[1])),
            ("_squares", (room,)),
            ("_apart", (room, room)),
        ):
            before, after = getattr(self, name), np.zeros(shape, getattr(self, name).dtype)
            part = tuple(slice(kept) for _ in shape) if name == "_apart" else slice(kept)
            after[part] = before[part]
            setattr(self, name, after)

    def _distances(self, block: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Of a block to all vectors."""
        products = block @ self._vectors[: self.count].T
        return np.sqrt(np.maximum(squares[:, None] + self._squares[: self.count] - 2.0 * products, 0))

    def take(self, block: np.ndarray, permutations: int, rng: np.random.Generator, *, keep: bool) -> float:
        """The rank of the block's energy distance from the others among those of random blocks, uniform in (0, 1).

        Random blocks are of all vectors and the block's, which stay in the bag where `keep`.
        """
        before, rows = self.count, len(block)
        own = np.arange(before, before + rows)
        if before + rows > len(self._squares):
            self._grow(2 * (before + rows), before)
        squares = _squares(block)
        across = self._distances(block, squares).astype(np.float32)
        self._vectors[own], self._squares[own] = block, squares
        self.count += rows
        self._apart[before : self.count, :before] = across
        self._apart[:before, before : self.count] = across.T
        self._apart[before : self.count, before : self.count] = self._distances(block, squares)[:, before:]
        self._apart[own, own] = 0
        sums = np.concatenate([self._sums + across.sum(0, dtype=np.float64), np.zeros(rows)])
        sums[before:] = self._apart[before : self.count, : self.count].sum(1, dtype=np.float64)
        p = self._rank(own, sums, permutations, rng)
        if keep:
            self._sums = sums
        else:
            self.count = before
        return p

    def _rank(self, own: np.ndarray, sums: np.ndarray, permutations: int, rng: np.random.Generator) -> float:
        count, rest, total = len(own), self.count - len(own), float(sums.sum())
        drawn = np.concatenate([own[None], _subsets(rng, permutations, self.count, count)])
        inner = self._apart[drawn[:, :, None], drawn[:, None, :]].sum((1, 2), dtype=np.float64)
        outer = sums[drawn].sum(1)
        apart = 2 / (count * rest) * (outer - inner) - inner / count**2 - (total - 2 * outer + inner) / rest**2
        above, equal = int((apart[1:] > apart[0]).sum()), int((apart[1:] == apart[0]).sum())
        return float((above + rng.random() * (1 + equal)) / (1 + permutations)) or 1e-12


def _squares(vectors: np.ndarray) -> np.ndarray:
    return (vectors.astype(np.float64) ** 2).sum(-1)


def _subsets(rng: np.random.Generator, many: int, n: int, count: int) -> np.ndarray:
    """`many` random subsets of `count` of n numbers, each as likely: drawn again where a number repeats."""
    if 4 * count * count > n:  # repeats would be frequent
        return np.argpartition(rng.random((many, n), np.float32), count - 1, axis=1)[:, :count]
    drawn = rng.integers(0, n, (many, count))
    while True:
        ordered = np.sort(drawn, axis=1)
        wrong = np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(1))
        if not len(wrong):
            return drawn
        drawn[wrong] = rng.integers(0, n, (len(wrong), count))


@cache
def alarm_height(false_alarms: float, horizon: int) -> float:
    """The height that the evidence of uniform ranks reaches within `horizon` checks with probability `false_alarms`."""
    rng = np.random.default_rng(20_251)
    evidence, highest = np.zeros(SIMULATED), np.zeros(SIMULATED)
    for _ in range(horizon):
        gained = math.log(BET) + (BET - 1) * np.log(np.maximum(rng.random(SIMULATED), 1e-12))
        evidence = np.maximum(evidence, 0) + gained
        np.maximum(highest, evidence, out=highest)
    return float(np.quantile(highest, 1 - false_alarms))
