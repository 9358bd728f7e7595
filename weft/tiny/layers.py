"""A layer, what it computes, and which layers fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from weft.errors import InputError, ShapeError
from weft.frozen import frozen
from weft.ops.elementwise import activation

# An activation, and how an architecture calls it.
NAMES = {
    "linear": "Linear",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "relu": "ReLU",
    "leaky_relu": "LeakyReLU",
    "gelu": "GELU",
    "softmax": "Softmax",
}


@frozen
class Layer:
    """activation(x Wᵀ + b).  weight [outputs, inputs] and bias [outputs], float32; `slope` is that of leaky_relu."""

    weight: np.ndarray
    bias: np.ndarray
    activation: str = "linear"
    slope: float = 0.01

    @property
    def inputs(self) -> int:
        return int(self.weight.shape[1])

    @property
    def outputs(self) -> int:
        return int(self.weight.shape[0])


def activated(x: np.ndarray, layer: Layer) -> np.ndarray:
    """The activation of a layer, in the precision of `x`."""
    kind = layer.activation
    if kind == "leaky_relu":
        return np.where(x > 0, x, x.dtype.type(layer.slope) * x)
    if kind == "softmax":
        shifted = np.exp(x - x.max(axis=-1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))
    return activation("none" if kind == "linear" else kind, x).astype(x.dtype, copy=False)


def classifies(layers: Sequence[Layer]) -> bool:
    """Whether the outputs are probabilities of classes."""
    return layers[-1].activation == "softmax"


def logits(layers: Sequence[Layer], x: np.ndarray) -> np.ndarray:
    """The outputs before the last activation.  x [n, inputs] -> [n, outputs], in the precision of `x`"""
    *inner, last = layers
    for layer in inner:
        x = activated(x @ layer.weight.T.astype(x.dtype) + layer.bias, layer)
    return np.asarray(x @ last.weight.T.astype(x.dtype) + last.bias)


def check_chain(layers: Sequence[Layer]) -> None:
    """An error where a layer does not fit the next one."""
    for number, (before, after) in enumerate(pairwise(layers)):
        if before.outputs != after.inputs:
            what = f"has {before.outputs} outputs, and the next layer {after.inputs} inputs"
            raise ShapeError("tiny", what, field="layers", index=number)
        check_inside(before, number)


def check_inside(layer: Layer, number: int) -> None:
    if layer.activation == "softmax":
        what = "is a softmax, which is for the last layer"
        raise InputError("tiny", what, field="layers", index=number, advice="use another activation inside")


def shaped_rows(rows: Any, inputs: int) -> np.ndarray:
    """Rows as float32 [n, inputs]; an error if they are not numbers for so many inputs."""
    found = np.asarray(rows)
    if found.ndim not in (1, 2) or found.shape[-1] != inputs or found.dtype.kind not in "fiub":
        what = f"must be numbers [{inputs}] or [rows, {inputs}]"
        raise ShapeError("tiny", what, field="rows", given=f"{found.dtype} {list(found.shape)}")
    return np.ascontiguousarray(found, np.float32).reshape(-1, inputs)


def checked_rows(rows: Any, inputs: int) -> np.ndarray:
    """The same; an error if a number is not finite."""
    x = shaped_rows(rows, inputs)
    wrong = np.argwhere(~np.isfinite(x))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise InputError("tiny", "must be finite numbers", field="rows", index=row, given=float(x[row, column]))
    return x
