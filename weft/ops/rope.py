"""Rotary positions: pairs of channels turned by an angle that grows with the token's position.

Models call `rope`. Passes replace it so that a step computes cosines and sines once for all layers: rope_table, then
rope_turn in each layer, or rope_write where turned keys go straight into the state.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.ops.packed import Packed, wide
from weft.ops.paged import kv_write
from weft.ops.registry import Array, Cost, Integers, Sample, State, Weight, op, require
from weft.ops.samples import integers, normal, paged, ugly
from weft.ops.spec import Spec


def turn(x: np.ndarray, angle: np.ndarray, interleaved: bool, scale: float) -> np.ndarray:
    """x [T, H, D] with its first 2R channels turned by angle [T, R]."""
    return _turned(x, scale * np.cos(angle), scale * np.sin(angle), interleaved)


def _turned(x: np.ndarray, cosines: np.ndarray, sines: np.ndarray, interleaved: bool) -> np.ndarray:
    turned = cosines.shape[1]
    first, second = (slice(0, 2 * turned, 2), slice(1, 2 * turned, 2)) if interleaved else (
        slice(0, turned), slice(turned, 2 * turned)
    )  # fmt: skip
    cos, sin = cosines[:, None, :], sines[:, None, :]
    out = x.copy()
    out[..., first] = x[..., first] * cos - x[..., second] * sin
    out[..., second] = x[..., second] * cos + x[..., first] * sin
    return out


def angles(positions: np.ndarray, inv_freq: np.ndarray | Packed) -> np.ndarray:
    """By how much each pair of channels is turned [T, R]: the float32 product, widened."""
    product = positions[:, None].astype(np.float32) * wide(inv_freq).astype(np.float32)
    return product.astype(np.float64)


@op(in_place=(("x",),))
def rope(x: Array, positions: Integers, inv_freq: Weight, *, interleaved: bool = False, scale: float = 1.0) -> Array:
    """Channels turned by positions[t] * inv_freq[r].  x [T, H, D], positions [T], inv_freq [R] -> [T, H, D], 2R <= D

    Channel r is paired with r + R, or 2r with 2r + 1 when interleaved; the rest pass unchanged. `scale` multiplies cos
    and sin. The angle is the float32 product of the two, as the models were trained with.
    """
    return turn(x, angles(positions, inv_freq), interleaved, scale)


@rope.shape
def rope_shape(x: Spec, positions: Spec, inv_freq: Spec, *, interleaved: bool, scale: float) -> Spec:
    require(x.rank == 3, "rope", "must be [T, H, D]", field="x", given=x)
    require(positions.shape == x.shape[:1], "rope", f"must be [T] of x {x}", field="positions", given=positions)
    fits = inv_freq.rank == 1 and inv_freq.is_vector(inv_freq.shape[0]) and 2 * inv_freq.shape[0] <= x.shape[2]
    require(fits, "rope", f"must be f32[R] with 2R <= {x.shape[2]} for x {x}", field="inv_freq", given=inv_freq)
    return x


@rope.cost
def rope_cost(x: Spec, positions: Spec, inv_freq: Spec, *, interleaved: bool, scale: float) -> Cost:
    pairs = x.shape[0] * x.shape[1] * inv_freq.shape[0]
    return Cost(flops=6 * pairs, bytes=2 * x.nbytes + positions.nbytes + inv_freq.nbytes)


def _frequencies(count: int) -> np.ndarray:
    return (10000.0 ** -(np.arange(count) / count)).astype(np.float32)


@rope.samples
def rope_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for interleaved in (False, True):
        for tokens, heads, dim, turned in [(1, 1, 2, 1), (3, 2, 64, 32), (5, 3, 34, 17), (4, 2, 66, 16)]:
            positions = integers(rng.integers(0, 4096, tokens))
            yield (normal(rng, tokens, heads, dim), positions, _frequencies(turned)), {"interleaved": interleaved}
    view = normal(rng, 2, 5, 32).transpose(1, 0, 2)
    yield (view, integers([0, 1, 2, 131071, 7]), _frequencies(16)), {"scale": 1.25}
    yield (ugly(rng, 3, 2, 32), integers([5, 6, 7]), _frequencies(16)), {}


@rope.vjp
def rope_vjp(
    grad: np.ndarray, x: np.ndarray, positions: np.ndarray, inv_freq: np.ndarray, *, interleaved: bool, scale: float
) -> tuple[Any, ...]:
    to_x = turn(grad, -angles(positions, inv_freq), interleaved, scale)  # a rotation's transpose turns back
    return to_x, None, None  # the frequencies are constants of the model


@rope.decompose
def rope_decompose(x: Any, positions: Any, inv_freq: Any, *, interleaved: Any = False, scale: Any = 1.0) -> Any:
    return rope_turn(x, rope_table(positions, inv_freq, scale=scale), interleaved=interleaved)


rope.tolerance(because="cos and sin of the float32 angle to a unit in the last place, then two products and a sum")


@op
def rope_table(positions: Integers, inv_freq: Weight, axes: Weight | None = None, *, scale: float = 1.0) -> Array:
    """Cosines and then sines of positions[t] * inv_freq[r], times scale.  positions [T], inv_freq [R] -> [T, 2R]

    The angle is the float32 product of the two, as for rope. With `axes` [R] positions are rows [A, T], and pair r is
    turned by those of row axes[r]: tokens of pictures have a time, a row and a column (multimodal rope).
    """
    angle = angles(positions, inv_freq) if axes is None else _angles_by_axis(positions, inv_freq, wide(axes))
    return scale * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def _angles_by_axis(positions: np.ndarray, inv_freq: np.ndarray | Packed, axes: np.ndarray) -> np.ndarray:
    rows = axes.astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < len(positions):
        raise InputError("rope_table", f"must be 0 to {len(positions) - 1}", field="axes", given=axes.tolist())
    product = positions[rows].T.astype(np.float32) * wide(inv_freq).astype(np.float32)
    return product.astype(np.float64)


@rope_table.shape
def rope_table_shape(positions: Spec, inv_freq: Spec, axes: Spec | None, *, scale: float) -> Spec:
    rank = 1 if axes is None else 2
    fits = positions.rank == rank and inv_freq.rank == 1 and inv_freq.is_vector(inv_freq.shape[0])
    require(fits, "rope_table", f"must be f32[R], and positions {positions} [T]", field="inv_freq", given=inv_freq)
    if axes is not None:
        fits = axes.is_vector(inv_freq.shape[0])
        require(fits, "rope_table", f"must be f32[R] of inv_freq {inv_freq}", field="axes", given=axes)
    return inv_freq.like(positions.shape[-1], 2 * inv_freq.shape[0])


@rope_table.cost
def rope_table_cost(positions: Spec, inv_freq: Spec, axes: Spec | None, *, scale: float) -> Cost:
    pairs = positions.shape[-1] * inv_freq.size
    return Cost(
        flops=30 * pairs, bytes=8 * pairs + positions.nbytes + inv_freq.nbytes
    )  # 30: two polynomials of doubles


@rope_table.samples
def rope_table_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for tokens, pairs in [(1, 1), (3, 32), (5, 17)]:
        yield (integers(rng.integers(0, 4096, tokens)), _frequencies(pairs)), {}
    wide_range = (10.0 ** -np.linspace(0, 8, 34)).astype(np.float32)[::2]
    yield (integers([0, 1, 131071, 2000000000]), wide_range), {"scale": 1.25}
    for tokens, pairs in [(1, 1), (3, 32), (5, 17)]:
        axes = rng.integers(0, 3, pairs).astype(np.float32)
        yield (integers(rng.integers(0, 4096, (3, tokens))), _frequencies(pairs), axes), {"scale": 1.25}


rope_table.no_gradient("the frequencies are constants of the model")
rope_table.tolerance(because="a cosine or sine of the float32 angle to a unit in the last place, times a scale")


@op(in_place=(("x",),))
def rope_turn(x: Array, table: Array, *, interleaved: bool = False) -> Array:
    """Channels turned by a rope_table.  x [T, H, D], table [T, 2R] -> [T, H, D], 2R <= D

    Channel r is paired with r + R, or 2r with 2r + 1 when interleaved; the rest pass unchanged.
    """
    cosines, sines = np.split(table, 2, axis=1)
    return _turned(x, cosines, sines, interleaved)


@rope_turn.shape
def rope_turn_shape(x: Spec, table: Spec, *, interleaved: bool) -> Spec:
    _check_table("rope_turn", x, table)
    return x


def _check_table(where: str, x: Spec, table: Spec) -> None:
    require(x.rank == 3, where, "must be [T, H, D]", field="x", given=x)
    require(table.rank == 2, where, "must be [T, 2R]", field="table", given=table)
    fits = table.shape[0] == x.shape[0] and table.shape[1] % 2 == 0 and table.shape[1] <= x.shape[2]
    what = f"must be [{x.shape[0]}, 2R] with 2R <= {x.shape[2]} for {x}"
    require(fits, where, what, field="table", given=table)


@rope_turn.cost
def rope_turn_cost(x: Spec, table: Spec, *, interleaved: bool) -> Cost:
    return Cost(flops=3 * x.shape[1] * table.size, bytes=2 * x.nbytes + table.nbytes)


@rope_turn.samples
def rope_turn_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for interleaved in (False, True):
        for tokens, heads, dim, turned in [(1, 1, 2, 1), (3, 2, 64, 32), (5, 3, 34, 17), (4, 2, 66, 16)]:
            table = rope_table(integers(rng.integers(0, 4096, tokens)), _frequencies(turned))
            yield (normal(rng, tokens, heads, dim), table), {"interleaved": interleaved}
    yield (normal(rng, 2, 5, 32).transpose(1, 0, 2), normal(rng, 5, 32)), {}
    yield (ugly(rng, 3, 2, 32), rope_table(integers([5, 6, 7]), _frequencies(16))), {}


rope_turn.no_gradient("training uses rope: programs that have a gradient are not lowered to this")
rope_turn.tolerance(because="two products and a sum")


@op(in_place=(("q",),), effect=True)
def rope_write(
    q: Array,
    k: Array,
    v: Array,
    table: Array,
    state: State,
    positions: Integers,
    segments: Integers,
    pages: Integers,
    centre: Weight | None = None,
    steady: Weight | None = None,
    *,
    interleaved: bool = False,
) -> Array:
    """rope_turn(q), after kv_write of rope_turn(k) and v.  q [T, H, D], k, v [T, G, D], table [T, 2R], state [G, D],
    positions [T], segments [B+1], pages [B, P], centre [G D], steady [D] -> [T, H, D]
    """
    where = (state, positions, segments, pages, centre, steady)
    kv_write.reference(rope_turn.reference(k, table, interleaved=interleaved), v, *where)
    return rope_turn.reference(q, table, interleaved=interleaved)


@rope_write.shape
def rope_write_shape(
    q: Spec,
    k: Spec,
    v: Spec,
    table: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    centre: Spec | None,
    steady: Spec | None,
    *,
    interleaved: bool,
) -> Spec:
    kv_write.infer([k, v, state, positions, segments, pages, centre, steady], {})
    _check_table("rope_write", q, table)
    fits = q.shape[0] == k.shape[0] and q.shape[2] == k.shape[2] and q.shape[1] % k.shape[1] == 0
    what = f"must have the tokens and channels of k {k}, and a multiple of its heads"
    require(fits, "rope_write", what, field="q", given=q)
    return q


@rope_write.cost
def rope_write_cost(
    q: Spec,
    k: Spec,
    v: Spec,
    table: Spec,
    state: Spec,
    positions: Spec,
    segments: Spec,
    pages: Spec,
    centre: Spec | None,
    steady: Spec | None,
    *,
    interleaved: bool,
) -> Cost:
    turn, write = rope_turn.cost_of(q, table), kv_write.cost_of(k, v, state, positions, segments, pages)
    return Cost(flops=turn.flops + 3 * k.shape[1] * table.size, bytes=turn.bytes + write.bytes)


@rope_write.samples
def rope_write_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for starts, lengths, heads, groups, dim, pairs, dtype in [
        ([0], [1], 1, 1, 2, 1, "f32"),
        ([0, 31, 64], [5, 2, 1], 4, 2, 17, 8, "f32"),
        ([3, 0], [65, 33], 6, 3, 64, 32, "f32"),
        ([3, 0], [65, 33], 6, 3, 64, 16, "f16"),
        ([30, 0], [5, 33], 2, 2, 18, 9, "bf16"),
        ([0, 31, 64], [5, 2, 1], 4, 1, 17, 8, "i8"),
        ([3, 0], [65, 33], 3, 3, 64, 32, "i8"),
        ([3, 0], [65, 33], 3, 3, 64, 32, "i8r"),
        ([3, 0], [65, 33], 3, 3, 64, 32, "i4r"),
    ]:
        state, *where = paged(rng, starts, lengths, groups, dim, dtype)
        q = (ugly if dtype == "i8" else normal)(rng, heads, len(where[0]), dim).transpose(1, 0, 2)
        k, v = normal(rng, len(q), groups, dim), normal(rng, len(q), groups, dim)
        table = rope_table(where[0], _frequencies(pairs))
        if dtype != "f32":  # rotated without rounding, so that only one result is right
            k, table = rng.integers(-9, 10, k.shape), rng.integers(-4, 5, table.shape) / 4
        for interleaved in (False, True):
            operands = (q, k.astype(np.float32), v, table.astype(np.float32), state, *where)
            yield operands, {"interleaved": interleaved}
            if dtype in ("i8r", "i4r"):
                centre = rng.integers(-9, 10, groups * dim).astype(np.float32)
                yield (*operands, centre, np.ones(dim, np.float32)), {"interleaved": interleaved}


@rope_write.decompose
def rope_write_decompose(
    q: Any,
    k: Any,
    v: Any,
    table: Any,
    state: Any,
    positions: Any,
    segments: Any,
    pages: Any,
    centre: Any = None,
    steady: Any = None,
    *,
    interleaved: Any = False,
) -> Any:
    kv_write(rope_turn(k, table, interleaved=interleaved), v, state, positions, segments, pages, centre, steady)
    return rope_turn(q, table, interleaved=interleaved)


rope_write.no_gradient("the cache is not differentiated; training uses attention, which keeps no state")
rope_write.tolerance(because="as rope_turn; stored values are rounded once more, to nearest even")
