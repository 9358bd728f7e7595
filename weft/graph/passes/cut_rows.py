"""Rows that are not used are not computed: `take_rows` moves up past every op that works row by row."""

from dataclasses import replace

from weft.graph.program import Instr, Program, Value, arrange

# Ops in which a row of a result depends only on that row of the operands. All their arrays are [T, D].
ROW_BY_ROW = (
    "activate",
    "add",
    "add_layer_norm",
    "add_rms_norm",
    "dropout",
    "gated",
    "hadamard",
    "l2_normalise",
    "layer_norm",
    "matmul",
    "mul",
    "rms_norm",
    "scale",
    "softcap",
)


def cut_rows(program: Program) -> Program:
    """take_rows(f(x)) -> f(take_rows(x)), as far up as all readers use the same rows only.

    In a decoder this covers the last layer after its attention: only the last token of a prompt needs logits.
    """
    cut = _with_fewer_rows(program)
    if not cut:
        return program
    values = dict(program.table)
    body: list[Instr] = []
    taken: dict[tuple[str, str], str] = {}  # (value, rows) -> its rows
    alias: dict[str, str] = {}  # the result of a take_rows -> the value that has only these rows now

    def rows_of(given: str, rows: str) -> str:
        name = alias.get(given, given)
        whole = given in alias or program.writer.get(given) not in cut  # rows of rows are taken from the first ones
        value = program.table[name]
        if not whole or len(value.shape) != 2 or value.kind == "weight" or value.dtype.name == "i32":
            return name
        if (name, rows) not in taken:
            taken[name, rows] = f"%rows{len(taken)}"
            shape = (program.table[rows].shape[0], *program.table[name].shape[1:])
            values[taken[name, rows]] = Value(taken[name, rows], "buffer", program.table[name].dtype, shape)
            body.append(Instr("take_rows", (name, rows), (taken[name, rows],), {}))
        return taken[name, rows]

    for index, instr in enumerate(program.body):
        if index in cut:
            rows = cut[index]
            inputs = tuple(name and rows_of(name, rows) for name in instr.inputs)
            body.append(replace(instr, inputs=(*inputs[:2], rows) if instr.op == "dropout" else inputs))
            for name in instr.outputs:
                values[name] = replace(values[name], shape=(program.table[rows].shape[0], *values[name].shape[1:]))
        elif instr.op == "take_rows" and program.writer.get(str(instr.inputs[0])) in cut:
            alias[instr.outputs[0]] = str(instr.inputs[0])
        else:
            body.append(replace(instr, inputs=tuple(alias.get(str(name), name) for name in instr.inputs)))
    return arrange(program.name, values.values(), body)


def _with_fewer_rows(program: Program) -> dict[int, str]:
    """The instructions that may compute fewer rows, with the name of those rows."""
    cut: dict[int, str] = {}
    for index in reversed(range(len(program.body))):
        instr = program.body[index]
        if instr.op not in ROW_BY_ROW or _grouped(instr) or any(not _cuttable(program, name) for name in instr.outputs):
            continue
        wanted = {_rows_wanted(program, reader, cut) for name in instr.outputs for reader in program.readers[name]}
        if len(wanted) == 1 and (rows := wanted.pop()) is not None:
            cut[index] = rows
    return cut


def _grouped(instr: Instr) -> bool:
    """Whether this is a product whose rows belong to several matrices."""
    return instr.op == "matmul" and instr.inputs[3] is not None


def _cuttable(program: Program, name: str) -> bool:
    value = program.table[name]
    return value.kind == "buffer" and len(value.shape) == 2


def _rows_wanted(program: Program, reader: int, cut: dict[int, str]) -> str | None:
    """The rows that an instruction reads of its operands; None for all of them."""
    instr = program.body[reader]
    if instr.op == "take_rows":
        rows = str(instr.inputs[1])  # an input: rows that the program computes may depend on this very operand
        return (
            rows if program.table[instr.outputs[0]].kind == "buffer" and program.table[rows].kind == "input" else None
        )
    return cut.get(reader)
