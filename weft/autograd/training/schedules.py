"""Schedules: what the rate is multiplied by, as pure functions of the step, and one that watches a value."""

from __future__ import annotations

import math
from typing import Any

from weft.errors import InputError
from weft.frozen import frozen


def _whole(where: str, field: str, value: Any, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(where, f"must be a whole number of at least {least}", field=field, given=value)


def _part(where: str, field: str, value: Any) -> None:
    if not (isinstance(value, (int, float)) and 0.0 <= value <= 1.0):
        raise InputError(where, "must be 0 to 1", field=field, given=value)


@frozen
class Constant:
    """The rate stays."""

    def at(self, step: int) -> float:
        """The factor of step 0, 1, …"""
        return 1.0


@frozen
class StepDecay:
    """The rate is multiplied by `factor` after every `every` steps."""

    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _whole("StepDecay", "every", self.every)
        _part("StepDecay", "factor", self.factor)

    def at(self, step: int) -> float:
        """The factor of step 0, 1, …"""
        return self.factor ** (step // self.every)


@frozen
class Cosine:
    """The rate falls along half a cosine to `lowest`, a share of it, at step `steps`, and stays there."""

    steps: int
    lowest: float = 0.0

    def __post_init__(self) -> None:
        _whole("Cosine", "steps", self.steps)
        _part("Cosine", "lowest", self.lowest)

    def at(self, step: int) -> float:
        """The factor of step 0, 1, …"""
        done = min(step / self.steps, 1.0)
        return self.lowest + (1.0 - self.lowest) * 0.5 * (1.0 + math.cos(math.pi * done))


@frozen
class Line:
    """The rate goes in a line to `end`, a share of it, at step `steps`, and stays there."""

    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _whole("Line", "steps", self.steps)
        _part("Line", "end", self.end)

    def at(self, step: int) -> float:
        """The factor of step 0, 1, …"""
        return 1.0 + (self.end - 1.0) * min(step / self.steps, 1.0)


@frozen
class WarmUp:
    """The rate rises in a line from `start`, a share of it, over `steps` steps; then another schedule begins."""

    steps: int
    then: Any = Constant()
    start: float = 0.0

    def __post_init__(self) -> None:
        _whole("WarmUp", "steps", self.steps)
        _part("WarmUp", "start", self.start)
        if not hasattr(self.then, "at"):
            raise InputError("WarmUp", "must be a schedule", field="then", given=self.then)

    def at(self, step: int) -> float:
        """The factor of step 0, 1, …"""
        if step < self.steps:
            return self.start + (1.0 - self.start) * step / self.steps
        return float(self.then.at(step - self.steps))


class Plateau:
    """The rate is multiplied by `factor` when a value has not become better for more than `patience` observations.

    Better is lower by more than `threshold` of the best so far, or higher with higher_is_better. After a change,
    `cooldown` observations do not count. The factor does not fall below `lowest`.
    """

    def __init__(
        self,
        factor: float = 0.1,
        patience: int = 10,
        *,
        threshold: float = 1e-4,
        cooldown: int = 0,
        lowest: float = 0.0,
        higher_is_better: bool = False,
    ) -> None:
        _part("Plateau", "factor", factor)
        _part("Plateau", "lowest", lowest)
        _whole("Plateau", "patience", patience, 0)
        _whole("Plateau", "cooldown", cooldown, 0)
        self.by, self.patience, self.threshold, self.cooldown, self.lowest = (
            factor,
            patience,
            threshold,
            cooldown,
            lowest,
        )
        self.sign = -1.0 if higher_is_better else 1.0
        self.factor, self.best, self.bad, self.resting = 1.0, math.inf, 0, 0

    def observe(self, value: float) -> float:
        """Take a new value in; returns the factor from now on."""
        now = self.sign * value
        if now < self.best - self.threshold * abs(self.best) or self.best == math.inf:
            self.best, self.bad = now, 0
        else:
            self.bad += 1
        if self.resting:
            self.resting, self.bad = self.resting - 1, 0
        if self.bad > self.patience:
            self.factor, self.resting, self.bad = max(self.factor * self.by, self.lowest), self.cooldown, 0
        return self.factor

    def state(self) -> list[float]:
        """What decides the factors to come."""
        return [self.factor, self.best, self.bad, self.resting]

    def restore(self, state: list[float]) -> None:
        """Go on from what `state` returned."""
        self.factor, self.best = state[0], state[1]
        self.bad, self.resting = int(state[2]), int(state[3])
