"""Merge an activation into the product after it (gated), or else into the matmul before it (its attribute)."""

from dataclasses import replace

from weft.graph.program import Instr, Program, arrange


def fold_activation(program: Program) -> Program:
    """mul(activate(g), u) -> gated(g, u), then activate(matmul(…)) -> matmul(…) with the activation."""
    return _into_matmul(_into_gated(program))


def _into_gated(program: Program) -> Program:
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        if instr.op != "activate":
            continue
        result = instr.outputs[0]
        reader = program.only_reader(result)
        if reader is None or program.body[reader].op != "mul" or body[reader] != program.body[reader]:
            continue
        product = program.body[reader]
        up = product.inputs[1] if product.inputs[0] == result else product.inputs[0]
        if up is not None and program.table[up].spec == program.table[result].spec:
            body[reader] = Instr("gated", (instr.inputs[0], up), product.outputs, {"kind": instr.attrs["kind"]})
            body[index] = None
    return arrange(program.name, program.values, filter(None, body))


def _into_matmul(program: Program) -> Program:
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        if instr.op not in ("matmul", "matmul_q") or instr.attrs["activation"] != "none":
            continue
        reader = program.only_reader(instr.outputs[0])
        if reader is not None and program.body[reader].op == "activate":
            after = program.body[reader]
            body[index] = replace(
                instr, outputs=after.outputs, attrs={**instr.attrs, "activation": after.attrs["kind"]}
            )
            body[reader] = None
    return arrange(program.name, program.values, filter(None, body))
