"""Passes: pure functions from program to program, one per file, that keep the meaning."""

from collections.abc import Callable
from functools import partial

from weft.computes import ENCODER_COMPUTES
from weft.errors import InputError
from weft.graph.passes.adapt import adapt
from weft.graph.passes.cut_rows import cut_rows
from weft.graph.passes.dead_code import dead_code
from weft.graph.passes.decompose import decompose
from weft.graph.passes.fold_activation import fold_activation
from weft.graph.passes.fold_bias import fold_bias
from weft.graph.passes.fuse_norm import fuse_norm
from weft.graph.passes.fuse_rope import fuse_rope
from weft.graph.passes.fuse_rows import fuse_rows
from weft.graph.passes.lower_attention import lower_attention, lower_half
from weft.graph.passes.lower_bf16 import lower_bf16
from weft.graph.passes.lower_f16 import lower_f16
from weft.graph.passes.lower_int8 import lower_int8
from weft.graph.passes.lower_tokens import lower_tokens
from weft.graph.program import Program
from weft.graph.verify import verify

__all__ = [
    "adapt",
    "cut_rows",
    "dead_code",
    "decompose",
    "fold_activation",
    "fold_bias",
    "fuse_norm",
    "fuse_rope",
    "fuse_rows",
    "lower_attention",
    "lower_bf16",
    "lower_f16",
    "lower_half",
    "lower_int8",
    "lower_tokens",
    "optimise",
]

LOWER: dict[str, list[Callable[[Program], Program]]] = {
    "f16": [lower_f16, lower_attention],
    "bf16": [lower_bf16, lower_attention],
    "bf16x3": [partial(lower_bf16, split=True)],
    "int8": [lower_int8, fuse_rows, lower_tokens, lower_attention],
}


def optimise(program: Program, *, compute: str = "f32", adapters: bool = False, half: bool = False) -> Program:
    """The program after all passes, verified and unplanned. With `adapters` it takes adapters: see adapt.

    Four values of `compute` change numbers. "int8": activations are rounded to int8 rows before products with
    quantised weights; in a model without a state float weights are rounded to int8 too, and the remaining products are
    as for "bf16". "bf16": activations and float weights are rounded to bfloat16 before their products. "f16": float
    weights are rounded to f16, and products run in half precision where the machine has half-precision arithmetic.
    These three compute attention over a state in bfloat16. With `half` (the machine has half-precision arithmetic)
    "int8" and "f16" compute the attention of a model without a state in half precision. "bf16x3": each operand of a
    product is a sum of two bfloat16, which takes three products, and attention stays f32: the result is close to f32.
    """
    if compute not in ENCODER_COMPUTES:
        raise InputError("optimise", f"must be one of {', '.join(ENCODER_COMPUTES)}", field="compute", given=compute)
    passes: list[Callable[[Program], Program]] = [
        dead_code,
        fold_bias,
        fold_activation,
        cut_rows,
        fuse_norm,
        fuse_rope,
    ]  # bias before activation, which follows it; rows before norms: take_rows may separate a sum from its norm
    passes += [adapt] if adapters else []  # before products are lowered: adapters read unrounded rows
    passes += (
        [lower_half] if half and compute in ("int8", "f16") else []
    )  # before the rest of attention becomes bfloat16
    for rewrite in [*passes, *LOWER.get(compute, [])]:
        program = rewrite(program)
    verify(program)
    return program
