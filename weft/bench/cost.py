"""The least cost of a token, counted from the program: bytes of weights read, operations of the products.

Attention is not counted: at the lengths that are measured it is small compared with the products.
"""

from collections.abc import Iterator

from weft.bench.roofs import Roofs, roof_label
from weft.frozen import frozen
from weft.graph.program import Program, Value
from weft.ops.spec import linear

LOOKED_UP = ("embedding",)  # a token reads one row of the table
# The units that run a product, best first, by what activations are rounded to.
UNITS = {
    "int4": ("amx_int8", "int8", "f32"),
    "int8": ("amx_int8", "int8", "f32"),
    "bf16": ("amx_bf16", "f32"),
    "f16": ("f16", "f32"),
    "f32": ("f32",),
}


@frozen
class Cost:
    """Of one step: `read_bytes` in all, `flops` per token, `row_flops` per row of the result."""

    read_bytes: int
    flops: int
    row_flops: int


@frozen
class Ceiling:
    """The highest possible rate, `most` per second, because of the roof `name`."""

    name: str
    most: float


def cost_of(program: Program) -> Cost:
    read_bytes = flops = row_flops = 0
    for weight, written in _products(program):
        read_bytes += weight.spec.nbytes
        if linear(written.shape[0]).T:
            flops += 2 * weight.spec.size
        else:
            row_flops += 2 * weight.spec.size
    return Cost(read_bytes, flops, row_flops)


def _products(program: Program) -> Iterator[tuple[Value, Value]]:
    """Every weight matrix that is multiplied, and the value its product is written to."""
    for instr in program.body:
        if instr.op in LOOKED_UP:
            continue
        for name in instr.operands:
            value = program.table[name]
            if value.kind == "weight" and len(value.shape) == 2:
                yield value, program.table[instr.outputs[0]]


def decode_ceiling(cost: Cost, roofs: Roofs, sequences: int = 1) -> Ceiling:
    """Tokens per second of `sequences` at once: a step reads every weight once and yields a token for each."""
    name = roof_label("read", roofs.size(cost.read_bytes))
    return Ceiling(name, sequences * roofs.read(cost.read_bytes).high / cost.read_bytes)


def token_ceiling(flops: float, roofs: Roofs, compute: str) -> Ceiling | None:
    """Tokens per second at `flops` operations per token, in the best unit for `compute`."""
    found = roofs.best(*UNITS[compute])
    return Ceiling(found[0], found[1].high / flops) if found and flops else None
