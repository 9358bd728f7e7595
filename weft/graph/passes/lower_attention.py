"""Attention over the state in bfloat16, where activations are rounded anyway: what a matrix unit multiplies."""

from weft.graph.program import Instr, Program, arrange
from weft.ops.attention import BF16_DIM

ROUNDED = {"matmul_q", "matmul_bf16"}  # products of rounded activations


def lower_attention(program: Program) -> Program:
    """attention_paged -> attention_paged_bf16, for heads that it takes, in programs with products of rounded
    activations: where a model's weights left nothing to round, it stays f32 throughout.
    """
    if not any(instr.op in ROUNDED for instr in program.body):
        return program

    def lowered(instr: Instr) -> Instr:
        if instr.op != "attention_paged":
            return instr
        dim = program.table[str(instr.inputs[0])].shape[2]
        fits = isinstance(dim, int) and dim <= BF16_DIM
        return Instr("attention_paged_bf16", instr.inputs, instr.outputs, instr.attrs) if fits else instr

    return arrange(program.name, list(program.values), [lowered(instr) for instr in program.body])
