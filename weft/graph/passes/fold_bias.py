"""Turn a weight vector that is added to a product into the bias of the matmul."""

from dataclasses import replace

from weft.graph.program import Instr, Program, arrange


def fold_bias(program: Program) -> Program:
    """add(matmul(x, W), b) -> matmul(x, W, b), where nothing else reads the product."""
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        if instr.op not in ("matmul", "matmul_q") or instr.inputs[2] is not None or instr.attrs["activation"] != "none":
            continue
        product = instr.outputs[0]
        reader = program.only_reader(product)
        if reader is None or program.body[reader].op != "add" or program.body[reader].inputs[0] != product:
            continue
        if instr.inputs[3] is not None:  # a group of rows has a bias of its own
            continue
        bias = program.table[str(program.body[reader].inputs[1])]
        if bias.kind == "weight" and len(bias.shape) == 1:
            outputs = program.body[reader].outputs
            body[index] = replace(instr, inputs=(*instr.inputs[:2], bias.name, *instr.inputs[3:]), outputs=outputs)
            body[reader] = None
    return arrange(program.name, program.values, filter(None, body))
