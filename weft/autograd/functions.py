"""Functions of variables, said with the catalogue's ops: what modules are made of.

Images are [images, height, width, channels]: ops work on the last axis, so a pixel is a row, and a convolution takes
rows of neighbours and multiplies. Each function runs eagerly or in a compiled function, with the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from weft.autograd.randomness import generator
from weft.autograd.tape import no_grad
from weft.autograd.variable import Variable, as_variable, broadcast, constant, made_anew, picked
from weft.errors import InputError, ShapeError
from weft.ops import attention as attention_op
from weft.ops.elementwise import activate, mul
from weft.ops.gather import take_rows
from weft.ops.norm import l2_normalise as l2_op
from weft.ops.norm import layer_norm as layer_norm_op
from weft.ops.norm import rms_norm as rms_norm_op
from weft.ops.reduce import pool
from weft.ops.reduce import softmax as softmax_op
from weft.ops.registry import Activation, get_args
from weft.ops.training import product

PAD = -1e30  # a logit that adds nothing to a sum of exponentials

Pair = tuple[int, int]


def linear(x: Variable, weight: Variable, bias: Variable | None = None) -> Variable:
    """x Wᵀ + b.  x [..., K], weight [N, K], bias [N] -> [..., N]"""
    if x.shape[-1] != weight.shape[-1]:
        raise ShapeError("linear", f"must have {weight.shape[-1]} channels in its last axis", field="x", given=x.shape)
    y = product(x, weight)
    return y if bias is None else y + bias


def activation(x: Variable, kind: str) -> Variable:
    """gelu, gelu_tanh, silu, relu, tanh, sigmoid, softplus, relu2 or quick_gelu of every element."""
    if kind not in get_args(Activation):
        choices = ", ".join(get_args(Activation))
        raise InputError("autograd", f"must be one of {choices}", field="activation", given=kind)
    return activate(x, kind=kind)


def leaky_relu(x: Variable, slope: float = 0.01) -> Variable:
    """x above zero, slope * x below."""
    return x * slope + activate(x, kind="relu") * (1.0 - slope)


def absolute(x: Variable) -> Variable:
    """The value without its sign; the gradient at 0 is 0."""
    return activate(x, kind="relu") + activate(-x, kind="relu")


def softmax(x: Variable) -> Variable:
    """exp(x) / sum of exp(x) over the last axis."""
    return softmax_op(x)


def log_sum_exp(x: Variable) -> Variable:
    """log(sum of exp(x)) over the last axis, which is then gone.  x [..., D] -> [...]

    No op has a logarithm but softplus, log(1 + exp(x)): the sum of two is a + softplus(b - a), so halves of the axis
    are put together until one is left. No exponential can overflow on the way.
    """
    rest = x.shape[:-1] or (1,)
    x = x.reshape(math.prod(rest), x.shape[-1])
    count, width = x.shape
    if width & (width - 1):  # to a power of two, with logits that add nothing
        wide = 1 << width.bit_length()
        x = product(x, constant(np.eye(wide, width), x)) + constant(np.where(np.arange(wide) < width, 0.0, PAD), x)
        width = wide
    while width > 1:
        width //= 2
        halves = x.reshape(2 * count, width)
        a, b = (take_rows(halves, Variable(np.arange(side, 2 * count, 2))) for side in (0, 1))
        x = a + activate(b - a, kind="softplus")
    return x.reshape(*rest)


def log_softmax(x: Variable) -> Variable:
    """x - log_sum_exp(x) over the last axis."""
    return x - broadcast(log_sum_exp(x).reshape(*x.shape[:-1], 1), x.shape)


def layer_norm(
    x: Variable, weight: Variable | None = None, bias: Variable | None = None, eps: float = 1e-5
) -> Variable:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axis."""
    size = x.shape[-1]
    return _scaled(layer_norm_op(x, constant(np.ones(size), x), constant(np.zeros(size), x), eps=eps), weight, bias)


def rms_norm(x: Variable, weight: Variable | None = None, eps: float = 1e-6) -> Variable:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""
    return _scaled(rms_norm_op(x, constant(np.ones(x.shape[-1]), x), eps=eps), weight, None)


def normalised(x: Variable, eps: float = 1e-12) -> Variable:
    """x / max(its length, eps) over the last axis."""
    return l2_op(x, eps=eps)


def over_rows(x: Variable, eps: float) -> tuple[Variable, Variable, Variable]:
    """Each column of x [M, D] less its mean, over the root of its variance + eps; the mean and the variance [D].

    Newton's step for 1 / sqrt(v) leaves a factor that is right as it is, and has its gradient: the factor itself may
    come from anywhere.
    """
    mean = x.mean(0)
    offset = x - mean
    variance = (offset * offset).mean(0)
    with no_grad():
        factor = _inverse_root(offset, variance, eps)
    factor = factor * (1.5 - (variance + eps) * factor * factor * 0.5)
    return offset * factor, mean, variance


def _inverse_root(offset: Variable, variance: Variable, eps: float) -> Variable:
    """1 / sqrt(variance + eps) of the columns of offset [M, D], whose mean is zero -> [D]

    In a program roots are found by norms of rows only. Each column is a row there, and has one more element whose
    value in the norm is the factor, times something known.
    """
    if variance.known:
        return constant(1.0 / np.sqrt(variance.value.astype(np.float64) + eps), offset)
    rows, size = offset.shape
    known = math.sqrt(0.5 * eps * rows)  # half of what eps adds to the sum of squares; the norm's own eps is the rest
    index = np.zeros((size, rows + 1), np.int64)
    index[:, :rows] = np.arange(rows * size).reshape(rows, size).T
    inside = (np.arange(rows + 1) < rows).astype(np.float64)
    turned = picked(offset, index) * constant(inside, offset) + constant((1.0 - inside) * known, offset)
    unit = rms_norm_op(turned, constant(np.ones(rows + 1), offset), eps=0.5 * eps * rows / (rows + 1))
    return unit[:, rows] * (math.sqrt(rows / (rows + 1)) / known)


def _scaled(x: Variable, weight: Variable | None, bias: Variable | None) -> Variable:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def concat(parts: Sequence[Variable], axis: int = 0) -> Variable:
    """Variables one after another along an axis; their other sizes are the same.

    No op joins two arrays: each is taken at the rows of the whole, those of the other are multiplied by zero, and the
    sum has both. Pairs are joined, then pairs of pairs, so many parts cost little more than a few.
    """
    if not parts:
        raise InputError("concat", "must have at least one", field="parts", given=[])
    shape = parts[0].shape
    axis = axis % len(shape) if -len(shape) <= axis < len(shape) else len(shape)
    for number, one in enumerate(parts):
        rest = (*one.shape[:axis], *one.shape[axis + 1 :])
        if axis >= one.ndim or rest != (*shape[:axis], *shape[axis + 1 :]):
            what = f"must be as {shape}, but for axis {axis}"
            raise ShapeError("concat", what, field="part", index=number, given=one.shape)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    width = math.gcd(*(one.shape[axis] * after for one in parts))  # of the pieces that stay whole
    counts = [one.size // width for one in parts]
    starts = np.cumsum([0, *counts])
    order = [np.arange(count).reshape(before, -1) + start for count, start in zip(counts, starts)]
    joined = _joined([one.reshape(count, width) for one, count in zip(parts, counts)])
    whole = (*shape[:axis], sum(one.shape[axis] for one in parts), *shape[axis + 1 :])
    return take_rows(joined, Variable(np.concatenate(order, axis=1).reshape(-1))).reshape(*whole)


def _joined(parts: list[Variable]) -> Variable:
    """Variables [rows, D] one under another."""
    while len(parts) > 1:
        pairs = [_under(*parts[at : at + 2]) for at in range(0, len(parts) - 1, 2)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def _under(upper: Variable, lower: Variable) -> Variable:
    rows = np.arange(upper.shape[0] + lower.shape[0])
    above = np.repeat((rows < upper.shape[0])[:, None], upper.shape[1], axis=1)
    first = take_rows(upper, Variable(np.minimum(rows, upper.shape[0] - 1)))
    second = take_rows(lower, Variable(np.maximum(rows - upper.shape[0], 0)))
    return mul(first, constant(above, upper)) + mul(second, constant(~above, upper))


def dropout(x: Variable, p: float, training: bool = True) -> Variable:
    """x with each element set to zero with probability p, the others divided by 1 - p; x itself outside training."""
    if not 0.0 <= p < 1.0:
        raise InputError("dropout", "must be 0 or more and below 1", field="p", given=p)
    if not training or p == 0.0:
        return x
    shape = x.shape
    return mul(x, made_anew(lambda: (generator().random(shape) >= p) / (1.0 - p), shape, x))


def attention(
    q: Variable, k: Variable, v: Variable, *, causal: bool = False, lengths: Any = None, scale: float | None = None
) -> Variable:
    """Softmax(q kᵀ * scale) v for each head.  q, k, v [batch, tokens, heads, dim] -> the same

    Or [tokens, heads, dim] with `lengths`, of each sequence: sequences lie one after another and nothing is padded.
    """
    shape = q.shape
    if q.ndim == 4:
        lengths = [q.shape[1]] * q.shape[0]
        q, k, v = (one.reshape(one.shape[0] * one.shape[1], *one.shape[2:]) for one in (q, k, v))
    if lengths is None or sum(lengths) != q.shape[0]:
        raise InputError("attention", f"must have a sum of {q.shape[0]}, the tokens", field="lengths", given=lengths)
    starts = Variable(np.cumsum([0, *lengths]))
    size = q.shape[-1] ** -0.5 if scale is None else scale
    return attention_op(q, k, v, starts, causal=causal, scale=size).reshape(*shape)


# Images.


def pair(value: int | Pair, where: str, field: str, least: int = 1) -> Pair:
    """A size for height and width, both at least `least`."""
    both = (value, value) if isinstance(value, (int, np.integer)) else tuple(value)
    if len(both) != 2 or not all(isinstance(one, (int, np.integer)) and one >= least for one in both):
        raise InputError(where, f"must be a whole number of at least {least}, or two", field=field, given=value)
    return both[0], both[1]


def _check_image(where: str, x: Variable, window: Pair, dilation: Pair = (1, 1)) -> None:
    if x.ndim != 4:
        raise ShapeError(where, "must be [images, height, width, channels]", field="x", given=x.shape)
    reach = tuple((k - 1) * d + 1 for k, d in zip(window, dilation))
    if x.shape[1] < reach[0] or x.shape[2] < reach[1]:
        raise ShapeError(where, f"must be at least {reach} high and wide, padding included", field="x", given=x.shape)


@lru_cache(maxsize=64)
def _windows(
    images: int, height: int, width: int, window: Pair, stride: Pair, dilation: Pair
) -> tuple[np.ndarray, Pair]:
    """The rows of every window, window by window, and how many windows there are down and across."""
    tops = [np.arange(0, size - (k - 1) * d, s) for size, k, s, d in zip((height, width), window, stride, dilation)]
    down = tops[0][:, None] + np.arange(window[0]) * dilation[0]  # [windows, kernel]
    across = tops[1][:, None] + np.arange(window[1]) * dilation[1]
    inside = down[:, None, :, None] * width + across[None, :, None, :]
    rows = np.arange(images)[:, None, None, None, None] * (height * width) + inside
    return rows.reshape(-1).astype(np.int32), (len(tops[0]), len(tops[1]))


def _taken(x: Variable, window: Pair, stride: Pair, dilation: Pair = (1, 1)) -> tuple[Variable, Pair]:
    """The pixels of every window, [windows * kernel, channels], and how many windows an image has down and across."""
    images, height, width, channels = x.shape
    rows, counts = _windows(images, height, width, window, stride, dilation)
    return take_rows(x.reshape(images * height * width, channels), Variable(rows)), counts


def padded(x: Variable, padding: int | Pair, value: float = 0.0) -> Variable:
    """Images with rows and columns of `value` added on all sides."""
    down, across = pair(padding, "padded", "padding", 0)
    if not (down or across):
        return x
    images, height, width, channels = x.shape
    ys, xs = (np.clip(np.arange(-p, n + p), 0, n - 1) for p, n in ((down, height), (across, width)))
    rows = (np.arange(images)[:, None, None] * height + ys[:, None]) * width + xs
    shape = (images, height + 2 * down, width + 2 * across, channels)
    y = take_rows(x.reshape(images * height * width, channels), Variable(rows.reshape(-1))).reshape(*shape)
    inside = np.zeros(shape)
    inside[:, down : down + height, across : across + width] = 1.0
    y = mul(y, constant(inside, x))
    return y if value == 0.0 else y + constant((1.0 - inside) * value, x)


def conv2d(
    x: Variable,
    weight: Variable,
    bias: Variable | None = None,
    *,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
) -> Variable:
    """Convolution.  x [images, height, width, C], weight [O, kernel height, kernel width, C], bias [O] -> [..., O]"""
    steps, spread = pair(stride, "conv2d", "stride"), pair(dilation, "conv2d", "dilation")
    outer, window, channels = weight.shape[0], (weight.shape[1], weight.shape[2]), weight.shape[3]
    if x.ndim == 4 and x.shape[3] != channels:
        raise ShapeError("conv2d", f"must have {channels} channels in its last axis", field="x", given=x.shape)
    if x.ndim == 4:
        x = padded(x, padding)
    _check_image("conv2d", x, window, spread)
    patches, counts = _taken(x, window, steps, spread)
    inner = window[0] * window[1] * channels
    y = linear(patches.reshape(patches.size // inner, inner), weight.reshape(outer, inner), bias)
    return y.reshape(x.shape[0], *counts, outer)


def max_pool2d(
    x: Variable, window: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Variable:
    """The largest pixel of every window, channel by channel; padding never is."""
    return _pooled("max_pool2d", x, window, stride, padding, "max")


def avg_pool2d(
    x: Variable, window: int | Pair, *, stride: int | Pair | None = None, padding: int | Pair = 0
) -> Variable:
    """The mean of every window, channel by channel; padding counts as zeros."""
    return _pooled("avg_pool2d", x, window, stride, padding, "mean")


def _pooled(
    where: str, x: Variable, window: int | Pair, stride: int | Pair | None, padding: int | Pair, mode: str
) -> Variable:
    size, edge = pair(window, where, "window"), pair(padding, where, "padding", 0)
    steps = pair(window if stride is None else stride, where, "stride")
    if any(2 * e > k for e, k in zip(edge, size)):
        raise InputError(where, f"must be at most half of the window {size}", field="padding", given=padding)
    if x.ndim == 4:
        x = padded(x, edge, PAD if mode == "max" else 0.0)
    _check_image(where, x, size)
    taken, counts = _taken(x, size, steps)
    each = size[0] * size[1]
    y = pool(taken, Variable(np.arange(0, taken.shape[0] + 1, each)), mode=mode)
    return y.reshape(x.shape[0], *counts, x.shape[3])


def global_avg_pool2d(x: Variable) -> Variable:
    """The mean over all pixels.  x [images, height, width, C] -> [images, C]"""
    if x.ndim != 4:
        raise ShapeError("global_avg_pool2d", "must be [images, height, width, channels]", field="x", given=x.shape)
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], x.shape[3]).mean(1)


def channels_last(images: Any) -> np.ndarray:
    """Images as other libraries keep them, [images, channels, height, width], in weft's order."""
    return np.ascontiguousarray(np.moveaxis(as_variable(images).value, 1, -1))
