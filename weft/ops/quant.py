"""int8 activations: rows quantised block by block for quantised weights, or with one scale for float weights, and
their products. Norms and gates whose results only products read have versions that return quantised rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from weft.dtype import DTYPES
from weft.ops.elementwise import activation as _activation
from weft.ops.elementwise import gated
from weft.ops.matmul import GROUPS, product, product_cost, product_shape
from weft.ops.norm import add_rms_norm, rms_norm
from weft.ops.packed import A8, Packed, wide
from weft.ops.registry import (
    ACTIVATIONS,
    Activation,
    ActivationOrNone,
    Array,
    Codes,
    Cost,
    Integers,
    Rows,
    Sample,
    Weight,
    get_args,
    op,
    require,
)
from weft.ops.samples import normal, segments, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

# Weight types that have an int8 path, and the activation block each of them is multiplied with.
INT8_BLOCK = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "q4_z"), 32),
    **dict.fromkeys(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs", "iq3_s", "iq3_xxs"), 256),
    **dict.fromkeys(("iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "tq1_0", "tq2_0"), 256),
}


@op
def quantise_rows(x: Array, *, block: int) -> Rows:
    """Rows of int8 with a scale per block and the sums of 16 neighbours.  x [..., K] -> a8_32 or a8_256 [..., K]

    Specified in float32, to the bit, because a rounding decides a code. Block 32: d = max|x| / 127 and
    q = round(x * (127 / max|x|)). Block 256: m is the value of largest magnitude with its sign, the first of
    equals; d = m / -127 and q = min(127, round(x * (-127 / m))). Rounding is to nearest even. A block of zeros, or
    of values so small that the factor would overflow, has d = 0 and q = 0.
    """
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, block)
    first = np.argmax(np.abs(blocks), axis=1)
    peak = np.take_along_axis(blocks, first[:, None], axis=1)  # [blocks, 1]
    span, top = (np.abs(peak), np.float32(127)) if block == 32 else (peak, np.float32(-127))
    with np.errstate(divide="ignore", over="ignore"):
        factor = top / span
        step = span / top
    alive = np.isfinite(factor)
    codes = np.minimum(np.rint(blocks * np.where(alive, factor, np.float32(0))), np.float32(127)).astype(np.int8)
    rows = np.zeros(len(blocks), A8[f"a8_{block}"])
    rows["d"] = np.where(alive, step, np.float32(0))[:, 0]
    rows["q"] = codes
    rows["sum"] = codes.reshape(len(blocks), -1, 16).sum(axis=2, dtype=np.int16)
    return Packed(DTYPES[f"a8_{block}"], x.shape, rows.view(np.uint8).reshape(-1))


@quantise_rows.shape
def quantise_rows_shape(x: Spec, *, block: int) -> Spec:
    require(block in (32, 256), "quantise_rows", "must be 32 or 256", field="block", given=block)
    whole = x.rank >= 1 and isinstance(x.shape[-1], int) and x.shape[-1] % block == 0
    require(whole, "quantise_rows", f"must have rows of whole blocks of {block}", field="x", given=x)
    return x.like(*x.shape, dtype=f"a8_{block}")


@quantise_rows.cost
def quantise_rows_cost(x: Spec, *, block: int) -> Cost:
    return Cost(flops=4 * x.size, bytes=x.nbytes + x.size * DTYPES[f"a8_{block}"].size_bytes // block)


@quantise_rows.samples
def quantise_rows_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for block in (32, 256):
        for rows, blocks in [(1, 1), (3, 2), (17, 3)]:
            yield (normal(rng, rows, block * blocks),), {"block": block}
        yield (strided(rng, 5, 2 * block),), {"block": block}
        yield (np.clip(ugly(rng, 5, 2 * block), -1e6, 1e6),), {"block": block}
        halves = np.float32(0.5) * np.arange(-block, block, dtype=np.float32).reshape(2, block)
        yield (halves,), {"block": block}  # ties
        gaps = normal(rng, 2, 2 * block)
        gaps[0, :block] = 0
        yield (gaps,), {"block": block}  # a block of zeros
        yield (
            (np.tile(np.array([3, -3], np.float32), (1, block)),),
            {"block": block},
        )  # both signs at the largest magnitude


quantise_rows.no_gradient("rounding is flat almost everywhere; training runs with f32 activations")
quantise_rows.tolerance(f32=0.0, because="the codes are specified to the bit")


# Ops that compute rows and quantise them at once. The rows are rounded to float32 first, as if they had been stored.


@op
def rms_norm_a8(x: Array, weight: Weight, *, eps: float, block: int) -> Rows:
    """quantise_rows(rms_norm(x)).  x [..., K], weight [K] -> a8_32 or a8_256 [..., K]"""
    return quantise_rows.reference(rms_norm.reference(x, weight, eps=eps), block=block)


@rms_norm_a8.shape
def rms_norm_a8_shape(x: Spec, weight: Spec, *, eps: float, block: int) -> Spec:
    return quantise_rows.infer(rms_norm.infer([x, weight], {"eps": eps}), {"block": block})[0]


@rms_norm_a8.cost
def rms_norm_a8_cost(x: Spec, weight: Spec, *, eps: float, block: int) -> Cost:
    return _made_and_quantised(rms_norm.cost_of(x, weight, eps=eps), x, block)


@rms_norm_a8.samples
def rms_norm_a8_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for x, gains, attrs in _exact_norms(rng):
        yield (x, gains), attrs


@rms_norm_a8.decompose
def rms_norm_a8_decompose(x: Any, weight: Any, *, eps: Any, block: Any) -> Any:
    return quantise_rows(rms_norm(x, weight, eps=eps), block=block)


rms_norm_a8.no_gradient("its result is rounded; training runs with f32 activations")
rms_norm_a8.tolerance(f32=0.0, because="the codes of rows with exact norms are specified to the bit")


@op(in_place=(("x", "y"),))
def add_rms_norm_a8(x: Array, y: Array, weight: Weight, *, eps: float, block: int) -> tuple[Array, Rows]:
    """x + y and quantise_rows(rms_norm(x + y)).  x, y [..., K], weight [K] -> [..., K], a8_32 or a8_256 [..., K]"""
    total = x + y
    return total, rms_norm_a8.reference(total, weight, eps=eps, block=block)


@add_rms_norm_a8.shape
def add_rms_norm_a8_shape(x: Spec, y: Spec, weight: Spec, *, eps: float, block: int) -> tuple[Spec, Spec]:
    total, rows = add_rms_norm.infer([x, y, weight], {"eps": eps})
    return total, quantise_rows.infer([rows], {"block": block})[0]


@add_rms_norm_a8.cost
def add_rms_norm_a8_cost(x: Spec, y: Spec, weight: Spec, *, eps: float, block: int) -> Cost:
    return _made_and_quantised(add_rms_norm.cost_of(x, y, weight, eps=eps), x, block)


@add_rms_norm_a8.samples
def add_rms_norm_a8_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for total, gains, attrs in _exact_norms(rng):
        part = np.asfortranarray(rng.integers(-9, 10, total.shape), np.float32)
        yield (total - part, part, gains), attrs


@add_rms_norm_a8.decompose
def add_rms_norm_a8_decompose(x: Any, y: Any, weight: Any, *, eps: Any, block: Any) -> Any:
    total, rows = add_rms_norm(x, y, weight, eps=eps)
    return total, quantise_rows(rows, block=block)


add_rms_norm_a8.no_gradient("one of its results is rounded; training runs with f32 activations")
add_rms_norm_a8.tolerance(f32=0.0, because="the codes of sums with exact norms are specified to the bit")


@op
def gated_a8(gate: Array, up: Array, *, kind: Activation, block: int) -> Rows:
    """quantise_rows(gated(gate, up)).  gate, up [..., K] -> a8_32 or a8_256 [..., K]"""
    return quantise_rows.reference(gated.reference(gate, up, kind=kind), block=block)


@gated_a8.shape
def gated_a8_shape(gate: Spec, up: Spec, *, kind: str, block: int) -> Spec:
    return quantise_rows.infer(gated.infer([gate, up], {"kind": kind}), {"block": block})[0]


@gated_a8.cost
def gated_a8_cost(gate: Spec, up: Spec, *, kind: str, block: int) -> Cost:
    return _made_and_quantised(gated.cost_of(gate, up, kind=kind), gate, block)


@gated_a8.samples
def gated_a8_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for block in (32, 256):
        for kind in get_args(Activation):  # gates so large that an activation is the gate, one, or zero
            gate = rng.choice(np.asarray([-256, -128, 128, 192, 256], np.float32), (3, 2 * block))
            yield (gate, rng.integers(-9, 10, gate.shape).astype(np.float32)), {"kind": kind, "block": block}
        up = np.float32(2.0) ** rng.integers(-12, 13, (1, 3 * block)).astype(np.float32)
        yield (rng.integers(-2, 3, up.shape).astype(np.float32), up), {"kind": "relu", "block": block}
        gate = rng.integers(-9, 10, (2 * block, 5)).astype(np.float32).T
        yield (gate, gate), {"kind": "relu", "block": block}


@gated_a8.decompose
def gated_a8_decompose(gate: Any, up: Any, *, kind: Any, block: Any) -> Any:
    return quantise_rows(gated(gate, up, kind=kind), block=block)


gated_a8.no_gradient("its result is rounded; training runs with f32 activations")
gated_a8.tolerance(f32=0.0, because="the codes of exact products are specified to the bit")


def _made_and_quantised(made: Cost, x: Spec, block: int) -> Cost:
    """The cost of both ops fused: the rows between them are neither written nor read."""
    then = quantise_rows.cost_of(x, block=block)
    return Cost(flops=made.flops + then.flops, bytes=made.bytes + then.bytes - 2 * x.nbytes)


def _exact_norms(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, Any]]]:
    """Rows, weights and attributes of norms that need no rounding: the mean of squares is 21, plus eps 64."""
    for block in (32, 256):
        for rows, blocks in [(1, 1), (3, 2), (17, 3)]:
            odd = np.tile(np.asarray([1, 3, 5, 7], np.float32), (rows, block * blocks // 4))
            x = rng.permuted(odd, axis=1) * rng.choice(np.asarray([-1, 1], np.float32), odd.shape)
            gains = np.float32(2.0) ** rng.integers(-12, 13, block * blocks).astype(np.float32)
            yield x, gains, {"eps": 43.0, "block": block}
            yield np.asfortranarray(x), np.ones_like(gains), {"eps": 43.0, "block": block}


@op
def matmul_q(
    x: Rows,
    weight: Weight,
    bias: Weight | None = None,
    starts: Integers | None = None,
    *,
    activation: ActivationOrNone = "none",
) -> Array:
    """act(x Wᵀ + b).  x int8 rows [..., K], weight [N, K] with an int8 path, bias [N] or absent -> f32 [..., N]

    With starts [E+1] and weight [E, N, K] it is E products, as in matmul.
    """
    return _activation(activation, product(wide_rows(x), wide(weight), bias, starts))


def wide_rows(x: Packed) -> np.ndarray:
    """The values of int8 rows: d * q, exact in float64."""
    blocks = x.data.view(A8[x.dtype.name])
    return (blocks["d"].astype(np.float64)[:, None] * blocks["q"]).reshape(x.shape)


@matmul_q.shape
def matmul_q_shape(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Spec:
    block = INT8_BLOCK.get(weight.dtype.name)
    require(block is not None, "matmul_q", "has no int8 kernel", field="weight", given=weight, advice="use matmul")
    advice = f"quantise with block {block}"
    require(x.dtype.block == block, "matmul_q", f"does not fit weight {weight}", field="x", given=x, advice=advice)
    result = product_shape("matmul_q", x, weight, bias, starts)
    return result.like(*result.shape, dtype="f32")


@matmul_q.cost
def matmul_q_cost(x: Spec, weight: Spec, bias: Spec | None, starts: Spec | None, *, activation: str) -> Cost:
    return product_cost(x, weight, bias, starts)


@matmul_q.samples
def matmul_q_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, block in INT8_BLOCK.items():
        for rows, n, blocks in [(1, 1, 1), (3, 17, 2), (17, 16, 3)]:
            x = quantise_rows(normal(rng, rows, block * blocks), block=block)
            yield (x, weight(rng, dtype, n, block * blocks), None), {}
        x = quantise_rows(normal(rng, 5, 2 * block) * np.float32(10.0) ** rng.integers(-3, 3, (5, 1)), block=block)
        yield (x, weight(rng, dtype, 33, 2 * block), normal(rng, 33)), {"activation": "silu"}
        for sizes in GROUPS:
            x = quantise_rows(normal(rng, sum(sizes), block), block=block)
            shifts = normal(rng, len(sizes) * 17)
            yield (x, weight(rng, dtype, len(sizes), 17, block), shifts, segments(sizes)), {}


matmul_q.no_gradient("its rows are integers; training runs with f32 activations")
matmul_q.tolerance(
    f32=chain(256),
    a8_32=chain(256),
    a8_256=chain(256),
    because="integers are exact; one f32 chain over the blocks of a row",
)


# Rows with one scale each: products with float weights, which are rounded to int8 too.
I8_STEP = 64  # columns that one step of such a product takes
I8_DEPTH = 8192  # the longest row that 32-bit sums and the scratch memory have room for
I8_COLUMNS = 3072  # the longest row of results that a product quantises itself
REACH = 5  # a row's largest element may be this many times the largest value of a byte


def takes_i8(depth: Any) -> bool:
    """Whether rows of `depth` elements have a product in int8."""
    return isinstance(depth, int) and depth % I8_STEP == 0 and 0 < depth <= I8_DEPTH


def column_factors(weight: Array | Packed) -> np.ndarray:
    """Factors float32 [K] that multiply the columns of x and divide those of the weight, to make its columns alike.

    A factor is the fourth root of a column's largest element over the largest of all, at least 1/16.
    """
    largest = np.abs(wide(weight).astype(np.float32)).max(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(np.sqrt(largest / largest.max()))
    return np.where(root >= np.float32(0.0625), root, np.float32(0.0625))


def channel_codes(weight: Array | Packed, equalised: bool) -> tuple[np.ndarray, np.ndarray]:
    """Codes [N, K] of the weight's rows, in steps of 1/127 of a row's largest element, and the steps [N]; float32."""
    values = wide(weight).astype(np.float32)
    if equalised:
        values = values / column_factors(weight)
    largest = np.abs(values).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / largest
    alive = np.isfinite(inverse)
    codes = np.rint(values * np.where(alive, inverse, np.float32(0))[:, None])
    return np.clip(codes, -127, 127), np.where(alive, largest / np.float32(127), np.float32(0))


def token_codes(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes and headers of float32 rows: see quantise_tokens."""
    size = np.abs(x)
    following, top = np.moveaxis(np.partition(size, -2, axis=-1)[..., -2:], -1, 0)
    span = np.maximum(following, top / np.float32(REACH))
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        steps = np.float32(127) / span
        alive = np.isfinite(steps)
        steps = np.where(alive, steps, np.float32(0))
        full = np.rint(top * steps)
    column = np.where(alive & (top > span), size.argmax(axis=-1), 0)
    largest = np.take_along_axis(x, column[..., None], axis=-1)[..., 0]
    sign = np.where(alive & (top > span) & (largest < 0), np.float32(-1), np.float32(1))
    codes = np.clip(np.rint(x * (sign * steps)[..., None]), -127, 127)
    scale = np.where(alive, sign * (span / np.float32(127)), np.float32(0))
    excess = np.clip(full - 127, 0, 127 * (REACH - 1))
    return codes.astype(np.int8), np.stack([scale, column.astype(np.float32), excess], axis=-1)


@op
def quantise_tokens(x: Array, reader: Weight | None = None) -> tuple[Codes, Array]:
    """Rows of int8 with one scale each.  x [..., K], K a multiple of 64 -> codes i8 [..., K], headers f32 [..., 3]

    Specified in float32, to the bit. span is the second largest magnitude of a row, or a fifth of the largest where
    that is more; codes are round(x * (127 / span)), to nearest even. Only the largest element may exceed 127: a row's
    header holds the scale, span / 127, that element's column, and the excess of its code over 127. The sign of the
    scale makes the excess positive. A row of zeros, or of values so small that 127 / span would overflow, has scale 0
    and codes 0.

    `reader` is the weight of the product that will read the rows: they are multiplied with its `column_factors` first.
    """
    rows = x.astype(np.float32)
    return token_codes(rows if reader is None else rows * column_factors(reader))


def _rows_of(where: str, x: Spec, reader: Spec | None) -> None:
    what = f"must have rows of a multiple of {I8_STEP} elements, at most {I8_DEPTH}"
    require(x.rank >= 1 and takes_i8(x.shape[-1]), where, what, field="x", given=x)
    if reader is not None:
        fits = reader.rank == 2 and reader.shape[1] == x.shape[-1] and not reader.dtype.quantised
        require(fits, where, f"must be floats [N, {x.shape[-1]}] to multiply {x}", field="reader", given=reader)


@quantise_tokens.shape
def quantise_tokens_shape(x: Spec, reader: Spec | None) -> tuple[Spec, Spec]:
    _rows_of("quantise_tokens", x, reader)
    return x.like(*x.shape, dtype="i8"), x.like(*x.shape[:-1], 3, dtype="f32")


@quantise_tokens.cost
def quantise_tokens_cost(x: Spec, reader: Spec | None) -> Cost:
    return Cost(flops=6 * x.size, bytes=x.nbytes + x.size)


@quantise_tokens.samples
def quantise_tokens_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for shape in [(1, 64), (3, 128), (2, 3, 64), (17, 192)]:
        yield (normal(rng, *shape), None), {}
        yield (normal(rng, *shape), normal(rng, 5, shape[-1])), {}
    yield (strided(rng, 5, 64), None), {}
    yield (np.clip(ugly(rng, 5, 128), -1e6, 1e6), None), {}
    ties = np.float32(0.5) * np.arange(-64, 64, dtype=np.float32).reshape(1, 128)
    yield (ties, None), {}  # of codes, after the first
    tall = normal(rng, 6, 64)
    tall[0] = 0
    tall[1:, 7] = [1e30, -100, 9, -9, 2]  # far above the rest, of either sign, within REACH
    tall[2, 8] = 100  # two elements of equal magnitude
    yield (tall, weight(rng, "bf16", 3, 64)), {}


quantise_tokens.no_gradient("rounding is flat almost everywhere; training runs with f32 activations")
quantise_tokens.tolerance(f32=0.0, because="the codes are specified to the bit")


@op
def matmul_i8(
    x: Codes,
    headers: Array,
    weight: Weight,
    bias: Weight | None = None,
    reader: Weight | None = None,
    *,
    activation: ActivationOrNone = "none",
    equalised: bool = False,
    quantised: bool = False,
) -> Array | tuple[Codes, Array]:
    """act(x Wᵀ + b).  x i8 [..., K], headers [..., 3], weight of floats [N, K], bias [N] or absent -> [..., N]

    x and headers are results of quantise_tokens, whose reader was this weight where this is `equalised`. The weight is
    rounded once, when it is bound: see `channel_codes`. With `quantised` the result is codes and headers, as
    quantise_tokens would make them for `reader`, the weight of the next product; gelu is then a polynomial (1.5e-4).
    """
    codes, scales = channel_codes(weight, equalised)
    rows = x.astype(np.float64).reshape(-1, x.shape[-1])
    header = headers.reshape(-1, 3)
    column = np.clip(header[:, 1], 0, x.shape[-1] - 1).astype(np.int64)
    rows[np.arange(len(rows)), column] += np.clip(header[:, 2], 0, 127 * (REACH - 1)).astype(np.int64)
    total = (rows @ codes.T.astype(np.float64) * scales * header[:, :1]).reshape(*x.shape[:-1], -1)
    result = _activation(activation, total if bias is None else total + bias)
    return quantise_tokens.reference(result, reader) if quantised else result


@matmul_i8.shape
def matmul_i8_shape(
    x: Spec,
    headers: Spec,
    weight: Spec,
    bias: Spec | None,
    reader: Spec | None,
    *,
    activation: str,
    equalised: bool,
    quantised: bool,
) -> Spec | tuple[Spec, Spec]:
    require(x.dtype.name == "i8", "matmul_i8", "must be i8", field="x", given=x, advice="use quantise_tokens first")
    _rows_of("matmul_i8", x, None)
    fits = headers.shape == (*x.shape[:-1], 3)
    require(fits, "matmul_i8", f"must have 3 numbers for every row of x {x}", field="headers", given=headers)
    dense = not weight.dtype.quantised
    require(dense, "matmul_i8", "must be floats", field="weight", given=weight, advice="use matmul_q")
    result = product_shape("matmul_i8", x, weight, bias).like(*x.shape[:-1], weight.shape[0], dtype="f32")
    require(reader is None or quantised, "matmul_i8", "needs quantised=True", field="reader", given=reader)
    if not quantised:
        return result
    _rows_of("matmul_i8", result, reader)
    small = result.shape[-1] <= I8_COLUMNS and x.shape[-1] <= I8_COLUMNS
    require(small, "matmul_i8", f"quantised needs rows of at most {I8_COLUMNS}: x is {x}, the result {result}")
    return result.like(*result.shape, dtype="i8"), result.like(*result.shape[:-1], 3)


@matmul_i8.cost
def matmul_i8_cost(
    x: Spec,
    headers: Spec,
    weight: Spec,
    bias: Spec | None,
    reader: Spec | None,
    *,
    activation: str,
    equalised: bool,
    quantised: bool,
) -> Cost:
    one, out = product_cost(x, weight, bias), x.size // x.shape[-1] * weight.shape[0]
    return Cost(flops=one.flops, bytes=one.bytes - weight.nbytes + weight.size - (3 * out if quantised else 0))


@matmul_i8.samples
def matmul_i8_samples(rng: np.random.Generator) -> Iterator[Sample]:
    for rows, n, k in [(1, 1, 64), (1, 17, 64), (3, 16, 128), (17, 33, 192), (65, 48, 64)]:
        yield (*quantise_tokens(normal(rng, rows, k)), normal(rng, n, k)), {}
    for dtype in ("f16", "bf16"):
        matrix = weight(rng, dtype, 21, 128)
        x = quantise_tokens(normal(rng, 2, 3, 128) * np.float32(10.0) ** rng.integers(-3, 3, (2, 3, 1)), matrix)
        yield (*x, matrix, normal(rng, 21)), {"equalised": True}
    for kind in ACTIVATIONS:
        yield (*quantise_tokens(ugly(rng, 3, 64)), normal(rng, 17, 64), normal(rng, 17)), {"activation": kind}
    # Whole numbers with a scale of one are exact, so only one result is right.
    x, w = (rng.integers(-9, 10, size).astype(np.float32) for size in ((35, 64), (128, 64)))
    x[:, :3], w[:, 5] = (127, -127, 300), 127
    yield (*quantise_tokens(x), w, None, None), {"quantised": True}
    yield (*quantise_tokens(x), w, None, normal(rng, 7, 128)), {"quantised": True, "activation": "relu"}


matmul_i8.no_gradient("its rows are integers; training runs with f32 activations")
matmul_i8.tolerance(f32=chain(256), because="integers are exact; then the roundings of matmul_bf16's activations")
