"""Products on CUDA: on matrix units, from one row up; all of them add up in the order of kernels/lib/fragments.cu."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.backends.webgpu.launch import PART, WIDE_NORM, Defines, Launch
from weft.backends.webgpu.products import Multiply, Product, Rows
from weft.frozen import frozen
from weft.ops.spec import linear

SEGMENT = 256  # columns that are one chain
MOST_WARPS = 16
LONGEST_ROW = 10_240  # columns; longer rows are split by a dispatch of their own, as are those whose parts have more
MOST_PARTS = 22_528  # numbers of 16 bits: with sums and norms what a group has without being asked, 48 KB
NARROW = 1_536  # rows of a weight up to which more workgroups are worth more than wide ones
BLOCKS_WIDE, FLOATS_WIDE = 2, 4  # eights of columns that a warp takes of blocks of integers or f32, and of halves


MANY_COLUMNS, EIGHTS = 16_384, 4  # from so many columns on a workgroup takes so many eights of one row's

TILED = ("f32", "f16", "bf16")  # weights


@frozen
class Tile:
    """What a workgroup of matmul_tiles takes: `tall` times 16 rows and `wide` times 8 columns for each of its `down`
    times `across` warps. It keeps `ahead` lots of `chunks` times 32 columns, and the one that it multiplies."""

    tall: int
    down: int
    across: int
    chunks: int
    ahead: int
    wide: int = 4

    @property
    def rows(self) -> int:
        return 16 * self.tall * self.down

    @property
    def columns(self) -> int:
        return 8 * self.wide * self.across

    def defines(self, parts: int, quads: int) -> Defines:
        """Of rows in `parts`, and of a weight of which 32 columns are so many times 16 bytes."""
        lot = self.chunks * (4 * parts * self.rows + quads * self.columns)
        sizes = {"TALL": self.tall, "WIDE": self.wide, "ACROSS": self.across, "ROWS": self.rows}
        sizes |= {"COLUMNS": self.columns, "LANES": 32 * self.down * self.across, "CHUNKS": self.chunks}
        sizes |= {"AHEAD": self.ahead, "LAUNCHED": (self.ahead + 1) * lot}
        return tuple((name, str(size)) for name, size in sizes.items())


# By the type of the weight, or where numbers have one part: on an H200 the fastest of eight to twelve, or within 7 % of
# it (docs/LOG.md).
TILES = {
    "single": Tile(2, 2, 2, chunks=1, ahead=3),
    "f16": Tile(2, 2, 2, chunks=1, ahead=3),
    "bf16": Tile(2, 2, 2, chunks=1, ahead=2),
    "f32": Tile(2, 2, 2, chunks=1, ahead=2),
}


def _warps(depth: int) -> int:
    segments = -(-depth // SEGMENT)
    return -(-segments // -(-segments // MOST_WARPS))


def _given(multiply: Multiply, defines: Defines) -> tuple[Defines, int, int]:
    """All definitions, the parts of a number, and columns padded."""
    bfloat = multiply.stored == "bf16"
    parts = 1 if multiply.compute != "f32" else 3 if bfloat else 2
    twos = multiply.paired or multiply.rounded
    return (*defines, ("BFLOAT", str(bfloat)), ("TWOS", str(twos))), parts, -(-multiply.depth // PART) * PART


def one_row(
    product: Product, multiply: Multiply, part: Rows, places: dict[str, Any], defines: Defines
) -> Iterator[Launch]:
    """The row split by every workgroup."""
    given, parts, padded = _given(multiply, defines)
    if multiply.depth > LONGEST_ROW or parts * padded > MOST_PARTS or multiply.compute == "bf16":
        yield from few_rows(replace(FEW, least=product.least, most=product.most), multiply, part, places, defines)
        return
    warps = _warps(multiply.depth)
    lanes = 32 * warps
    sizes = {
        "LANES": lanes,
        "WARPS": warps,
        "TURNS_OF_X": -(-padded // (SEGMENT * warps)),
        "PADDED": padded,
        "DEEP": multiply.depth,
    }
    turns = EIGHTS if part.rows >= MANY_COLUMNS and multiply.depth <= warps * SEGMENT else 1
    sizes |= {"XS": parts * padded // 2, "SUMS": 8 * warps, "EIGHTS": turns}
    sizes |= {"SEGMENTS": -(-padded // SEGMENT)}
    given += tuple((name, str(size)) for name, size in sizes.items())
    buffers: tuple[Any, ...] = (*multiply.bias,)
    if multiply.norm is None:
        places = places | {"x": multiply.x}
    else:
        given += (_lanes_of_norm(multiply),)
        places = places | {"x": multiply.norm.source, "eps": multiply.norm.eps}
    buffers += (part.buffer,) if multiply.norm is None else (part.buffer, multiply.norm.gain)
    yield Launch(
        "matmul_one",
        given,
        places,
        buffers,
        multiply.rows,
        1,
        -(-part.rows // (8 * turns)),
        product.least,
        product.most,
    )


def _split(product: Product, multiply: Multiply, places: dict[str, Any], defines: Defines) -> Iterator[Launch]:
    """The parts of x, after its norm, in the scratch memory; `places` gets where they are. Rows of bfloats stay."""
    given, parts, padded = _given(multiply, defines)
    if multiply.compute == "bf16":
        places |= {"split": multiply.x, "padded": padded}
        return
    each, segments = parts * padded // 2, -(-padded // SEGMENT)
    places |= {"split": multiply.scratch, "scales": linear(multiply.scratch) + multiply.rows * each, "padded": padded}
    numbers = {name: places[name] for name in ("split", "scales")}
    numbers |= {"x": multiply.x, "rows": multiply.rows}
    pairs = -(-padded // 512)
    sizes = {"DEEP": multiply.depth, "PADDED": padded, "EACH": pairs, "BFLOAT": dict(given)["BFLOAT"]}
    sizes |= {"SINGLE": parts == 1, "TOPS": 8 * pairs}
    made = tuple((name, str(size)) for name, size in sizes.items())
    buffers: tuple[Any, ...] = ()
    if multiply.norm is not None:
        numbers |= {"x": multiply.norm.source, "eps": multiply.norm.eps}
        made, buffers = (*made, _lanes_of_norm(multiply)), (multiply.norm.gain,)
    beside = multiply.rows * (each + segments)
    yield Launch("split_rows", made, numbers, buffers, multiply.rows, 1, 1, product.least, product.most, beside=beside)


def _lanes_of_norm(multiply: Multiply) -> tuple[str, str]:
    return "NORM", "256" if multiply.depth >= WIDE_NORM else "64"


def few_rows(
    product: Product, multiply: Multiply, part: Rows, places: dict[str, Any], defines: Defines
) -> Iterator[Launch]:
    """Sixteen rows, or a few times sixteen, a workgroup."""
    here = dict(places)
    yield from _split(product, multiply, here, defines)
    given, _, _ = _given(multiply, defines)
    tall, warps = -(-product.rows // 16), _warps(multiply.depth)
    lanes = 32 * warps
    sizes = {"LANES": lanes, "WARPS": warps, "TALL": tall, "SUMS": 128 * tall * warps, "OWN": -(-128 * tall // lanes)}
    given += tuple((name, str(size)) for name, size in sizes.items())
    buffers = (*multiply.bias, part.buffer)
    times = -(-part.rows // 8)
    most = product.most
    yield Launch("matmul_few", given, here, buffers, multiply.rows, product.rows, times, product.least, most)


def many_rows(
    product: Product, multiply: Multiply, part: Rows, places: dict[str, Any], defines: Defines
) -> Iterator[Launch]:
    here = dict(places)
    yield from _split(product, multiply, here, defines)
    few = product is MANY_ROWS and part.rows <= NARROW
    wide = FLOATS_WIDE if multiply.stored in ("f16", "bf16") and not few else BLOCKS_WIDE
    given = (*_given(multiply, defines)[0], ("WIDE", str(wide)), ("BROAD", str(16 * wide)))
    buffers = (*multiply.bias, part.buffer)
    times = -(-part.rows // (16 * wide))
    most = product.most
    yield Launch("matmul_many", given, here, buffers, multiply.rows, product.rows, times, product.least, most)


def tiles(
    product: Product, multiply: Multiply, part: Rows, places: dict[str, Any], defines: Defines
) -> Iterator[Launch]:
    """Weights of floats by tiles that are copied while others are multiplied; blocks of integers as many_rows."""
    if multiply.stored not in TILED:
        for one in (MANY_ROWS, MOST_ROWS):
            yield from many_rows(one, multiply, part, places, defines)
        return
    here = dict(places)
    yield from _split(product, multiply, here, defines)
    given, parts, _ = _given(multiply, defines)
    tile = TILES["single" if parts == 1 else multiply.stored]
    made = (*given, *tile.defines(parts, 8 if multiply.stored == "f32" else 4))
    times, least, most = -(-part.rows // tile.columns), product.least, product.most
    yield Launch(
        "matmul_tiles", made, here, (*multiply.bias, part.buffer), multiply.rows, tile.rows, times, least, most
    )


ROW = Product("matmul_one", 1, 8, most=1, launches=one_row, norms=True)
FEW = Product("matmul_few", 16, 8, least=2, most=16, launches=few_rows, norms=True)
SOME = Product("matmul_few", 32, 8, least=17, most=48, launches=few_rows, norms=True)
MANY_ROWS = Product("matmul_many", 128, 64, least=49, most=767, launches=many_rows, norms=True)
MOST_ROWS = Product("matmul_many", 128, 64, least=768, launches=many_rows, norms=True)
TILED_ROWS = Product("matmul_tiles", 64, 64, least=49, launches=tiles, norms=True)
MATRIX_PRODUCTS = (ROW, FEW, SOME, TILED_ROWS)
