"""AdamW and the rate of each step: plain functions of numbers, so that a run that goes on has the bits of one that ran
through."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from weft.errors import BackendError, InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

Arrays = dict[str, "np.ndarray"]

BLOCK = 1 << 15  # numbers at a time, so that what is computed between stays in the cache
SCHEDULES = ("constant", "linear", "cosine")


@frozen
class Schedule:
    """The rate of every step: it rises from zero over the first `warmup` steps, then falls to zero at the last one, in
    a line or along a cosine, or stays."""

    rate: float
    steps: int
    kind: str = "cosine"
    warmup: int = 0

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise InputError("train", f"must be one of {', '.join(SCHEDULES)}", field="schedule", given=self.kind)
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise InputError("train", "must be above zero", field="rate", given=self.rate)
        if not 0 <= self.warmup <= self.steps:
            raise InputError("train", f"must be 0 to {self.steps} steps", field="warmup", given=self.warmup)

    def at(self, step: int) -> float:
        """The rate of step 0, 1, …"""
        if step < self.warmup:
            return self.rate * step / self.warmup
        if self.kind == "constant":
            return self.rate
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.rate * (1.0 - done if self.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done)))


@frozen
class AdamW:
    """Adam with a decay of the weights that does not go through the gradient (Loshchilov and Hutter)."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    decay: float = 0.0

    def start(self, parameters: Mapping[str, np.ndarray]) -> tuple[Arrays, Arrays]:
        """Both means of the gradient, before the first step."""
        import numpy as np

        return tuple({name: np.zeros_like(value) for name, value in parameters.items()} for _ in range(2))  # type: ignore[return-value]

    def step(
        self,
        number: int,
        rate: float,
        parameters: Arrays,
        gradient: Mapping[str, np.ndarray],
        means: tuple[Arrays, Arrays],
    ) -> None:
        """Change the parameters and the means in place. `number` counts from 1."""
        for name, value in parameters.items():
            arrays = [array.reshape(-1) for array in (value, means[0][name], means[1][name], gradient[name])]
            decay = self.decay if value.ndim > 1 else 0.0  # of matrices: biases and norms keep their size
            for first in range(0, value.size, BLOCK):
                self._step(number, rate, decay, *(array[first : first + BLOCK] for array in arrays))

    def _step(
        self,
        number: int,
        rate: float,
        decay: float,
        value: np.ndarray,
        first: np.ndarray,
        second: np.ndarray,
        change: np.ndarray,
    ) -> None:
        import numpy as np

        first_part, second_part = 1.0 - self.beta1**number, 1.0 - self.beta2**number
        first *= np.float32(self.beta1)
        first += np.float32(1.0 - self.beta1) * change
        second *= np.float32(self.beta2)
        second += np.float32(1.0 - self.beta2) * change * change
        if decay:
            value *= np.float32(1.0 - rate * decay)
        root = np.sqrt(second) / np.float32(math.sqrt(second_part)) + np.float32(self.eps)
        value -= np.float32(rate / first_part) * (first / root)


def clip(gradient: Arrays, most: float) -> float:
    """Scale the gradient down, in place, so that its norm is at most `most`, 0 for any; returns the norm it had."""
    import numpy as np

    squares = 0.0
    for _, value in sorted(gradient.items()):
        flat = value.reshape(-1)
        for first in range(0, flat.size, BLOCK):
            squares += float(np.sum(np.square(flat[first : first + BLOCK], dtype=np.float64)))
    norm = math.sqrt(squares)
    if not math.isfinite(norm):
        advice = "use a smaller rate, or look for broken rows in the data"
        raise BackendError("train", "the gradient is not finite", advice=advice)
    if most and norm > most:
        for value in gradient.values():
            value *= np.float32(most / (norm + 1e-6))
    return norm
