"""Attention in lower precision, for programs that round activations anyway: over a state in bfloat16, which matrix
units multiply; without a state, of every token to its whole sequence, in half precision where the machine has it.
"""

from weft.graph.passes.lower_bf16 import sees_all, without_sinks
from weft.graph.program import Instr, Program, arrange
from weft.ops.attention import BF16_DIM

ROUNDED = {"matmul_q", "matmul_bf16", "matmul_half"}  # products of rounded activations


def lower_attention(program: Program) -> Program:
    """attention_paged -> attention_paged_bf16, for heads that fit it, in programs with products of rounded activations.

    A model none of whose products are rounded stays f32 throughout.
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
    """attention -> attention_half, where every token sees its whole sequence.

    A model with a state stays as it is: its scores may be too large for half precision.
    """
    if program.states:
        return program

    def lowered(instr: Instr) -> Instr:
        if not sees_all(program, instr):
            return instr
        return Instr("attention_half", without_sinks(instr), instr.outputs, {"scale": instr.attrs["scale"]})

    return arrange(program.name, list(program.values), [lowered(instr) for instr in program.body])
