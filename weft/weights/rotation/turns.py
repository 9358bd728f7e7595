"""The turns themselves: which part of a model each works on, and how weights and adapters go through them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.weights.files import TensorView

if TYPE_CHECKING:
    import numpy as np

    from weft.weights.adapters import AdaptedModule

VERSION = 1  # of the turns and of the mark in config.json
OUTPUT, DOWN = ".self_attn.o_proj", ".mlp.down_proj"
EMBEDDING, HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
AT_A_TIME = 1 << 22  # numbers that are turned at a time: each product takes as much memory again
LARGEST_WALSH = 64  # larger ones are products of smaller ones
_LAYER = re.compile(r"(model\.layers\.\d+)\.(.+)")


@frozen
class Role:
    """How the inputs and outputs of a tensor are turned, and the norm whose gain goes into it."""

    reads: str | None = None
    writes: str | None = None
    norm: str | None = None


_ATTENTION, _MLP = "input_layernorm.weight", "post_attention_layernorm.weight"
NORMS = (_ATTENTION, _MLP)
ROLES = {
    "self_attn.q_proj.weight": Role("stream", None, _ATTENTION),
    "self_attn.k_proj.weight": Role("stream", None, _ATTENTION),
    "self_attn.v_proj.weight": Role("stream", "values", _ATTENTION),
    "self_attn.o_proj.weight": Role("heads", "stream"),
    "mlp.gate_proj.weight": Role("stream", None, _MLP),
    "mlp.up_proj.weight": Role("stream", None, _MLP),
    "mlp.down_proj.weight": Role("inner", "stream"),
    "self_attn.v_proj.bias": Role(None, "values"),
    "self_attn.o_proj.bias": Role(None, "stream"),
    "mlp.down_proj.bias": Role(None, "stream"),
    # Scores and gates are the same numbers in both models, and so is what works on them.
    **dict.fromkeys(("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.rotary_emb.inv_freq"), Role()),
    **dict.fromkeys(("self_attn.q_norm.weight", "self_attn.k_norm.weight"), Role()),
    **dict.fromkeys(("mlp.gate_proj.bias", "mlp.up_proj.bias"), Role()),
}


def role_of(name: str) -> Role | None:
    """The role of a tensor that is not a norm on the stream; None for one that a plain decoder does not have."""
    if name == EMBEDDING:
        return Role("stream")
    if name == HEAD:
        return Role("stream", None, LAST_NORM)
    found = _LAYER.fullmatch(name)
    role = ROLES.get(found[2]) if found else None
    return replace(role, norm=f"{found[1]}.{role.norm}") if found and role and role.norm else role


def is_norm(name: str) -> bool:
    """Whether this is the gain of a norm on the stream."""
    found = _LAYER.fullmatch(name)
    return name == LAST_NORM or (found is not None and found[2] in NORMS)


class Rotation:
    """The turns of one model: `head` is the width of a head. All of them work on the last axis of float64 arrays.

    Without `stream` the residual stream stays as it is, and so do norms, embedding and head.
    """

    def __init__(self, seed: int, head: int, *, stream: bool = True) -> None:
        self.seed, self.head, self.stream = seed, head, stream

    def role(self, name: str) -> Role | None:
        """What this rotation does to a tensor; None for one that a plain decoder does not have."""
        if is_norm(name):
            return Role(norm=name) if self.stream else Role()
        role = role_of(name)
        if role is None or self.stream:
            return role
        reads, writes = (None if way == "stream" else way for way in (role.reads, role.writes))
        return Role(reads, writes)

    @property
    def turned(self) -> dict[str, int]:
        """The ends of the names of modules whose inputs are turned while the model runs, and the strides."""
        return {OUTPUT: self.head, DOWN: 1}

    def turn(self, way: str, rows: np.ndarray) -> np.ndarray:
        """Rows turned as the stream, as values of heads, as what output projections read, or down projections."""
        if way == "stream":
            return _turned(rows * self._signs(way, rows.shape[-1]))
        if way == "inner":
            return _turned(rows)
        heads = rows.reshape(*rows.shape[:-1], -1, self.head)
        values = _turned(heads * self._signs("values", self.head)).reshape(rows.shape)
        return values if way == "values" else _turned(values, self.head)

    def unturned(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the stream as they are in the model that was rotated."""
        if not self.stream:
            return rows
        return _turned(rows, inverse=True) * self._signs("stream", rows.shape[-1])

    def _signs(self, way: str, count: int) -> np.ndarray:
        import numpy as np

        drawn = hashlib.shake_256(f"weft rotation {VERSION} {self.seed} {way}".encode()).digest(-(-count // 8))
        return 1.0 - 2.0 * np.unpackbits(np.frombuffer(drawn, np.uint8))[:count]

    def matrix(self, role: Role, values: np.ndarray, gain: np.ndarray | None) -> np.ndarray:
        """A matrix or a vector of the model, turned; float64."""
        import numpy as np

        values = values.astype(np.float64)
        if gain is not None:
            values *= gain
        if role.reads is not None:
            values = self.turn(role.reads, values)
        if role.writes is not None:
            values = np.ascontiguousarray(self.turn(role.writes, np.ascontiguousarray(values.T)).T)
        return values

    def adapted(self, name: str, module: AdaptedModule, gain: Callable[[str], np.ndarray]) -> AdaptedModule:
        """A LoRA module of the model as it was, for the turned one; `name` is the weight's, `gain` reads a norm's."""
        import numpy as np

        role = self.role(name)
        if role == Role():
            return module
        more = [what for what, _ in module.tensors() if what not in ("down", "up")]
        if role is None or more or module.down is None or module.up is None or module.matrices != 1:
            what = (
                f"{name} is changed by {' and '.join(more) or 'more than LoRA'}, which a rotated model has no place for"
            )
            advice = "merge the adapter into the model as it was, then quantise the result with --rotate"
            raise UnsupportedError("adapter", what, advice=advice)
        down, up = (view.numpy().astype(np.float64) for view in (module.down, module.up))
        if name == EMBEDDING:  # a row is the sum of columns of up
            up = self.turn("stream", np.ascontiguousarray(up.T)).T
        else:
            down = self.matrix(replace(role, writes=None), down, None if role.norm is None else gain(role.norm))
            up = self.matrix(replace(role, reads=None), up, None)
        made = [TensorView.of(np.ascontiguousarray(one, np.float32)) for one in (down, up)]
        return replace(module, down=made[0], up=made[1])


def _turned(rows: np.ndarray, stride: int = 1, *, inverse: bool = False) -> np.ndarray:
    """What the op `hadamard` does with a factor of `mixing`, by products with small matrices, which are fast here."""
    import numpy as np

    from weft.ops.hadamard import mixing, split

    parts, size = split(rows.shape[-1] // stride)
    matrices: list[np.ndarray] = []
    while size > 1:
        matrices.append(_walsh(min(size, LARGEST_WALSH)))
        size //= len(matrices[-1])
    factor = mixing(parts)
    if factor is not None:
        square = factor.reshape(parts, parts)
        matrices.append(square.T if inverse else square)
    flat = rows.reshape(-1, rows.shape[-1])
    out = np.empty(flat.shape)
    step = max(1, AT_A_TIME // flat.shape[1])
    for first in range(0, len(flat), step):
        made, inner = flat[first : first + step], stride
        for matrix in matrices:
            shape = (-1, len(matrix)) if inner == 1 else (-1, len(matrix), inner)
            made = made.reshape(shape) @ matrix.T if inner == 1 else matrix @ made.reshape(shape)
            inner *= len(matrix)
        out[first : first + step] = made.reshape(-1, flat.shape[1])
    return out.reshape(rows.shape)


def _walsh(size: int) -> np.ndarray:
    """Walsh's matrix of a power of two, orthogonal."""
    import numpy as np

    made = np.ones((1, 1))
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made / np.sqrt(size)
