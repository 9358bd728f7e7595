"""Products with float weights and attention in bfloat16: half the bytes, and what a matrix unit multiplies."""

from dataclasses import replace

from weft.graph.program import Instr, Program, arrange
from weft.ops.attention import BF16_DIM
from weft.ops.spec import as_dtype

FLOATS = ("f32", "f16", "bf16")


def lower_bf16(program: Program) -> Program:
    """matmul -> matmul_bf16, for every float matrix that nothing but products reads, or that is bf16 already;
    attention -> attention_bf16, where every token sees its whole sequence.
    """
    readers: dict[str, set[str]] = {}
    for instr in program.body:
        for name in instr.inputs:
            if name is not None:
                readers.setdefault(name, set()).add(instr.op)
    lowered = {
        str(instr.inputs[1])
        for instr in program.body
        if instr.op == "matmul" and _fits(program, str(instr.inputs[1]), readers)
    }
    values = [replace(value, dtype=as_dtype("bf16")) if value.name in lowered else value for value in program.values]
    return arrange(program.name, values, [_lowered(program, instr, lowered) for instr in program.body])


def _lowered(program: Program, instr: Instr, weights: set[str]) -> Instr:
    if instr.op == "matmul" and instr.inputs[1] in weights:
        return Instr("matmul_bf16", instr.inputs, instr.outputs, instr.attrs)
    if instr.op == "attention" and not any(instr.attrs[key] for key in ("causal", "window", "softcap")):
        dim = program.table[str(instr.inputs[0])].shape[2]
        if isinstance(dim, int) and dim <= BF16_DIM:
            return Instr("attention_bf16", instr.inputs, instr.outputs, {"scale": instr.attrs["scale"]})
    return instr


def _fits(program: Program, name: str, readers: dict[str, set[str]]) -> bool:
    stored = program.table[name].dtype.name
    return stored == "bf16" or (stored in FLOATS and readers[name] == {"matmul"})
