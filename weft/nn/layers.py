"""Layers: functions over a weight scope. How a weight is stored (dense, quantised) is a property of the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from weft import ops
from weft.nn.scope import Part, Scope
from weft.ops import activate as activate
from weft.ops import gated as gated
from weft.ops import scale as scale
from weft.ops import softcap as softcap
from weft.ops import take_rows as take_rows

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


def linear(x: Tensor, w: Scope, out: int, bias: bool = False, *, part: Part | None = None) -> Tensor:
    """x Wᵀ (+ b).  x [..., in], weight [out, in] -> [..., out]; `part`: of a fused weight, see Scope.weight"""
    y = ops.matmul(x, w.weight("weight", out, x.shape[-1], part=part))
    return y + w.weight("bias", out, part=part) if bias else y


def embedding(ids: Tensor, w: Scope, count: int, dim: int, *, part: tuple[int, int] | None = None) -> Tensor:
    """Rows of the table.  ids [T], weight [count, dim] -> [T, dim]; `part`: rows of a stored table"""
    return ops.embedding(ids, w.weight("weight", count, dim, part=part))


def rms_norm(x: Tensor, w: Scope, eps: float, *, plus_one: bool = False) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, or * (1 + weight), over the last axis"""
    return ops.rms_norm(x, w.weight("weight", x.shape[-1], plus_one=plus_one), eps=eps)


def layer_norm(x: Tensor, w: Scope, eps: float, *, bias: bool = True) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight (+ bias) over the last axis"""
    dim = x.shape[-1]
    weight = w.weight("weight", dim)
    shift = w.weight("bias", dim) if bias else x.trace.constant("norm.no_bias", np.zeros(cast(int, dim)))
    return ops.layer_norm(x, weight, shift, eps=eps)


def causal_conv(
    x: Tensor,
    w: Scope,
    step: Step,
    layer: int | str,
    width: int,
    *,
    bias: bool = False,
    part: tuple[int, int] | None = None,
) -> Tensor:
    """Each channel over its last `width` tokens, this one included.  x [T, C], weight [C, 1, width] -> [T, C]

    `layer` names the state: a layer with several convolutions has several.
    """
    channels = cast(int, x.shape[1])
    taps = w.weight("weight", channels, 1, width, part=part)
    shift = w.weight("bias", channels, part=part) if bias else None
    return ops.causal_conv(x, taps, step.conv(layer, channels, width), step.slots, step.segments, shift)


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor,
    beta: Tensor,
    step: Step,
    layer: int,
    *,
    scale: float,
    tiled: bool = False,
) -> Tensor:
    """The gated delta rule, with a state for each sequence.

    q, k [T, G, K], v [T, H, V], decay, beta [T, H] -> [T, H, V]
    """
    state = step.recurrent(layer, cast(int, v.shape[1]), cast(int, q.shape[2]), cast(int, v.shape[2]))
    return ops.delta_rule(q, k, v, decay, beta, state, step.slots, step.segments, scale=scale, tiled=tiled)


def unit_norm(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum of x² + eps) over the last axis, which is rms_norm with other numbers."""
    dim = cast(int, x.shape[-1])
    weight = x.trace.constant(f"norm.unit.{dim}", np.full(dim, dim**-0.5))
    return ops.rms_norm(x, weight, eps=eps / dim)


def tied_linear(x: Tensor, w: Scope, out: int) -> Tensor:
    """The head that is the embedding table itself: x Eᵀ."""
    return ops.matmul(x, w.weight("weight", out, x.shape[-1]))
