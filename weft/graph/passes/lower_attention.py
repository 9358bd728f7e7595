"""Attention where activations are rounded anyway: over the state in bfloat16, which a matrix unit multiplies; without
one, of every token to its whole sequence, in half precision where there is arithmetic of it.
"""

from weft.graph.passes.lower_bf16 import sees_all
from weft.graph.program import Instr, Program, arrange
from weft.ops.attention import BF16_DIM

ROUNDED = {"matmul_q", "matmul_bf16", "matmul_half"}  # products of rounded activations


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


def lower_half(program: Program) -> Program:
    """attention -> attention_half, where every token sees its whole sequence; a model with a state is left alone: its
    scores may be too large for halves.
    """
    if program.states:
        return program

    def lowered(instr: Instr) -> Instr:
        if not sees_all(program, instr):
            return instr
        return Instr("attention_half", instr.inputs, instr.outputs, {"scale": instr.attrs["scale"]})

    return arrange(program.name, list(program.values), [lowered(instr) for instr in program.body])
