"""Layers of images [images, height, width, channels]: convolution, pooling; and batch norm, of rows and of images."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.autograd import functions
from weft.autograd.functions import Pair, pair
from weft.autograd.modules import initialise
from weft.autograd.modules.layers import bounded, sizes
from weft.autograd.modules.module import Buffer, Module, given
from weft.autograd.randomness import generator
from weft.autograd.tape import no_grad
from weft.autograd.variable import Parameter, Variable, as_variable, assign, made_anew
from weft.errors import InputError, ShapeError


class Conv2d(Module):
    """A convolution; weight [outputs, kernel height, kernel width, inputs], bias [outputs]."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        bias: bool = True,
        seed: int | None = None,
    ) -> None:
        sizes("Conv2d", inputs=inputs, outputs=outputs)
        window = pair(kernel, "Conv2d", "kernel")
        self.stride, self.dilation = pair(stride, "Conv2d", "stride"), pair(dilation, "Conv2d", "dilation")
        self.padding = pair(padding, "Conv2d", "padding", 0)
        shape = (outputs, *window, inputs)
        rng, fan_in = generator(seed), math.prod(shape[1:])
        self.weight = bounded(shape, fan_in, rng)
        self.bias = bounded((outputs,), fan_in, rng) if bias else None

    def forward(self, x: Any) -> Variable:
        options = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        return functions.conv2d(given(x, self.weight), self.weight, self.bias, **options)


class MaxPool2d(Module):
    """The largest pixel of every window; `stride` is the window's size where it is not given."""

    def __init__(self, window: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0) -> None:
        self.window = pair(window, type(self).__name__, "window")
        self.stride = pair(window if stride is None else stride, type(self).__name__, "stride")
        self.padding = pair(padding, type(self).__name__, "padding", 0)

    def forward(self, x: Any) -> Variable:
        return functions.max_pool2d(as_variable(x), self.window, stride=self.stride, padding=self.padding)


class AvgPool2d(MaxPool2d):
    """The mean of every window; padding counts as zeros."""

    def forward(self, x: Any) -> Variable:
        return functions.avg_pool2d(as_variable(x), self.window, stride=self.stride, padding=self.padding)


class GlobalAvgPool2d(Module):
    """The mean over all pixels.  [images, height, width, C] -> [images, C]"""

    def forward(self, x: Any) -> Variable:
        return functions.global_avg_pool2d(as_variable(x))


class BatchNorm1d(Module):
    """Each channel less its mean over all rows, over the root of its variance.  [rows, C] -> [rows, C]

    In training mean and variance are those of the batch, and the running ones move by `momentum` towards them; in use
    they are the running ones. The running variance is the unbiased one.
    """

    def __init__(self, size: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        sizes(type(self).__name__, size=size)
        if not eps > 0.0:
            raise InputError(type(self).__name__, "must be above zero", field="eps", given=eps)
        if not 0.0 < momentum <= 1.0:
            raise InputError(type(self).__name__, "must be above 0 and at most 1", field="momentum", given=momentum)
        self.weight, self.bias = Parameter(initialise.ones((size,))), Parameter(initialise.zeros((size,)))
        self.running_mean, self.running_var = Buffer(initialise.zeros((size,))), Buffer(initialise.ones((size,)))
        self.eps, self.momentum = eps, momentum

    def forward(self, x: Any) -> Variable:
        x = given(x, self.weight)
        size = self.weight.shape[0]
        if x.ndim < 2 or x.shape[-1] != size:
            raise ShapeError(type(self).__name__, f"must have {size} channels in its last axis", field="x",
                             given=x.shape)  # fmt: skip
        rows = x.reshape(x.size // size, size)
        unit = self._by_batch(rows) if self.training else self._by_running(rows)
        return (unit * self.weight + self.bias).reshape(*x.shape)

    def _by_batch(self, x: Variable) -> Variable:
        count = x.shape[0]
        if count < 2:
            advice = "give a larger batch, or call eval()"
            raise ShapeError(type(self).__name__, "must have two rows or more in training", field="x", given=x.shape,
                             advice=advice)  # fmt: skip
        unit, mean, variance = functions.over_rows(x, self.eps)
        with no_grad():
            for running, now in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
                assign(running, running * (1.0 - self.momentum) + now * self.momentum)
        return unit

    def _by_running(self, x: Variable) -> Variable:
        mean, shape = self.running_mean, self.running_mean.shape
        factor = made_anew(lambda: 1.0 / np.sqrt(self.running_var.value.astype(np.float64) + self.eps), shape, x)
        return (x - mean) * factor


class BatchNorm2d(BatchNorm1d):
    """Batch norm of images: all pixels of all images are rows.  [images, height, width, C] -> the same"""

    def forward(self, x: Any) -> Variable:
        x = given(x, self.weight)
        if x.ndim != 4:
            raise ShapeError("BatchNorm2d", "must be [images, height, width, channels]", field="x", given=x.shape)
        return super().forward(x)
