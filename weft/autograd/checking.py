"""Gradients against differences: what a user checks a function or a module of their own with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.autograd.tape import no_grad
from weft.autograd.variable import Variable
from weft.errors import InputError


def check_gradients(
    function: Callable[[], Variable], variables: Sequence[Variable], *, step: float = 1e-5, seed: int = 0
) -> float:
    """The largest error of the gradients of `function`, which returns one element, over their size.

    Every variable is moved along a random direction, to both sides, and the slope compared with the gradient along it.
    Variables are float64; the result of a right gradient is about 1e-8.
    """
    if any(one.dtype != np.float64 or not one.requires_grad for one in variables):
        advice = "use module.to('float64')"
        raise InputError("check_gradients", "must be float64 and require a gradient", field="variables", advice=advice)
    for one in variables:
        one.zero_grad()
    function().backward()
    rng, worst = np.random.default_rng(seed), 0.0
    for one in variables:
        along = rng.standard_normal(one.shape)
        found = np.zeros(one.shape) if one.grad is None else one.grad
        slope = _slope(function, one, along, step)
        size = float(np.linalg.norm(found) * np.linalg.norm(along)) + 1e-12
        worst = max(worst, abs(slope - float(np.sum(found * along))) / size if size > 1e-9 else abs(slope))
    return worst


def _slope(function: Callable[[], Variable], variable: Variable, along: np.ndarray, step: float) -> float:
    """The slope along a direction, from four points: its error falls with the fourth power of the step."""
    first = variable.value

    def at(distance: float) -> float:
        variable.value = first + distance * along
        with no_grad():
            return function().item()

    try:
        return (8.0 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12.0 * step)
    finally:
        variable.value = first
