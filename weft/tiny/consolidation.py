"""Elastic weight consolidation: a later task is learnt without losing an earlier one.

What an earlier task needs is held by a spring for each number, as stiff as the task's loss is curved there:
strength / 2 · Σ F (θ - θ*)², with F the diagonal of the Fisher information (Kirkpatrick and others, 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.errors import InputError
from weft.frozen import frozen
from weft.ops.elementwise import activation_slope
from weft.tiny.layers import Layer, activated, classifies


@frozen
class Consolidation:
    """The numbers of a network after a task, and how much the task needs each. Give it to `fit` of the next task."""

    numbers: tuple[np.ndarray, ...]
    stiffness: tuple[np.ndarray, ...]
    strength: float

    def gradients(self, values: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The gradient of the springs where the numbers are `values`."""
        self._check(values)
        return [
            (self.strength * stiff * (now - then)).astype(np.float32)
            for stiff, now, then in zip(self.stiffness, values, self.numbers)
        ]

    def penalty(self, values: Sequence[np.ndarray]) -> float:
        """The springs' energy where the numbers are `values`."""
        self._check(values)
        parts = (np.sum(stiff * (now - then) ** 2) for stiff, now, then in zip(self.stiffness, values, self.numbers))
        return 0.5 * self.strength * float(sum(parts))

    def _check(self, values: Sequence[np.ndarray]) -> None:
        if [value.shape for value in values] != [value.shape for value in self.numbers]:
            raise InputError("tiny", "is of another network", field="consolidation")


def consolidated(layers: Sequence[Layer], x: np.ndarray, strength: float) -> Consolidation:
    """What layers that classify need for what they say about rows."""
    if not classifies(layers):
        what = "the network has no softmax at its end, and no probabilities"
        raise InputError("tiny", what, advice="consolidation is for networks that classify")
    if not (isinstance(strength, (int, float)) and strength >= 0):
        raise InputError("tiny", "must be 0 or more", field="strength", given=strength)
    numbers = tuple(value for layer in layers for value in (layer.weight, layer.bias))
    return Consolidation(numbers, tuple(fisher(layers, x)), float(strength))


def fisher(layers: Sequence[Layer], rows: np.ndarray) -> list[np.ndarray]:
    """The diagonal of the Fisher information, in float64: for each number the mean over rows, and over classes as the
    network expects them, of the squared derivative of log p(class | row).

    For a weight between unit j below and unit i above, a row's gradient is δᵢ xⱼ. Its square is δᵢ² xⱼ², so that sums
    over rows are products of matrices of squares; classes are summed one by one, each with its probability.
    """
    x = rows.astype(np.float64)
    inputs, slopes = [x], []
    *inner, last = layers
    for layer in inner:
        before = inputs[-1] @ layer.weight.T.astype(np.float64) + layer.bias
        inputs.append(activated(before, layer))
        kind = "none" if layer.activation == "linear" else layer.activation
        leaky = np.where(before > 0, 1.0, layer.slope)
        slopes.append(leaky if kind == "leaky_relu" else activation_slope(kind, before))
    chances = activated(inputs[-1] @ last.weight.T.astype(np.float64) + last.bias, last)
    found = [np.zeros(value.shape) for layer in layers for value in (layer.weight, layer.bias)]
    for chosen in range(last.outputs):
        share = chances[:, chosen : chosen + 1]
        delta = -chances.copy()
        delta[:, chosen] += 1.0
        for number in range(len(layers) - 1, -1, -1):
            weighted = delta**2 * share
            found[2 * number] += weighted.T @ inputs[number] ** 2
            found[2 * number + 1] += weighted.sum(axis=0)
            if number:
                delta = (delta @ layers[number].weight.astype(np.float64)) * slopes[number - 1]
    return [value / len(x) for value in found]
