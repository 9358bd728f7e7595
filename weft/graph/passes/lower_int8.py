"""Products with quantised weights on int8 activations: rows are quantised once, for all the products that read them."""

from weft.graph.program import Instr, Program, Value, arrange
from weft.ops.quant import INT8_BLOCK
from weft.ops.registry import find


def lower_int8(program: Program) -> Program:
    """matmul -> quantise_rows and matmul_q, for every weight whose type has an int8 kernel."""
    values = list(program.values)
    body: list[Instr] = []
    rows: dict[tuple[str, int], str] = {}  # (activations, block) -> the name of their int8 rows
    for instr in program.body:
        block = INT8_BLOCK.get(program.table[str(instr.inputs[1])].dtype.name) if instr.op == "matmul" else None
        if block is None:
            body.append(instr)
            continue
        x, attrs = str(instr.inputs[0]), {"block": block}
        if (x, block) not in rows:
            spec = find("quantise_rows").infer([program.table[x].spec], attrs)[0]
            made = Value(f"%rows{len(rows)}", "buffer", spec.dtype, spec.shape)
            rows[x, block] = made.name
            values.append(made)
            body.append(Instr("quantise_rows", (x,), (made.name,), attrs))
        body.append(Instr("matmul_q", (rows[x, block], *instr.inputs[1:]), instr.outputs, instr.attrs))
    return arrange(program.name, values, body)
