"""When each buffer is live, and when a result may overwrite an operand: shared by plan and verify."""

from dataclasses import dataclass

from weft.graph.program import Instr, Program


@dataclass
class Lifetime:
    """A buffer and its reshapes, which share its memory: from the first write to the last read of any of them."""

    root: str
    start: int
    end: int
    members: set[str]


def lifetimes(program: Program) -> dict[str, Lifetime]:
    """The lifetime each buffer belongs to, by the buffer's name."""
    buffers = {value.name for value in program.of_kind("buffer")}
    found: dict[str, Lifetime] = {}
    for index, instr in enumerate(program.body):
        for name in instr.operands:
            if name in found:
                found[name].end = index
        for name in instr.outputs:
            if name not in buffers:
                continue
            if instr.op == "reshape" and instr.inputs[0] in found:
                found[name] = found[str(instr.inputs[0])]
                found[name].members.add(name)
            else:
                found[name] = Lifetime(name, index, index, {name})
    return found


def may_overwrite(program: Program, instr: Instr, result: str, members: set[str]) -> bool:
    """Whether `result` of `instr` may lie in the memory of `members`, which `instr` is the last to read.

    Every operand among them must be one that the op may overwrite, with the shape and type of the result.
    """
    op, table = instr.meaning, program.table
    place = instr.outputs.index(result)
    allowed = op.in_place[place] if place < len(op.in_place) else ()
    read = [i for i, name in enumerate(instr.inputs) if name in members]
    return bool(read) and all(i in allowed and table[str(instr.inputs[i])].spec == table[result].spec for i in read)
