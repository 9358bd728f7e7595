"""AdamW and the rate of each step: plain functions of numbers, so that a run that goes on has the bits of one that ran
through."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from weft.errors import BackendError, InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

Arrays = dict[str, "np.ndarray"]
Item = TypeVar("Item")
Result = TypeVar("Result")

BLOCK = 1 << 16  # numbers that a thread takes at a time
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
        threads: int = 1,
    ) -> None:
        """Change the parameters and the means in place. `number` counts from 1."""

        def change(block: tuple[float, list[np.ndarray]]) -> None:
            self._step(number, rate, block[0], *block[1])

        blocks = []
        for name, value in parameters.items():
            arrays = [array.reshape(-1) for array in (value, means[0][name], means[1][name], gradient[name])]
            decay = self.decay if value.ndim > 1 else 0.0  # of matrices: biases and norms keep their size
            blocks += [
                (decay, [array[first : first + BLOCK] for array in arrays]) for first in range(0, value.size, BLOCK)
            ]
        together(change, blocks, threads)

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
        from weft._core.train import adamw

        kept = 1.0 - rate * decay
        root, scaled = math.sqrt(1.0 - self.beta2**number), rate / (1.0 - self.beta1**number)
        adamw(
            change,
            value,
            first,
            second,
            self.beta1,
            1.0 - self.beta1,
            self.beta2,
            1.0 - self.beta2,
            kept,
            root,
            self.eps,
            scaled,
        )


def clip(gradient: Arrays, most: float, threads: int = 1) -> float:
    """Scale the gradient down, in place, so that its norm is at most `most`, 0 for any; returns the norm it had."""
    import numpy as np

    from weft._core.train import sum_of_squares

    flat = [value.reshape(-1) for _, value in sorted(gradient.items())]
    blocks = [value[first : first + BLOCK] for value in flat for first in range(0, value.size, BLOCK)]
    squares = 0.0
    for found in together(sum_of_squares, blocks, threads):
        squares += found
    norm = math.sqrt(squares)
    if not math.isfinite(norm):
        advice = "use a smaller rate, or look for broken rows in the data"
        raise BackendError("train", "the gradient is not finite", advice=advice)
    if most and norm > most:
        factor = np.float32(most / (norm + 1e-6))
        together(lambda block: np.multiply(block, factor, out=block), blocks, threads)
    return norm


def together(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """What `work` makes of each item, in their order. Items do not depend on each other, so neither do the bits on the
    threads; numpy lets go of the interpreter inside a block."""
    team = min(threads, len(items) // 8)
    if team < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(team) as pool:
        parts = pool.map(lambda part: [work(item) for item in part], _even(items, team))
        return [result for part in parts for result in part]


def _even(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    ends = [len(items) * i // count for i in range(count + 1)]
    return [items[first:end] for first, end in pairwise(ends)]
