"""Fuse norms and gates with the quantise_rows that alone reads their result, so that float rows are never stored."""

from weft.graph.program import Instr, Program, arrange

FUSED = {"rms_norm": "rms_norm_a8", "add_rms_norm": "add_rms_norm_a8", "gated": "gated_a8"}


def fuse_rows(program: Program) -> Program:
    """quantise_rows(rms_norm(x)) -> rms_norm_a8(x), and likewise for add_rms_norm and gated; results keep their bits.

    The fused op takes the place of its first part. A result that something else reads too, an adapter or a product
    with rows of another block, stays as it is.
    """
    body: list[Instr | None] = list(program.body)
    for index, instr in enumerate(program.body):
        rows = instr.outputs[-1] if instr.op in FUSED else ""  # add_rms_norm's second result
        reader = program.only_reader(rows) if rows else None
        if reader is None or program.body[reader].op != "quantise_rows":
            continue
        quantise = program.body[reader]
        outputs = (*instr.outputs[:-1], *quantise.outputs)
        body[index] = Instr(FUSED[instr.op], instr.inputs, outputs, {**instr.attrs, **quantise.attrs})
        body[reader] = None
    return arrange(program.name, program.values, filter(None, body))
