"""The product of activations and a weight of any storage type, with bias and activation, and its changes by
adapters."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from weft.dtype import rounded_bf16
from weft.errors import InputError
from weft.ops.elementwise import activate, activation_slope, add
from weft.ops.elementwise import activation as _activation
from weft.ops.packed import Packed, pack, wide
from weft.ops.registry import (
    ACTIVATIONS,
    ActivationOrNone,
    Array,
    Cost,
    Integers,
    Rows,
    Sample,
    Table,
    Weight,
    op,
    require,
)
from weft.ops.samples import SCALES, integers, normal, segments, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.state import ADAPTERS, AdapterArray, AdapterPart
from weft.ops.tolerance import chain


def product_shape(where: str, x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None = None) -> Spec:
    """The spec [..., N] of x [..., K] times weight [N, K], or with starts of x [R, K] and weight [E, N, K]; raises
    ShapeError."""
    stacked = "" if starts is None else "E, "
    rank = (x.rank >= 1 and weight.rank == 2) if starts is None else (x.rank == 2 and weight.rank == 3)
    what = f"must be [{stacked}N, {x.shape[-1] if x.rank else 'K'}] for x {x}"
    require(rank and weight.shape[-1] == x.shape[-1], where, what, field="weight", given=weight)
    if starts is not None:
        fits = starts.shape == (weight.shape[0] + 1,)
        require(fits, where, f"must be [{weight.shape[0] + 1}] for weight {weight}", field="starts", given=starts)
    if bias is not None:
        rows = math.prod(weight.shape[:-1])
        require(bias.is_vector(rows), where, f"must be f32[{rows}] for weight {weight}", field="bias", given=bias)
    return x.like(*x.shape[:-1], weight.shape[-2])


def product_cost(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None = None) -> Cost:
    rows = x.size // x.shape[-1]
    columns, depth = weight.shape[-2:]
    read = weight.nbytes if starts is None else weight.nbytes // weight.shape[0] * min(rows, weight.shape[0])
    extra = 0 if bias is None else bias.nbytes
    return Cost(flops=2 * rows * columns * depth, bytes=x.nbytes + read + 4 * rows * columns + extra)


def product(x: np.ndarray, matrices: np.ndarray, bias: Any, starts: np.ndarray | None) -> np.ndarray:
    """x Wᵀ + b; with starts each group of rows with its own matrix and bias."""
    if starts is None:
        return x @ matrices.T + (0 if bias is None else bias)
    shifts = np.zeros(matrices.shape[:2]) if bias is None else bias.reshape(matrices.shape[:2])
    return np.concatenate([rows @ matrix.T + b for rows, matrix, b in zip(_groups(x, starts), matrices, shifts)])


def _groups(x: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    if starts[0] != 0 or starts[-1] != len(x) or (np.diff(starts) < 0).any():
        what = f"must rise from 0 to {len(x)}, the number of rows"
        raise InputError("matmul", what, field="starts", given=starts.tolist())
    return [x[first:end] for first, end in pairwise(starts)]


@op
def matmul(
    x: Array,
    weight: Weight,
    bias: Weight | None = None,
    starts: Integers | None = None,
    *,
    activation: ActivationOrNone = "none",
) -> Array:
    """act(x Wᵀ + b).  x [..., K], weight [N, K] of any type, bias [N] or absent -> [..., N]

    With starts [E+1] it is E products: rows starts[e] to starts[e + 1] of x [R, K] times matrix e of weight [E, N, K],
    plus b[e N] to b[(e + 1) N] -> [R, N]. A row's result depends on its own matrix only.
    """
    return _activation(activation, product(x, wide(weight), bias, starts))


@matmul.shape
def matmul_shape(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Spec:
    return product_shape("matmul", x, weight, bias, starts)


@matmul.cost
def matmul_cost(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Cost:
    return product_cost(x, weight, bias, starts)


# Rows of each of the matrices of a stack: none, one, some and more than a tile.
GROUPS = ([1], [0, 3, 0, 1], [40, 1, 2, 0, 30])


@matmul.samples
def matmul_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 1), (1, 17, 65), (3, 16, 64), (7, 33, 100), (33, 65, 257)]:
        yield (normal(rng, rows, k), normal(rng, n, k), None), {}
    yield (normal(rng, 2, 3, 32), normal(rng, 5, 32), normal(rng, 5)), {}
    for kind in ACTIVATIONS:
        yield (normal(rng, 3, 65), normal(rng, 17, 65, scale=0.2), normal(rng, 17)), {"activation": kind}
    yield (strided(rng, 5, 33), strided(rng, 17, 33), normal(rng, 17)), {}
    yield (ugly(rng, 5, 65), normal(rng, 17, 65), None), {}
    for dtype in ("f16", "bf16"):
        yield (normal(rng, 5, 65), weight(rng, dtype, 33, 65), normal(rng, 33)), {}
    for dtype in SCALES:
        yield (normal(rng, 3, 512), weight(rng, dtype, 17, 512), None), {}
    for sizes in GROUPS:
        for dtype in ("f32", "f16", "q4_k", "iq2_xs"):
            x, matrices = normal(rng, sum(sizes), 256), weight(rng, dtype, len(sizes), 17, 256)
            yield (x, matrices, None, segments(sizes)), {}
    yield (normal(rng, 5, 33), normal(rng, 2, 20, 33), normal(rng, 40), segments([2, 3])), {"activation": "silu"}


@matmul.vjp
def matmul_vjp(
    grad: np.ndarray, x: np.ndarray, weight: Any, bias: Any = None, starts: Any = None, *, activation: str = "none"
) -> tuple[Any, ...]:
    dense = wide(weight)
    inner = grad * activation_slope(activation, product(x, dense, bias, starts))
    if starts is not None:
        rows, inputs = _groups(inner, starts), _groups(x, starts)
        to_x = np.concatenate([one @ matrix for one, matrix in zip(rows, dense)])
        to_weight = None if isinstance(weight, Packed) else np.stack([one.T @ y for one, y in zip(rows, inputs)])
        return to_x, to_weight, None if bias is None else np.concatenate([one.sum(axis=0) for one in rows]), None
    rows = inner.reshape(-1, inner.shape[-1])
    to_weight = None if isinstance(weight, Packed) else rows.T @ x.reshape(-1, x.shape[-1])  # packed weights are frozen
    return inner @ dense, to_weight, None if bias is None else rows.sum(axis=0), None


@matmul.decompose
def matmul_decompose(x: Any, weight: Any, bias: Any = None, starts: Any = None, *, activation: Any = "none") -> Any:
    if starts is not None:  # no op adds a bias to each group
        total = matmul(x, weight, bias, starts)
    else:
        total = matmul(x, weight) if bias is None else add(matmul(x, weight), bias)
    return total if activation == "none" else activate(total, kind=activation)


matmul.tolerance(f32=chain(1024), because="one f32 chain over K")


@op(in_place=(("y",),))
def lora(
    y: Array,
    x: Array,
    table: Table,
    segments: Integers,
    adapters: Integers,
    rows: Integers | None = None,
    starts: Integers | None = None,
) -> Array:
    """The product y of x and a weight, changed by each sequence's adapter.  y [M, N], x [M, K], table of [N, K],
    segments [B+1], adapters [B], rows [M] or absent -> [M, N]

    Row m belongs to token rows[m], or to token m where rows is absent. It changes as the `AdapterPart` of its
    sequence's adapter says. Rows of sequences without an adapter (0), or whose adapter has no part in this table, stay
    as they are, to the bit. With `starts` [E+1] the table is of a stack [E, N, K], as the weight of matmul: rows
    starts[e] to starts[e + 1] change as the parts for matrix e say.
    """
    result = np.array(y)
    tokens = np.arange(len(y)) if rows is None else rows
    owners = np.asarray(adapters)[np.searchsorted(segments, tokens, side="right") - 1]
    if starts is not None:
        matrix = np.searchsorted(starts, np.arange(len(y)), side="right") - 1
        owners = np.where(owners > 0, matrix * ADAPTERS + owners, 0)
    for index, part in table.parts.items():
        mine = owners == index
        result[mine] = _adapted(part, y[mine], x[mine])
    return result


def _adapted(part: AdapterPart, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    if part.up is not None and part.down is None:
        y = x @ wide(part.up).T
    elif part.up is not None and part.down is not None:
        y = y + (x @ wide(part.down).T * part.scale) @ wide(part.up).T
    y = y if part.gain is None else y * part.gain
    return y if part.shift is None else y + part.shift


@lora.shape
def lora_shape(
    y: Spec, x: Spec, table: Spec, segments: Spec, adapters: Spec, rows: Spec | None, starts: Spec | None
) -> Spec:
    fits = y.rank == x.rank == 2 and x.shape[0] == y.shape[0] and table.shape[-2:] == (y.shape[1], x.shape[1])
    require(fits, "lora", f"must be [N, K] for y [M, N] = {y} and x [M, K] = {x}", field="table", given=table)
    fits = table.rank == 2 if starts is None else table.rank == 3 and starts.shape == (table.shape[0] + 1,)
    require(fits, "lora", f"must be [E+1] for a table [E, N, K] = {table}", field="starts", given=starts)
    fits = segments.rank == adapters.rank == 1 and segments.shape[0] == adapters.shape[0] + 1
    require(fits, "lora", f"must be [B] for segments [B+1] = {segments}", field="adapters", given=adapters)
    require(rows is None or rows.shape == y.shape[:1], "lora", f"must be [M] for y {y}", field="rows", given=rows)
    return y


@lora.cost
def lora_cost(
    y: Spec, x: Spec, table: Spec, segments: Spec, adapters: Spec, rows: Spec | None, starts: Spec | None
) -> Cost:
    rank = 16  # assumed of every row: the table's contents are not known here
    part = 4 * rank * sum(table.shape[-2:]) * (1 if starts is None else table.shape[0])
    return Cost(flops=2 * rank * (x.size + y.size), bytes=x.nbytes + 2 * y.nbytes + part)


@lora.samples
def lora_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (n, k), lengths in [((1, 1), [1]), ((17, 65), [3, 1, 4]), ((64, 100), [1, 9, 2, 1]), ((300, 33), [40, 5])]:
        table = AdapterArray(n, k, {i: _part(rng, n, k, kind) for i, kind in enumerate(_PARTS, 1)})
        for first in range(2 if n == 1 else len(_PARTS) + 1):  # a single sum of many products may cancel
            chosen = integers(
                [(first + i) % (len(_PARTS) + 2) for i in range(len(lengths))]
            )  # the last adapter has no part
            y, x = normal(rng, sum(lengths), n), normal(rng, sum(lengths), k)
            yield (y, x, table, segments(lengths), chosen, None), {}
    picked = integers([7, 0, 3, 3, 6])
    table = AdapterArray(33, 64, {3: _part(rng, 33, 64, "f32 5"), 250: _part(rng, 33, 64, "f16 19 gain shift")})
    yield (normal(rng, 5, 33), normal(rng, 5, 64), table, segments([2, 0, 4, 2]), integers([3, 9, 250, 0]), picked), {}
    views = strided(rng, 4, 33), strided(rng, 4, 64)
    yield (*views, table, segments([4]), integers([250]), None), {}
    yield (ugly(rng, 4, 33), ugly(rng, 4, 64), table, segments([1, 3]), integers([250, 3]), None), {}
    for sizes in ([3, 0, 1, 5, 2, 0, 0], [0, 0, 0, 0, 0, 0, 11], [2, 2, 2, 2, 1, 1, 1]):  # of seven experts
        found = {
            m * ADAPTERS + i: _part(rng, 17, 65, kind) for m, kind in enumerate(_PARTS[:6]) for i in (1, 2 + m % 3)
        }
        of = AdapterArray(17, 65, found, matrices=7)  # the last one has no part
        tokens, starts = rng.integers(0, 8, 11), np.concatenate([[0], np.cumsum(sizes)])
        owned = segments([3, 1, 4]), integers([1, 0, 3]), integers(tokens), integers(starts)
        yield (normal(rng, 11, 17), normal(rng, 11, 65), of, *owned), {}


_PARTS = ("f32 1", "f16 16", "bf16 17 gain", "f32 40 shift", "f32 0 gain shift", "bf16 whole shift", "f32 whole")


def _part(rng: np.random.Generator, n: int, k: int, kind: str) -> AdapterPart:
    """A part described by `kind`: its type, its rank or "whole", and its vectors."""
    dtype, rank, *vectors = kind.split()
    gain = normal(rng, n) if "gain" in vectors else None
    shift = normal(rng, n) if "shift" in vectors else None
    if rank == "whole":
        return AdapterPart(up=weight(rng, dtype, n, k), shift=shift)
    if rank == "0":
        return AdapterPart(gain=gain, shift=shift)
    down, up = weight(rng, dtype, int(rank), k), weight(rng, dtype, n, int(rank))
    return AdapterPart(down, up, normal(rng, int(rank)), gain, shift)


lora.no_gradient("an adapter in a table is frozen; training declares its matrices as weights")
lora.tolerance(f32=chain(1024), because="as matmul: chains over K, then one over the rank")


@op(in_place=(("y",),))
def lora_embedding(y: Array, ids: Integers, table: Table, segments: Integers, adapters: Integers) -> Array:
    """Rows y of an embedding table, changed by each sequence's adapter.  y [T, D], ids [T], table of [D, V],
    segments [B+1], adapters [B] -> [T, D]

    As lora with x [T, V] one-hot at the token's id: an adapter adds up (scale * down[:, ids[t]]) for token t.
    """
    units = np.zeros((len(ids), table.cols))
    units[np.arange(len(ids)), ids] = 1
    return lora.reference(y, units, table, segments, adapters)


@lora_embedding.shape
def lora_embedding_shape(y: Spec, ids: Spec, table: Spec, segments: Spec, adapters: Spec) -> Spec:
    fits = y.rank == 2 and ids.shape == y.shape[:1] and table.shape[0] == y.shape[1]
    what = f"must be [D, V] for y [T, D] = {y} and ids [T] = {ids}"
    require(fits, "lora_embedding", what, field="table", given=table)
    fits = segments.rank == adapters.rank == 1 and segments.shape[0] == adapters.shape[0] + 1
    what = f"must be [B] for segments [B+1] = {segments}"
    require(fits, "lora_embedding", what, field="adapters", given=adapters)
    return y


@lora_embedding.cost
def lora_embedding_cost(y: Spec, ids: Spec, table: Spec, segments: Spec, adapters: Spec) -> Cost:
    rank = 16  # as in lora
    return Cost(flops=2 * rank * y.size, bytes=ids.nbytes + 2 * y.nbytes + 4 * rank * (ids.size + table.shape[0]))


@lora_embedding.samples
def lora_embedding_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for (dim, vocabulary), lengths in [((1, 1), [1]), ((17, 65), [3, 1, 4]), ((64, 100), [1, 9, 2, 1])]:
        table = AdapterArray(
            dim, vocabulary, {i: _part(rng, dim, vocabulary, kind) for i, kind in enumerate(_PARTS, 1)}
        )
        for first in range(2 if dim == 1 else len(_PARTS) + 1):
            chosen = integers([(first + i) % (len(_PARTS) + 2) for i in range(len(lengths))])
            ids = integers(rng.integers(0, vocabulary, sum(lengths)))
            yield (normal(rng, sum(lengths), dim), ids, table, segments(lengths), chosen), {}
    table = AdapterArray(33, 9, {5: _part(rng, 33, 9, "f32 5")})
    yield (strided(rng, 4, 33), integers([8, 0, 8, 3]), table, segments([4]), integers([5])), {}
    yield (ugly(rng, 4, 33), integers([8, 0, 8, 3]), table, segments([1, 3]), integers([5, 0])), {}


lora_embedding.no_gradient("an adapter in a table is frozen; training declares its matrices as weights")
lora_embedding.tolerance(f32=chain(1024), because="one chain over the rank")


@op
def round_rows(x: Array, *, split: bool = False) -> Rows:
    """x in bfloat16, to nearest even, subnormal numbers to zero.  x [..., K] -> bf16 [..., K], with split [..., 2 K]

    Split: a row's rounded values, then the remainders of that rounding, rounded too; together 16 bits of every value.
    """
    return _as_rows(x, split)


def _as_rows(values: np.ndarray, split: bool) -> Packed:
    high = rounded_bf16(values)
    parts = [high, rounded_bf16(values.astype(np.float32) - high)] if split else [high]
    return pack(np.concatenate(parts, axis=-1), "bf16")


@round_rows.shape
def round_rows_shape(x: Spec, *, split: bool) -> Spec:
    require(x.rank >= 1, "round_rows", "must have an axis", field="x", given=x)
    return x.like(*x.shape[:-1], x.shape[-1] * (2 if split else 1), dtype="bf16")


@round_rows.cost
def round_rows_cost(x: Spec, *, split: bool) -> Cost:
    return Cost(flops=x.size, bytes=x.nbytes + (4 if split else 2) * x.size)


@round_rows.samples
def round_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(1, 1), (3, 65), (2, 3, 32), (17, 100)]:
        yield (normal(rng, *shape),), {}
        yield (normal(rng, *shape),), {"split": True}
    yield (strided(rng, 5, 33),), {}
    yield (ugly(rng, 5, 65),), {}
    ties = np.arange(64, dtype=np.float32).reshape(2, 32) * np.float32(2.0**-8) + 1  # every other one is a tie
    yield (ties,), {}


round_rows.no_gradient("rounding is flat almost everywhere; training runs with f32 activations")
round_rows.tolerance(f32=0.0, because="specified to the bit")

BF16_STEP = 32  # columns that one step of a bfloat16 product takes
BF16_DEPTH = 2**14  # the longest row it takes


def takes_bf16(depth: Any, split: bool = False) -> bool:
    """Whether rows of `depth` elements (both parts where they are split) have a product in bfloat16."""
    return isinstance(depth, int) and depth % (BF16_STEP * (2 if split else 1)) == 0 and 0 < depth <= BF16_DEPTH


@op
def matmul_bf16(
    x: Rows,
    weight: Weight,
    bias: Weight | None = None,
    starts: Integers | None = None,
    *,
    activation: ActivationOrNone = "none",
    rounded: bool = False,
    split: bool = False,
) -> Array | Rows:
    """act(x Wᵀ + b).  x bf16 [..., K], K a multiple of 32, weight bf16 [N, K], bias [N] or absent -> [..., N]

    With starts [E+1] and weight [E, N, K] it is E products, as in matmul.

    Subnormal numbers count as zeros. csrc/kernels/matmul_bf16.cpp specifies the order of summation too.
    The result is f32, or with `rounded` bf16 as round_rows would make it. Split: x and weight are results of a split
    rounding; the product is values times values, plus values times remainders both ways, without remainders times
    remainders.
    """
    rows, matrix = rounded_bf16(wide(x)), rounded_bf16(wide(weight))
    if split:
        (high, low), (left, right) = (np.split(part, 2, axis=-1) for part in (rows, matrix))
        total = product(high, left + right, bias, starts) + product(low, left, None, starts)
    else:
        total = product(rows, matrix, bias, starts)
    result = _activation(activation, total)
    return _as_rows(result, split) if rounded else result


@matmul_bf16.shape
def matmul_bf16_shape(
    x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str, rounded: bool, split: bool
) -> Spec:
    both = x.dtype.name == weight.dtype.name == "bf16"
    advice = "round both with round_rows first"
    require(both, "matmul_bf16", f"must be bf16, and weight too; weight is {weight}", field="x", given=x, advice=advice)
    fits = x.rank >= 1 and takes_bf16(x.shape[-1], split)
    what = f"must have rows of a multiple of {BF16_STEP} elements, at most {BF16_DEPTH}"
    require(fits, "matmul_bf16", what, field="x", given=x, advice="use matmul")
    result = product_shape("matmul_bf16", x, weight, bias, starts)
    if not rounded:
        return result.like(*result.shape, dtype="f32")
    return result.like(*result.shape[:-1], result.shape[-1] * (2 if split else 1), dtype="bf16")


@matmul_bf16.cost
def matmul_bf16_cost(
    x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str, rounded: bool, split: bool
) -> Cost:
    one = product_cost(x, weight, bias, starts)
    return Cost(flops=one.flops * 3 // 2, bytes=one.bytes) if split else one


@matmul_bf16.samples
def matmul_bf16_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 32), (1, 17, 64), (3, 16, 64), (17, 33, 96), (33, 65, 256), (65, 48, 96)]:
        yield (round_rows(normal(rng, rows, k)), weight(rng, "bf16", n, k), None), {}
    yield (round_rows(normal(rng, 2, 3, 32)), weight(rng, "bf16", 5, 32), normal(rng, 5)), {}
    for kind in ACTIVATIONS:
        yield (round_rows(normal(rng, 3, 64)), weight(rng, "bf16", 17, 64), normal(rng, 17)), {"activation": kind}
    yield (round_rows(ugly(rng, 5, 64)), weight(rng, "bf16", 17, 64), None), {}
    for rows, n, k in [(1, 17, 64), (37, 33, 96)]:
        x, w = (round_rows(normal(rng, count, k), split=True) for count in (rows, n))
        yield (x, w, normal(rng, n)), {"split": True, "activation": "gelu"}
    for sizes in GROUPS:
        matrices = weight(rng, "bf16", len(sizes), 17, 64)
        yield (round_rows(normal(rng, sum(sizes), 64)), matrices, normal(rng, len(sizes) * 17), segments(sizes)), {}
    # Sums of whole numbers are exact, so only one result is right.
    x, w = (rng.integers(-9, 10, size).astype(np.float32) for size in ((35, 64), (33, 64)))
    yield (round_rows(x), pack(w, "bf16"), None), {"rounded": True}
    x, w = (round_rows(values * np.float32(257), split=True) for values in (x, w))
    yield (x, w, None), {"rounded": True, "split": True}


matmul_bf16.no_gradient("its operands are rounded; training runs with f32 activations")
matmul_bf16.tolerance(f32=1e-5, bf16=1e-5, because="gelu of a result that will be rounded is within 5.2e-5, absolute")

HALF_DEPTH = 2**15  # the longest row that matmul_half takes


@op
def matmul_half(
    x: Array,
    weight: Weight,
    bias: Weight | None = None,
    starts: Integers | None = None,
    *,
    activation: ActivationOrNone = "none",
) -> Array:
    """act(x Wᵀ + b), in half precision or better.  x [..., K], weight f16 [N, K], bias [N] or absent -> [..., N]

    Levels with half-precision arithmetic scale rows of x by a power of two and round them to f16, and they round sums
    of 64 products to f16: a sum beyond 8,188 times the row's largest value overflows there. Other levels compute as
    `matmul` does. With starts [E+1] and weight [E, N, K] it is E products, as in matmul.
    """
    return matmul.reference(x, weight, bias, starts, activation=activation)


@matmul_half.shape
def matmul_half_shape(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Spec:
    half = weight.dtype.name == "f16"
    require(half, "matmul_half", "must be f16", field="weight", given=weight, advice="use matmul")
    result = product_shape("matmul_half", x, weight, bias, starts)
    depth = x.shape[-1]
    what = f"must have rows of at most {HALF_DEPTH} elements"
    require(depth <= HALF_DEPTH, "matmul_half", what, field="x", given=x, advice="use matmul")
    return result


@matmul_half.cost
def matmul_half_cost(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Cost:
    return product_cost(x, weight, bias, starts)


@matmul_half.samples
def matmul_half_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 17, 65), (1, 33, 512), (3, 16, 64), (7, 33, 100), (33, 65, 257), (100, 40, 72)]:
        yield (normal(rng, rows, k), weight(rng, "f16", n, k), None), {}
    yield (normal(rng, 2, 3, 32), weight(rng, "f16", 5, 32), normal(rng, 5)), {}
    for kind in ACTIVATIONS:
        yield (normal(rng, 3, 65), weight(rng, "f16", 17, 65), normal(rng, 17)), {"activation": kind}
    yield (strided(rng, 5, 33), weight(rng, "f16", 17, 33), normal(rng, 17)), {}
    yield (ugly(rng, 5, 65), weight(rng, "f16", 17, 65), None), {}
    for sizes in GROUPS:
        x, matrices = normal(rng, sum(sizes), 65), weight(rng, "f16", len(sizes), 17, 65)
        yield (x, matrices, normal(rng, len(sizes) * 17), segments(sizes)), {}


@matmul_half.decompose
def matmul_half_decompose(
    x: Any, weight: Any, bias: Any = None, starts: Any = None, *, activation: Any = "none"
) -> Any:
    return matmul(x, weight, bias, starts, activation=activation)


matmul_half.no_gradient("half precision is for inference; training runs with f32 activations")
matmul_half.tolerance(f32=2.0**-9, because="values and sums of 64 products are halves")
