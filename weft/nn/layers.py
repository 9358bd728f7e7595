"""Layers: functions over a weight scope. How a weight is stored (dense, quantised) is a property of the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from weft import ops
from weft.nn.scope import Part, Scope
from weft.ops import activate as activate
from weft.ops import gated as gated
from weft.ops import gated_clamped as gated_clamped
from weft.ops import scale as scale
from weft.ops import softcap as softcap
from weft.ops import take_rows as take_rows
from weft.ops.hadamard import mixing, split

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


def linear(
    x: Tensor,
    w: Scope,
    out: int,
    bias: bool = False,
    *,
    part: Part | None = None,
    transposed: bool = False,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    """x Wᵀ (+ b).  x [..., in], weight [out, in] -> [..., out]; `part`, `transposed`, `columns`: see Scope.weight"""
    x = _turned(x, w)
    y = ops.matmul(x, w.weight("weight", out, x.shape[-1], part=part, transposed=transposed, columns=columns))
    return y + w.weight("bias", out, part=part) if bias else y


def _turned(x: Tensor, w: Scope) -> Tensor:
    """The rows that a module reads: turned where the model is rotated and its weights stand for turned rows."""
    stride = next((stride for end, stride in x.trace.turned.items() if w.path.endswith(end)), None)
    if stride is None:
        return x
    parts, size = split(cast(int, x.shape[-1]) // stride)
    factor = mixing(parts)
    constant = None if factor is None else x.trace.constant(f"turn.{parts}", factor)
    return ops.hadamard(x, constant, size=size, stride=stride)


def embedding(
    ids: Tensor,
    w: Scope,
    count: int,
    dim: int,
    *,
    part: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
) -> Tensor:
    """Rows of the table.  ids [T], weight [count, dim] -> [T, dim]; `part`, `columns`: of a stored table"""
    return ops.embedding(ids, w.weight("weight", count, dim, part=part, columns=columns))


def token_inputs(step: Step, w: Scope, count: int, dim: int, *, by: float | None = None) -> Tensor:
    """What a decoder's tokens are: rows of the table [count, dim] by their ids, times `by` if that is given; where the
    step has vectors, those in place of the rows of tokens whose type is 1.  -> [T, dim]

    A row is multiplied by 1 and 0 is added, or the other way round: a token has the same bits in a step with vectors
    and in one without.
    """
    x = embedding(step.ids, w, count, dim)
    x = x if by is None else ops.scale(x, by=by)
    if step.vectors is None:
        return x
    kept = x.trace.constant("tokens.kept", np.repeat(np.array([[1.0], [0.0]], np.float32), dim, axis=1))
    return x * ops.embedding(step.types, kept) + step.vectors


def sinusoids(step: Step, count: int, dim: int, *, first: int = 0, interleaved: bool = False) -> Tensor:
    """Fixed rows of sines and cosines by position: [T, dim]. Row r is that of position r + first.

    The first half of the channels are sines and the second cosines, or with `interleaved` they alternate.
    """
    half = dim // 2
    steps = np.arange(half) / (half if interleaved else half - 1)
    angles = np.arange(first, first + count, dtype=np.float64)[:, None] * 10_000.0**-steps
    table = np.zeros((count, dim))
    if interleaved:
        table[:, 0 : 2 * half : 2], table[:, 1 : 2 * half : 2] = np.sin(angles), np.cos(angles)
    else:
        table[:, :half], table[:, half : 2 * half] = np.sin(angles), np.cos(angles)
    return ops.embedding(step.positions, step.positions.trace.constant("positions.table", table.astype(np.float32)))


def rms_norm(x: Tensor, w: Scope | None, eps: float, *, plus_one: bool = False) -> Tensor:
    """x / sqrt(mean(x²) + eps) * weight, or * (1 + weight), over the last axis; w None: without a weight"""
    return ops.rms_norm(x, _norm_weight(x, w, plus_one), eps=eps)


def layer_norm(x: Tensor, w: Scope | None, eps: float, *, bias: bool = True, plus_one: bool = False) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight (+ bias) over the last axis; as rms_norm"""
    dim = cast(int, x.shape[-1])
    weight = _norm_weight(x, w, plus_one)
    if bias and w is not None:
        return ops.layer_norm(x, weight, w.weight("bias", dim), eps=eps)
    name = "norm.no_bias"
    known = x.trace.constants.get(name)
    zeros = x.trace.constant(name if known is None or known.size == dim else f"{name}.{dim}", np.zeros(dim))
    return ops.layer_norm(x, weight, zeros, eps=eps)


def _norm_weight(x: Tensor, w: Scope | None, plus_one: bool) -> Tensor:
    dim = cast(int, x.shape[-1])
    if w is None:
        return x.trace.constant(f"norm.ones.{dim}", np.ones(dim))
    return w.weight("weight", dim, plus_one=plus_one)


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
