"""Attention over a step: with a KV cache the keys are appended to its pages, else only the step's tokens are used."""

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

    A token attends to itself and earlier tokens, and to later ones where `causal` is False; with a window only to those
    less than `window` away. Scores are multiplied by `scale` (default 1 / sqrt(dim)), then soft-capped at `softcap`
    where that is not 0.
    """
    dim = q.shape[-1]
    assert isinstance(dim, int)  # only tokens, sequences and rows are symbolic
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    if step.pages is not None and not causal:
        what = "the model has bidirectional attention: it embeds and does not generate"
        raise UnsupportedError("load", what, advice="use weft.Embedder")
    if step.pages is None:
        return ops.attention(q, k, v, step.segments, causal=causal, scale=scale, window=window, softcap=softcap)
    heads = k.shape[1]
    assert isinstance(heads, int)
    state = step.kv(layer, heads, dim)
    ops.kv_write(k, v, state, step.positions, step.segments, step.pages)
    return ops.attention_paged(
        q, state, step.positions, step.segments, step.pages, scale=scale, window=window, softcap=softcap
    )
