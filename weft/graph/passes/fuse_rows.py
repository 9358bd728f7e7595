"""Norms and gates quantise what they make, where one quantise_rows alone reads it: the float rows are never stored."""

from weft.graph.program import Instr, Program, arrange

FUSED = {"rms_norm": "rms_norm_a8", "add_rms_norm": "add_rms_norm_a8", "gated": "gated_a8"}


def fuse_rows(program: Program) -> Program:
    """quantise_rows(rms_norm(x)) -> rms_norm_a8(x), and so for add_rms_norm and gated; the bits stay.

    The fused op stands where its first part stood. What something else reads too, an adapter or a product with rows of
    another block, stays as it was.
    """
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        rows = instr.outputs[-1] if instr.op in FUSED else ""  # of a norm's two results the second
        reader = program.only_reader(rows) if rows else None
        if reader is None or program.body[reader].op != "quantise_rows":
            continue
        quantise = program.body[reader]
        outputs = (*instr.outputs[:-1], *quantise.outputs)
        body[index] = Instr(FUSED[instr.op], instr.inputs, outputs, {**instr.attrs, **quantise.attrs})
        body[reader] = None
    return arrange(program.name, program.values, filter(None, body))
