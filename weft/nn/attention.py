"""Attention over a step: with a state the keys are appended to its pages, without one the step's own tokens are all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft import ops
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


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
) -> Tensor:
    """Dot-product attention.  q [T, heads, dim], k and v [T, kv_heads, dim] -> [T, heads, dim]

    A token sees those before it, and the others too where `causal` is False; with a window those less than that away.
    Scores are multiplied by `scale`, 1 / sqrt(dim) unless given, then held below `softcap` where that is not 0.
    """
    dim = q.shape[-1]
    assert isinstance(dim, int)  # only tokens, sequences and rows are symbolic
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    if step.pages is not None and not causal:
        raise UnsupportedError("[load] the model reads texts both ways; it embeds and does not generate")
    if step.pages is None:
        return ops.attention(q, k, v, step.segments, causal=causal, scale=scale, window=window, softcap=softcap)
    heads = k.shape[1]
    assert isinstance(heads, int)
    state = step.kv(layer, heads, dim)
    ops.kv_write(k, v, state, step.positions, step.segments, step.pages)
    return ops.attention_paged(
        q, state, step.positions, step.segments, step.pages, scale=scale, window=window, softcap=softcap
    )
