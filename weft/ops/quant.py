"""int8 activations: rows quantised block by block, and their product with a quantised weight."""

from collections.abc import Iterator

import numpy as np

from weft.dtype import DTYPES
from weft.ops.elementwise import activation as _activation
from weft.ops.matmul import product_cost, product_shape
from weft.ops.packed import A8, Packed, wide
from weft.ops.registry import ActivationOrNone, Array, Cost, Rows, Sample, Weight, op, require
from weft.ops.samples import normal, strided, ugly, weight
from weft.ops.spec import Spec
from weft.ops.tolerance import chain

# Weight types that have an int8 path, and the activation block each of them is multiplied with.
INT8_BLOCK = {
    **dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"), 32),
    **dict.fromkeys(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"), 256),
}


@op
def quantise_rows(x: Array, *, block: int) -> Rows:
    """Rows of int8 with a scale per block and the sums of 16 neighbours.  x [..., K] -> a8_32 or a8_256 [..., K]

    Specified in float32, to the bit, because a rounding decides a code. Block 32: d = max|x| / 127 and
    q = round(x * (127 / max|x|)). Block 256: m is the value of largest magnitude with its sign, the first one where
    several are; d = m / -127 and q = min(127, round(x * (-127 / m))). Rounding is to nearest even. A block of zeros, or
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
def _(x: Spec, *, block: int) -> Spec:
    require(block in (32, 256), "quantise_rows", f"block must be 32 or 256: got {block}")
    whole = x.rank >= 1 and isinstance(x.shape[-1], int) and x.shape[-1] % block == 0
    require(whole, "quantise_rows", f"rows of x {x} are not whole blocks of {block}")
    return x.like(*x.shape, dtype=f"a8_{block}")


@quantise_rows.cost
def _(x: Spec, *, block: int) -> Cost:
    return Cost(flops=4 * x.size, bytes=x.nbytes + x.size * DTYPES[f"a8_{block}"].size_bytes // block)


@quantise_rows.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
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


@op
def matmul_q(x: Rows, weight: Weight, bias: Weight | None = None, *, activation: ActivationOrNone = "none") -> Array:
    """act(x Wᵀ + b).  x int8 rows [..., K], weight [N, K] with an int8 path, bias [N] or absent -> f32 [..., N]"""
    product = wide_rows(x) @ wide(weight).T
    return _activation(activation, product if bias is None else product + bias)


def wide_rows(x: Packed) -> np.ndarray:
    """What the int8 rows stand for: d * q, exact in float64."""
    blocks = x.data.view(A8[x.dtype.name])
    return (blocks["d"].astype(np.float64)[:, None] * blocks["q"]).reshape(x.shape)


@matmul_q.shape
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str) -> Spec:
    block = INT8_BLOCK.get(weight.dtype.name)
    require(block is not None, "matmul_q", f"weight {weight} has no int8 path; use matmul")
    require(x.dtype.block == block, "matmul_q", f"rows {x} do not fit weight {weight}; quantise with block {block}")
    result = product_shape("matmul_q", x, weight, bias)
    return result.like(*result.shape, dtype="f32")


@matmul_q.cost
def _(x: Spec, weight: Spec, bias: Spec | None, *, activation: str) -> Cost:
    return product_cost(x, weight, bias)


@matmul_q.samples
def _(rng: np.random.Generator) -> Iterator[Sample]:
    for dtype, block in INT8_BLOCK.items():
        for rows, n, blocks in [(1, 1, 1), (3, 17, 2), (17, 16, 3)]:
            x = quantise_rows(normal(rng, rows, block * blocks), block=block)
            yield (x, weight(rng, dtype, n, block * blocks), None), {}
        x = quantise_rows(normal(rng, 5, 2 * block) * np.float32(10.0) ** rng.integers(-3, 3, (5, 1)), block=block)
        yield (x, weight(rng, dtype, 33, 2 * block), normal(rng, 33)), {"activation": "silu"}


matmul_q.no_gradient("its rows are integers; training runs with f32 activations")
matmul_q.tolerance(
    f32=chain(256),
    a8_32=chain(256),
    a8_256=chain(256),
    because="integers are exact; one f32 chain over the blocks of a row",
)
