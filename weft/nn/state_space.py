"""The Mamba2 layer, which hybrids of several types have: a short convolution, a scan with a state, a gated norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from weft import ops
from weft.nn.layers import causal_conv, linear

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.config import Mamba2
    from weft.nn.scope import Scope
    from weft.nn.step import Step


def mamba2(x: Tensor, w: Scope, sizes: Mamba2, step: Step, layer: int) -> Tensor:
    """A Mamba2 layer.  x [T, hidden] -> [T, hidden]

    The rows of in_proj are those of the gate, of x, b and c, which pass the convolution, and of the rates.
    """
    tokens, hidden, inner = x.shape[0], cast(int, x.shape[1]), sizes.inner
    shared = sizes.groups * sizes.state
    mixed_rows = inner + 2 * shared
    rows = inner + mixed_rows + sizes.heads

    def projected(first: int, count: int) -> Tensor:
        return linear(x, w / "in_proj", count, sizes.bias, part=(first, rows))

    def mixed(name: str, first: int, count: int) -> Tensor:
        y, part = projected(inner + first, count), (first, mixed_rows)
        y = causal_conv(y, w / "conv1d", step, f"{layer}.{name}", sizes.width, bias=sizes.conv_bias, part=part)
        return ops.activate(y, kind="silu")

    value = mixed("x", 0, inner).reshape(tokens, sizes.heads, sizes.head_dim)
    b = mixed("b", inner, shared).reshape(tokens, sizes.groups, sizes.state)
    c = mixed("c", inner + shared, shared).reshape(tokens, sizes.groups, sizes.state)
    rate = ops.activate(projected(inner + mixed_rows, sizes.heads) + w.weight("dt_bias", sizes.heads), kind="softplus")
    decay, skip = w.weight("A_log", sizes.heads, minus_exp=True), w.weight("D", sizes.heads)
    state = step.recurrent(layer, sizes.heads, sizes.state, sizes.head_dim)
    y = ops.mamba2(value, b, c, rate, decay, skip, state, step.slots, step.segments).reshape(tokens, inner)
    y = _grouped_norm(ops.gated(projected(0, inner), y, kind="silu"), w / "norm", sizes)
    return linear(y, w / "out_proj", hidden, sizes.bias)


def _grouped_norm(x: Tensor, w: Scope, sizes: Mamba2) -> Tensor:
    """rms_norm over the channels of each group"""
    tokens, inner = x.shape[0], sizes.inner
    weight = w.weight("weight", inner)
    if sizes.groups == 1:
        return ops.rms_norm(x, weight, eps=sizes.eps)
    width = inner // sizes.groups
    ones = x.trace.constant(f"norm.ones.{width}", np.ones(width))
    y = ops.rms_norm(x.reshape(tokens, sizes.groups, width), ones, eps=sizes.eps)
    return y.reshape(tokens, inner) * weight
