"""Fuse the residual sum with the norm after it, so that the row is read once."""

from weft.graph.program import Instr, Program, arrange


def fuse_norm(program: Program) -> Program:
    """add + rms_norm -> add_rms_norm; add + layer_norm -> add_layer_norm where nothing else reads the sum.

    The fused op takes the place of the sum: other readers of the sum may come before the norm. Where a sum has several
    norms, the first is fused.
    """
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        if instr.op != "add" or len({program.table[name].spec for name in instr.operands}) != 1:
            continue
        total = instr.outputs[0]
        norms = [i for i in program.readers[total] if program.body[i].op == "rms_norm"]
        only = program.only_reader(total)
        if norms:
            norm = program.body[norms[0]]
            body[index] = Instr("add_rms_norm", (*instr.inputs, norm.inputs[1]), (total, *norm.outputs), norm.attrs)
            body[norms[0]] = None
        elif only is not None and program.body[only].op == "layer_norm":
            norm = program.body[only]
            body[index] = Instr("add_layer_norm", (*instr.inputs, *norm.inputs[1:]), norm.outputs, norm.attrs)
            body[only] = None
    return arrange(program.name, program.values, filter(None, body))
