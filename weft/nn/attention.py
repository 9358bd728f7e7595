"""Attention over a step: with a KV cache the keys are appended to its pages, else only the step's tokens are used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from weft import ops
from weft.errors import UnsupportedError
from weft.nn.learning import attend_dropped
from weft.ops.state import KV_ROTATED

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.rotary import Rope
    from weft.nn.step import Step


STEADY = 32_768  # tokens: see steady_channels


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: Step,
    layer: int,
    *,
    causal: bool = True,
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    writes: bool = True,
    bias: tuple[Tensor, Tensor] | None = None,
    dropout: float | None = None,
    key_bias: Tensor | None = None,
    rotation: Rope | None = None,
    reach: Tensor | None = None,
) -> Tensor:
    """Dot-product attention.  q [T, heads, dim], k and v [T, kv_heads, dim] -> [T, heads, dim]

    A token attends to itself and earlier tokens, and to later ones where `causal` is False; with a window only to those
    less than `window` away. Scores are multiplied by `scale` (default 1 / sqrt(dim)), then soft-capped at `softcap`
    where that is not 0. `writes` False: k and v are another layer's, which has written them to the pages of `layer`.
    `sinks` [heads] are one more score for each head, of no value. `bias` is a table [K, heads] and
    buckets [2R+1]: table[buckets[d + R]] is added to the scores of keys d after the query (`relative_buckets`).
    `dropout` is the part of its weights that the model leaves out while it learns, of those that see whole texts only.
    `key_bias` [kv_heads * dim] is what was added to all keys before they were turned by `rotation`: a KV cache of codes
    stores keys without what of it hardly turns. With `reach` [T] a token attends up to that position, its own or a
    later one of this step: tokens of a picture see each other.
    """
    dim = q.shape[-1]
    assert isinstance(dim, int)  # only tokens, sequences and rows are symbolic
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    if step.pages is not None and not causal:
        what = "the model has bidirectional attention: it embeds and does not generate"
        raise UnsupportedError("load", what, advice="use weft.Embedder")
    if step.pages is None:
        table, buckets = bias or (None, None)
        rate = dropout if q.trace.dropout is None or dropout is None else q.trace.dropout
        if rate:
            assert not causal and not window and not softcap and sinks is None
            return attend_dropped(q, k, v, step, (table, buckets), scale, rate)
        return ops.attention(
            q, k, v, step.segments, sinks, table, buckets, causal=causal, scale=scale, window=window, softcap=softcap
        )
    assert bias is None  # only models that read both ways have one
    heads = k.shape[1]
    assert isinstance(heads, int)
    state = step.kv(layer, heads, dim)
    if writes:
        centre = steady = None
        if key_bias is not None and state.dtype.name in KV_ROTATED and not softcap and sinks is None:
            centre, steady = key_bias, q.trace.constant("kv.steady", steady_channels(dim, rotation))
        ops.kv_write(k, v, state, step.positions, step.segments, step.pages, centre, steady)
    return ops.attention_paged(
        q, state, step.positions, step.segments, step.pages, sinks, reach, scale=scale, window=window, softcap=softcap
    )


def steady_channels(dim: int, rotation: Rope | None) -> np.ndarray:
    """1 for the channels of a key that turn by at most a radian in STEADY tokens, else 0: [dim]

    What is added to these channels before the rotation is nearly the same in every key, and the weights of attention do
    not depend on what all keys have in common. So it is with any context: keys that were kept stay right in another.
    """
    steady = np.ones(dim, np.float32)
    if rotation is not None:
        pairs = len(rotation.frequencies)
        slow = rotation.frequencies * STEADY <= 1
        steady[: 2 * pairs] = np.repeat(slow, 2) if rotation.interleaved else np.tile(slow, 2)
    return steady


def relative_buckets(count: int, most: int) -> np.ndarray:
    """T5's buckets of relative positions, both ways, for distances from -most to most: [2 most + 1], below `count`.

    A half of the buckets is for keys after the query. In each half the first half has one distance a bucket, the
    others grow with its logarithm up to `most`, and the last one has all that is farther.
    """
    half, exact = count // 2, count // 4
    ahead = np.arange(-most, most + 1)
    far = np.abs(ahead)
    with np.errstate(divide="ignore"):
        # in float32, as upstream: a distance at the edge of two buckets lands in the same one
        grown = np.log(far.astype(np.float32) / exact) / math.log(most / exact) * (half - exact)
    large = np.minimum(exact + np.where(far > 0, grown, 0).astype(np.int64), half - 1)
    return np.where(far < exact, far, large) + half * (ahead > 0)
