"""Rotations: compute cosines and sines once for all layers, and rotate keys as they are written to the state."""

from typing import Any

from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.registry import find


def fuse_rope(program: Program) -> Program:
    """rope -> rope_turn with a rope_table that all rotations of one kind share; then, where keys go into a state,
    rope_turn of queries, rope_turn of keys and kv_write -> rope_write. Results keep their bits.
    """
    return _into_write(_by_table(program))


def _by_table(program: Program) -> Program:
    values, body = list(program.values), []
    tables: dict[tuple[Any, ...], str] = {}
    same: dict[str | None, str] = {}  # a table that is made again -> the first one
    for instr in program.body:
        if instr.op == "rope_table":
            first = tables.setdefault((*instr.inputs, instr.attrs["scale"]), instr.outputs[0])
            same[instr.outputs[0]] = first
            if first == instr.outputs[0]:
                body.append(instr)
            continue
        if instr.op != "rope":
            inputs = tuple(same.get(name, name) for name in instr.inputs)
            body.append(Instr(instr.op, inputs, instr.outputs, instr.attrs) if inputs != instr.inputs else instr)
            continue
        positions, inv_freq, attrs = str(instr.inputs[1]), str(instr.inputs[2]), {"scale": instr.attrs["scale"]}
        key = (positions, inv_freq, None, instr.attrs["scale"])
        if key not in tables:
            tables[key] = f"%table{len(tables)}"
            (spec,) = find("rope_table").infer(
                [program.table[positions].spec, program.table[inv_freq].spec, None], attrs
            )
            values.append(Value(tables[key], "buffer", spec.dtype, spec.shape))
            body.append(Instr("rope_table", (positions, inv_freq, None), (tables[key],), attrs))
        attrs = {"interleaved": instr.attrs["interleaved"]}
        body.append(Instr("rope_turn", (instr.inputs[0], tables[key]), instr.outputs, attrs))
    return arrange(program.name, values, body)


def _into_write(program: Program) -> Program:
    body: list[Instr | None] = list(program.body)
    for index, write in enumerate(program.body):
        if write.op != "kv_write":
            continue
        key = program.writer.get(str(write.inputs[0]), -1)
        query = _query(program, index, key)
        if query is None:
            continue
        (q, table), (k, _) = program.body[query].inputs, program.body[key].inputs
        operands = (q, k, write.inputs[1], table, *write.inputs[2:])
        body[index] = Instr("rope_write", operands, program.body[query].outputs, program.body[query].attrs)
        body[query] = body[key] = None
    return arrange(program.name, program.values, filter(None, body))


def _query(program: Program, write: int, key: int) -> int | None:
    """The rope_turn of the queries that read the keys of the kv_write at `write`, if it can be fused: the keys are
    rotated in the same way, and only for that kv_write.
    """
    if key < 0 or program.body[key].op != "rope_turn" or program.only_reader(program.body[key].outputs[0]) != write:
        return None
    turned, state = program.body[key], str(program.body[write].inputs[2])
    for reader in program.readers[state]:
        index = program.writer.get(str(program.body[reader].inputs[0]), -1)
        turn = program.body[index] if reader > write > index >= 0 else None
        if turn is None or turn.op != "rope_turn" or turn.inputs[1] != turned.inputs[1] or turn.attrs != turned.attrs:
            continue
        if all(other > write for other in program.readers[turn.outputs[0]]):
            return index
    return None
