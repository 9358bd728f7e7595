"""A program in two halves, so that something can be computed between them from an output of the first."""

from collections.abc import Mapping
from dataclasses import replace

from weft.frozen import frozen
from weft.graph.program import Instr, Program, Value, arrange

KEPT = "kept:"  # what the second half reads of the first one
CHEAP = ("activate", "layer_norm", "rms_norm", "mul", "add")  # computed again where what they read is kept anyway


@frozen
class Halves:
    """`first` writes the output; `ahead` does too, and all that `second` reads beside the inputs, under the same names.
    Where `second` reads the output itself, that is its input `output`."""

    first: Program
    ahead: Program
    second: Program
    output: str | None


def halves(program: Program, output: str) -> Halves | None:
    """What `output` depends on, and all else; None for a program with effects, which cannot be cut.

    Both have the instructions of the program, unchanged: so they give the same bits. A few cheap ones are in both:
    that takes less memory than keeping what they give.
    """
    if any(instr.meaning.effect for instr in program.body):
        return None
    needed, before = {output}, []
    for instr in reversed(program.body):
        if needed.intersection(instr.outputs):
            needed.update(instr.operands)
            before.append(instr)
    before.reverse()
    mine = {id(instr) for instr in before}
    after = [instr for instr in program.body if id(instr) not in mine]
    made = {name for instr in before for name in instr.outputs}
    read = dict.fromkeys(name for instr in after for name in instr.operands if name in made)
    again = _cheap(before, read, made, output)
    read = {name: None for name in read if name not in again}
    names = {name: f"{KEPT}{number}" for number, name in enumerate(read)}
    given_out = {name: kept for name, kept in names.items() if name != output}
    return Halves(
        _half(program, before, {}, {output}),
        _half(program, before, given_out, {output}),
        _half(program, _with(again, after), names, {value.name for value in program.outputs}),
        names.get(output),
    )


def _cheap(before: list[Instr], read: Mapping[str, None], made: set[str], output: str) -> dict[str, Instr]:
    """What makes some of the values that are `read` later of the others, by the values: those and what is between."""
    able: dict[str, Instr] = {}
    for instr in before:
        known = all(name in read or name in able for name in instr.operands if name in made)
        if known and instr.op in CHEAP and output not in instr.outputs:
            able[instr.outputs[0]] = instr
    found: dict[str, Instr] = {}
    wanted = [name for name in read if name in able]
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = able[name]
            wanted += [operand for operand in able[name].operands if operand in able]
    return found


def _with(again: Mapping[str, Instr], body: list[Instr]) -> list[Instr]:
    """`body`, with each of the others before the first instruction that reads what it makes."""
    left, made = dict(again), []

    def make(instr: Instr) -> None:
        for name in instr.operands:
            if name in left:
                make(left.pop(name))
        made.append(instr)

    for instr in body:
        make(instr)
    return made


def _half(program: Program, body: list[Instr], ends: dict[str, str], outputs: set[str]) -> Program:
    """These instructions; the values `ends` are its ends under other names: outputs where it writes them, else inputs.
    Only buffers are reshaped: of those a copy is an end."""
    written = {name for instr in body for name in instr.outputs}
    used = written.union(name for instr in body for name in instr.operands)
    shaped = {name for instr in body if instr.op == "reshape" for name in (*instr.operands, *instr.outputs)}
    copied = {name: end for name, end in ends.items() if name in shaped}
    renamed = {name: end for name, end in ends.items() if name not in shaped}
    values: list[Value] = []
    for value in program.values:
        name, kind = value.name, value.kind
        if name not in used and not (kind == "input" and value.dtype.name != "f32"):  # a step's arrays say its sizes
            continue
        end = "output" if name in written else "input"
        if name in copied:
            values.append(replace(value, name=copied[name], kind=end, slot=None))
        if name in renamed:
            kind = end
        elif kind == "output" and name not in outputs:
            kind = "buffer"
        values.append(replace(value, name=renamed.get(name, name), kind=kind, slot=None))
    changed = [
        Instr(
            instr.op,
            tuple([renamed.get(name, name) if name is not None else None for name in instr.inputs]),
            tuple([renamed.get(name, name) for name in instr.outputs]),
            instr.attrs,
        )
        for instr in body
    ]
    taken = [_copy(end, name) for name, end in copied.items() if name not in written]
    handed = [_copy(name, end) for name, end in copied.items() if name in written]
    return arrange(program.name, values, [*taken, *changed, *handed])


def _copy(source: str, to: str) -> Instr:
    return Instr("scale", (source,), (to,), {"by": 1.0})
