"""Layers of rows: linear, embedding, norms, dropout, activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.autograd import functions
from weft.autograd.modules import initialise
from weft.autograd.modules.module import Module, given
from weft.autograd.randomness import generator
from weft.autograd.variable import Parameter, Variable, as_variable, take
from weft.errors import InputError


def sizes(where: str, **values: Any) -> None:
    """InputError unless all are whole numbers of at least 1."""
    for field, value in values.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise InputError(where, "must be a whole number of at least 1", field=field, given=value)


def bounded(shape: tuple[int, ...], fan_in: int, rng: np.random.Generator) -> Parameter:
    """Uniform within 1 / sqrt(fan in): the first values of linear layers and convolutions."""
    bound = 1.0 / math.sqrt(fan_in)
    return Parameter(rng.uniform(-bound, bound, shape).astype(np.float32))


class Linear(Module):
    """x Wᵀ + b over the last axis.  [..., inputs] -> [..., outputs]; weight [outputs, inputs], bias [outputs]"""

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, seed: int | None = None) -> None:
        sizes("Linear", inputs=inputs, outputs=outputs)
        rng = generator(seed)
        self.weight = bounded((outputs, inputs), inputs, rng)
        self.bias = bounded((outputs,), inputs, rng) if bias else None

    def forward(self, x: Any) -> Variable:
        return functions.linear(given(x, self.weight), self.weight, self.bias)


class Embedding(Module):
    """A row of a table for each id.  integers [...] -> [..., size]; weight [count, size]"""

    def __init__(self, count: int, size: int, *, seed: int | None = None) -> None:
        sizes("Embedding", count=count, size=size)
        self.weight = Parameter(initialise.normal((count, size), seed=seed))

    def forward(self, ids: Any) -> Variable:
        return take(self.weight, as_variable(ids))


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""

    def __init__(self, size: int, eps: float = 1e-5) -> None:
        sizes("LayerNorm", size=size)
        self.weight, self.bias = Parameter(initialise.ones((size,))), Parameter(initialise.zeros((size,)))
        self.eps = eps

    def forward(self, x: Any) -> Variable:
        return functions.layer_norm(given(x, self.weight), self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        sizes("RMSNorm", size=size)
        self.weight = Parameter(initialise.ones((size,)))
        self.eps = eps

    def forward(self, x: Any) -> Variable:
        return functions.rms_norm(given(x, self.weight), self.weight, self.eps)


class Dropout(Module):
    """In training each element is zero with probability p, and the others are divided by 1 - p."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0.0 <= p < 1.0:
            raise InputError("Dropout", "must be 0 or more and below 1", field="p", given=p)
        self.p = p

    def forward(self, x: Any) -> Variable:
        return functions.dropout(as_variable(x), self.p, self.training)


class Activation(Module):
    """gelu, gelu_tanh, silu, relu, tanh, sigmoid, softplus, relu2 or quick_gelu of every element."""

    def __init__(self, kind: str) -> None:
        functions.activation(Variable(0.0), kind)  # refuses one that does not exist
        self.kind = kind

    def forward(self, x: Any) -> Variable:
        return functions.activation(as_variable(x), self.kind)


class Flatten(Module):
    """[rows, ...] -> [rows, all the rest]"""

    def forward(self, x: Any) -> Variable:
        x = as_variable(x)
        return x.reshape(x.shape[0], -1)
