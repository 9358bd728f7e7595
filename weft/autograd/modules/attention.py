"""Multi-head self-attention and the transformer block."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.autograd import functions
from weft.autograd.modules import initialise
from weft.autograd.modules.layers import Dropout, LayerNorm, Linear, sizes
from weft.autograd.modules.module import Module, given
from weft.autograd.variable import Parameter, Variable, take
from weft.errors import InputError, ShapeError


class MultiHeadAttention(Module):
    """Self-attention.  x [batch, tokens, size], or [tokens, size] with `lengths` of the sequences -> the same

    Sequences of different lengths lie one after another, and nothing is padded. Weights are laid out as in PyTorch:
    in_proj_weight has queries, keys and values one under another.
    """

    def __init__(
        self, size: int, heads: int, *, causal: bool = False, bias: bool = True, seed: int | None = None
    ) -> None:
        sizes("MultiHeadAttention", size=size, heads=heads)
        if size % heads:
            raise InputError("MultiHeadAttention", f"must divide the size {size}", field="heads", given=heads)
        self.heads, self.causal = heads, causal
        self.in_proj_weight = Parameter(initialise.xavier_uniform((3 * size, size), seed=seed))
        self.in_proj_bias = Parameter(initialise.zeros((3 * size,))) if bias else None
        self.out_proj = Linear(size, size, bias, seed=None if seed is None else seed + 1)

    def forward(self, x: Any, lengths: Any = None) -> Variable:
        x = given(x, self.in_proj_weight)
        size = self.in_proj_weight.shape[1]
        if x.ndim not in (2, 3) or x.shape[-1] != size or (x.ndim == 3 and lengths is not None):
            what = f"must be [batch, tokens, {size}], or [tokens, {size}] with lengths"
            raise ShapeError("MultiHeadAttention", what, field="x", given=x.shape)
        if x.ndim == 3:
            lengths = [x.shape[1]] * x.shape[0]
        tokens = x.size // size
        joined = functions.linear(x.reshape(tokens, size), self.in_proj_weight, self.in_proj_bias)
        rows = joined.reshape(3 * tokens, size)
        q, k, v = (
            take(rows, np.arange(part, 3 * tokens, 3)).reshape(tokens, self.heads, size // self.heads)
            for part in range(3)
        )
        seen = functions.attention(q, k, v, causal=self.causal, lengths=lengths)
        return self.out_proj(seen.reshape(tokens, size)).reshape(*x.shape)


class TransformerBlock(Module):
    """Self-attention and a network of two layers, each with a norm and a residual sum.

    `norm_first` norms what goes into each part, as models of today do; without it the sum is normed. Dropout is of the
    results of both parts and of the inner layer, not of attention's weights.
    """

    def __init__(
        self,
        size: int,
        heads: int,
        inner: int | None = None,
        *,
        dropout: float = 0.0,
        activation: str = "gelu",
        norm_first: bool = True,
        causal: bool = False,
        eps: float = 1e-5,
        seed: int | None = None,
    ) -> None:
        seeds = [None] * 3 if seed is None else [seed, seed + 2, seed + 3]
        wide = 4 * size if inner is None else inner
        self.attention = MultiHeadAttention(size, heads, causal=causal, seed=seeds[0])
        self.linear1, self.linear2 = Linear(size, wide, seed=seeds[1]), Linear(wide, size, seed=seeds[2])
        self.norm1, self.norm2 = LayerNorm(size, eps), LayerNorm(size, eps)
        self.dropout = Dropout(dropout)
        functions.activation(Variable(0.0), activation)  # refuses one that does not exist
        self.activation, self.norm_first = activation, norm_first

    def forward(self, x: Any, lengths: Any = None) -> Variable:
        x = given(x, self.linear1.weight)
        if self.norm_first:
            x = x + self._attend(self.norm1(x), lengths)
            return x + self._think(self.norm2(x))
        x = self.norm1(x + self._attend(x, lengths))
        return self.norm2(x + self._think(x))

    def _attend(self, x: Variable, lengths: Any) -> Variable:
        return self.dropout(self.attention(x, lengths))

    def _think(self, x: Variable) -> Variable:
        inner = self.dropout(functions.activation(self.linear1(x), self.activation))
        return self.dropout(self.linear2(inner))
