"""Steps of one row: a layer's attention, and what follows it, in one launch each, on GPUs with clusters: decision 0067.

A launch leaves the sums of its last product in parts, one for each cluster. The next one adds them up, keeps their sum
and goes on from there, so parts and sums have two places each in the scratch memory, in turn; the last one adds up its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from weft.backends.base import fixed
from weft.backends.webgpu.fuse import Unit, fused_product, launches
from weft.backends.webgpu.launch import ROW_BLOCKS, WIDE_NORM, WORD, Call, Defines, Form, Launch
from weft.backends.webgpu.products import Multiply
from weft.frozen import frozen
from weft.graph.program import Instr, Program
from weft.ops.spec import linear

CLUSTERS = 90  # the capability of the first GPUs that have them
TOGETHER = 8  # workgroups of a cluster
SEGMENT = 256  # columns of the second weight that a cluster has
DEEPEST = 1024  # columns of the first weight: its rows and those of the second one lie in a workgroup's memory
GROUP_MEMORY = 227 << 10
MEMORY = 208_896  # bytes of those; the others are for numbers
STORED = ("f16",)
GROUPS = (2, 4, 8)  # heads that share keys
SHARES = 8192  # bytes of attention's shares of keys

Calls = Callable[[Instr], Call]


@frozen(eq=False)
class Row:
    """A launch for steps of one row, in place of those of some units. It adds a product to `x`, of so many `columns`;
    the sum's place is `out`."""

    launch: Launch
    units: tuple[Unit, ...]
    x: Form
    out: Form
    columns: int
    clusters: int


def rows_of(program: Program, units: Sequence[Unit], call: Calls) -> Iterator[Row]:
    chain: list[Row] = []
    for at, unit in enumerate(units):
        found = _gated(program, units[at : at + 2], call) or _attention(program, _without_names(units[at:]), call)
        if found is None or unit is not found.units[0]:
            continue
        if chain and not _follows(program, chain[-1], found, units):
            yield from _linked(chain, call)
            chain = []
        chain.append(found)
    yield from _linked(chain, call)


def _follows(program: Program, before: Row, row: Row, units: Sequence[Unit]) -> bool:
    """Whether x is what the one before results in, and nothing else reads that or is launched in between."""
    (at,) = (index for index, unit in enumerate(units) if unit is before.units[-1])
    between = units[at + 1 : next(index for index, unit in enumerate(units) if unit is row.units[0])]
    quiet = all(unit.folded or unit.instr.op == "reshape" for unit in between)
    last = before.units[-1].also[-1].outputs[:1]
    return (
        quiet
        and row.x == before.out
        and row.columns == before.columns
        and _alone(program, last, (*between, *row.units))
    )


def _linked(chain: Sequence[Row], call: Calls) -> Iterator[Row]:
    """Launches that follow each other, with the places of what they leave."""
    most = max((row.clusters * row.columns for row in chain), default=0)
    for at, row in enumerate(chain):
        device = call(row.units[0].instr).device
        base, deep = linear(row.launch.params["scratch"]), row.columns
        places = {name: value for name, value in row.launch.params.items() if name != "scratch"}
        places["parts"] = base + at % 2 * most
        kept = [base + 2 * most + side * deep for side in (0, 1)]
        buffers, defines = row.launch.buffers, row.launch.defines
        if at:
            x = chain[0].x if at == 1 else kept[(at - 1) % 2]
            places |= {"x": x, "before": base + (at - 1) % 2 * most, "kept": kept[at % 2]}
            defines += (("SUMMED", str(chain[at - 1].clusters)),)
        if at + 1 == len(chain):
            places["out"] = row.out
            defines += (("FINAL", "1"),)
            buffers = (buffers[0], device.counters, *buffers[1:])
        beside = 2 * most + 2 * deep
        yield replace(row, launch=replace(row.launch, params=places, defines=defines, buffers=buffers, beside=beside))


def _without_names(units: Sequence[Unit]) -> Sequence[Unit]:
    """The first four that compute something from what others do."""
    return [unit for unit in units[:12] if unit.instr.op not in ("reshape", "rope_table")][:4]


def _alone(program: Program, names: Sequence[str], readers: Sequence[Unit]) -> bool:
    """Whether only these units read the values, by any name."""
    mine = {id(one) for unit in readers for one in (unit.instr, *unit.also)}
    for name in names:
        if program.table[name].kind != "buffer":
            return False
        for at in program.readers[name]:
            reader = program.body[at]
            again = reader.op == "reshape" and _alone(program, reader.outputs, readers)
            if not again and id(reader) not in mine:
                return False
    return True


def _second(unit: Unit, call: Calls, x: Form, columns: int) -> Multiply | None:
    """A product of what came before, to which something is added."""
    if unit.instr.op != "matmul" or not unit.also or unit.also[-1].op not in ("add", "add_rms_norm"):
        return None
    second = fused_product(unit, call)
    wanted = second.x == x and second.depth == columns and second.residual is not None and second.norm is None
    return second if wanted and _fits(second) and second.activation == "none" else None


def _fits(product: Multiply) -> bool:
    part = product.parts[0]
    plain = len(product.parts) == 1 and product.groups is None and not product.bias and not product.far
    return plain and product.compute == "f32" and product.stored in STORED and part.first == 0


def _common(first: Multiply, second: Multiply, rows: int, parts: int = 0) -> tuple[Defines, dict[str, Any], int] | None:
    """Definitions and parameters, and the clusters; `parts`: bytes that come where the first weight was."""
    assert first.norm is not None and second.residual is not None
    out, deep, clusters = second.parts[0].rows, first.depth, second.depth // SEGMENT
    at = max(rows * (deep // 8 + 4), parts // 16)  # where the second weight begins
    slots = at + out // TOGETHER * (SEGMENT // 8 + 4)
    if first.norm.source != second.residual or out != deep or deep % SEGMENT or deep > DEEPEST:
        return None
    if second.depth % SEGMENT or rows % 8 or 16 * slots > MEMORY:
        return None
    sizes = {"DTYPE": first.stored, "BFLOAT": False, "DEEP": deep, "OUT": out, "ROWS": rows, "XS": deep // 4}
    sizes |= {"SUMS": rows * deep // SEGMENT, "TOPS": 16, "SLOTS": slots, "SECOND_AT": at}
    sizes |= {"NORM": 256 if deep >= WIDE_NORM else 64}
    places: dict[str, Any] = {"x": first.norm.source, "eps": first.norm.eps, "scratch": first.scratch}
    places |= {"stride": first.stride, "stride2": second.stride, "clusters": clusters}
    places |= {"start": first.parts[0].start, "start2": second.parts[0].start}
    return tuple((name, str(value)) for name, value in sizes.items()), places, clusters


def _gated(program: Program, units: Sequence[Unit], call: Calls) -> Row | None:
    """act(G n) * (U n) for the norm n of x, times a weight, and x."""
    if len(units) < 2 or not units[0].also or units[0].also[-1].op != "gated" or units[0].norm is None:
        return None
    first = fused_product(units[0], call)
    (place, width), last = first.results[0], units[0].also[-1].outputs
    second = _second(units[1], call, place, width)
    if second is None or not _fits(first) or not _alone(program, last, units[1:2]):
        return None
    common = _common(first, second, 2 * SEGMENT // TOGETHER)
    if common is None:
        return None
    defines, places, clusters = common
    defines += (("ACTIVATION", first.activation),)
    assert first.norm is not None
    buffers = (second.parts[0].buffer, first.parts[0].buffer, first.norm.gain)
    times = clusters * TOGETHER
    launch = Launch("gated_row", defines, places | {"width": width}, buffers, first.rows, 1, times, row=True)
    return Row(launch, tuple(units), places["x"], second.results[0][0], first.depth, clusters)


def _attention(program: Program, units: Sequence[Unit], call: Calls) -> Row | None:
    """Attention over pages, of queries, keys and values that a weight makes of the norm of x, times a weight, and x."""
    if len(units) < 4 or [unit.instr.op for unit in units] != ["matmul", "rope_write", "attention_paged", "matmul"]:
        return None
    product, turn, attend, _ = units
    if product.norm is None or len(product.also) != 2 or {one.op for one in product.also} != {"matmul"}:
        return None
    first = fused_product(product, call)
    (rotation,) = launches(turn, call)
    kept = call(attend.instr)
    heads, dim = fixed(kept.shape(0)[1:])
    state = kept.values[1]
    assert state is not None
    key_heads, _ = fixed(state.shape)
    group, given = heads // key_heads, dict(rotation.defines)
    widths = [width for _, width in first.results]
    known = [place for place, _ in first.results] == [rotation.params[name] for name in ("q", "k", "v")]
    known = known and rotation.params["out"] == kept.at(0) and not kept.given(5) and not kept.given(6)
    known = known and widths == [heads * dim, key_heads * dim, key_heads * dim] and given["KV"] == "f16"
    known = known and group * dim == SEGMENT and group in GROUPS and "CENTRED" not in given
    second = _second(units[3], call, kept.out(), heads * dim) if known else None
    names = [name for one in (product.instr, *product.also) for name in one.outputs]
    if second is None or not _fits(first) or not _alone(program, names, units[1:2]):
        return None
    if not _alone(program, turn.instr.outputs, units[2:3]) or not _alone(program, attend.instr.outputs, units[3:4]):
        return None
    parts = WORD * ROW_BLOCKS * group * (dim + 2) + SHARES
    common = _common(first, second, (group + 2) * dim // TOGETHER, parts)
    if common is None:
        return None
    defines, places, clusters = common
    sizes = {"ACTIVATION": "none", "NORMED": given.get("NORMED", "0"), "INTERLEAVED": given["INTERLEAVED"], "DIM": dim}
    sizes |= {"GROUP": group, "ALL": (group + 2) * dim, "KEY_WORDS": dim // 8, "BLOCKS_AT_ONCE": 32 * group}
    sizes |= {"PAIRS": rotation.params["pairs"], "TWO_DIMS": 2 * dim}
    defines += tuple((name, str(value)) for name, value in sizes.items())
    tables = call(turn.instr)
    places |= {"heads": heads, "key_heads": key_heads, "positions": kept.at(2), "pages": kept.at(4)}
    places |= {"table": tables.at(3), "window": kept.attrs["window"]}
    places |= {"scale": float(kept.attrs["scale"]), "cap": float(kept.attrs["softcap"])}
    places |= {name: rotation.params.get(name, 0.0) for name in ("q_eps", "k_eps")}
    assert first.norm is not None
    buffers: tuple[Any, ...] = (second.parts[0].buffer, first.parts[0].buffer, first.norm.gain)
    buffers += (kept.bound(1).buffer, *(rotation.buffers[:2] if given.get("NORMED") else ()))
    launch = Launch("attend_row", defines, places, buffers, first.rows, 1, clusters * TOGETHER, row=True)
    return Row(launch, tuple(units), places["x"], second.results[0][0], first.depth, clusters)
