"""Where modules get random numbers: one stream for the process, a pure function of its seed and of what was drawn."""

from __future__ import annotations

import numpy as np

from weft.errors import InputError


class _Stream:
    numbers: tuple[int, ...] = (0,)
    drawn = 0


_stream = _Stream()


def seed(*numbers: int) -> None:
    """Begin the stream again. The same numbers give the same initial weights and the same masks of dropout.

    Several are one seed: a trainer seeds every step with its own seed and the number of the step, so that a run that is
    taken up draws what an undisturbed one does.
    """
    if not numbers or not all(isinstance(one, (int, np.integer)) and one >= 0 for one in numbers):
        raise InputError("seed", "must be whole numbers, none below zero", field="numbers", given=numbers)
    _stream.numbers, _stream.drawn = tuple(map(int, numbers)), 0


def generator(number: int | None = None) -> np.random.Generator:
    """A generator of its own: of this seed, or the next one of the stream."""
    if number is not None:
        return np.random.default_rng(number)
    _stream.drawn += 1
    return np.random.default_rng([*_stream.numbers, _stream.drawn])
