"""Products of tokens with float weights in int8: rows of activations and rows of weights rounded, each with one scale.

Rows are quantised once for all the products that read them. A result that only one product reads is quantised by the op
that computes it, and equalised for its reader: docs/decisions/0011-int8-encoders.md.
"""

from dataclasses import replace
from typing import cast

from weft.graph.passes.lower_bf16 import FLOATS, lower_bf16
from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.quant import I8_COLUMNS, takes_i8
from weft.ops.registry import find
from weft.ops.spec import T, as_dtype


def lower_tokens(program: Program) -> Program:
    """matmul -> quantise_tokens and matmul_i8, for float matrices that only products of tokens read; the rest as
    lower_bf16 does. A model with a state, which generates, stays as it is.
    """
    if program.states:
        return program
    products = _products(program)
    alone = {i for i in products if len(program.readers[str(program.body[i].inputs[0])]) == 1}
    equalised = {i for i in alone if all(j in alone for j in program.readers[_weight(program, i)])}
    values = {value.name: value for value in program.values}
    makers = {program.body[i].outputs[0]: i for i in products}
    made: dict[str, str] = {}  # rows that a product quantises -> the name of their headers
    for i in sorted(equalised):
        x = str(program.body[i].inputs[0])
        if values[x].kind == "buffer" and x in makers and _short(program, makers[x]):
            made[x] = f"%headers.{len(made)}"
            values[x] = replace(values[x], dtype=as_dtype("i8"))
            values[made[x]] = Value(made[x], "buffer", as_dtype("f32"), (*values[x].shape[:-1], 3))
    body: list[Instr] = []
    rows: dict[str, tuple[str, str]] = {x: (x, headers) for x, headers in made.items()}
    for i, instr in enumerate(program.body):
        if i not in products:
            body.append(instr)
            continue
        x, y = str(instr.inputs[0]), instr.outputs[0]
        if x not in rows:
            rows[x] = _quantise(program, x, _weight(program, i) if i in equalised else None, values, body)
        reader = _weight(program, program.readers[y][0]) if y in made else None
        attrs = {**instr.attrs, "equalised": i in equalised, "quantised": y in made}
        outputs = (y, made[y]) if y in made else (y,)
        body.append(Instr("matmul_i8", (*rows[x], *instr.inputs[1:3], reader), outputs, attrs))
    return lower_bf16(arrange(program.name, list(values.values()), body))


def _products(program: Program) -> set[int]:
    """The instructions that become products in int8."""
    found = {
        i
        for i, instr in enumerate(program.body)
        if instr.op == "matmul"
        and instr.inputs[3] is None  # the rows of a stack are not those of the step
        and program.table[_weight(program, i)].dtype.name in FLOATS
        and takes_i8(program.table[_weight(program, i)].shape[1])
        and program.table[str(instr.inputs[0])].shape[0] == T
    }
    return {i for i in found if found.issuperset(program.readers[_weight(program, i)])}


def _weight(program: Program, index: int) -> str:
    return str(program.body[index].inputs[1])


def _short(program: Program, index: int) -> bool:
    """Whether a product can quantise its own results."""
    columns, depth = (cast(int, size) for size in program.table[_weight(program, index)].shape)
    return takes_i8(columns) and columns <= I8_COLUMNS and depth <= I8_COLUMNS


def _quantise(
    program: Program, x: str, reader: str | None, values: dict[str, Value], body: list[Instr]
) -> tuple[str, str]:
    specs = find("quantise_tokens").infer(
        [program.table[x].spec, None if reader is None else program.table[reader].spec], {}
    )
    names = (f"%codes.{len(body)}", f"%codes.{len(body)}.headers")
    for name, spec in zip(names, specs):
        values[name] = Value(name, "buffer", spec.dtype, spec.shape)
    body.append(Instr("quantise_tokens", (x, reader), names, {}))
    return names
