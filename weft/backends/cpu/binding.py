"""Weights as the kernels read them: which layout a program wants for each, and making it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from weft import _core
from weft._core import pack
from weft.errors import FormatError

if TYPE_CHECKING:
    import numpy as np

    from weft.graph.program import Program
    from weft.ops.packed import Packed
    from weft.ops.state import AdapterArray

PRODUCTS = ("matmul", "matmul_q", "matmul_narrow")
# Products that multiply groups of rows with matrices of a stack, and which operand says where groups begin.
STACKED = dict.fromkeys((*PRODUCTS, "matmul_half", "matmul_bf16"), 3)
STACKED |= {"matmul_back": 2, "matmul_back_narrow": 2}
HEADS = ("head_loss", "head_distill", "head_loss_narrow", "head_distill_narrow")
STACK = "stack:"
OF_INT8 = ("matmul_i8", "quantise_tokens")


def weight_layouts(program: Program) -> dict[str, str]:
    """The layout of every weight: "vector", "rows" (as in the file, zero copy), "panels" (16 rows interleaved),
    "halves" (the same, rounded to f16), "pairs" (of bfloat16, for the matrix unit), "split" (pairs of two parts a
    value, so twice the columns) or "quads" (of int8; "equalised": with factors).

    A matrix that is multiplied goes into panels. A table that is only looked up stays as it is in the file. Each matrix
    of a stack has the layout after "stack:".
    """
    used = {value.name: "rows" for value in program.weights}
    table = program.table
    for instr in program.body:
        name = str(instr.inputs[1]) if len(instr.inputs) > 1 else ""
        if instr.op in (*PRODUCTS, *HEADS) and pack.has_panels(table[name].dtype.name):
            used[name] = "panels"
        if instr.op == "matmul_half":
            used[name] = "halves"
        if instr.op == "matmul_bf16":
            used[name] = "split" if instr.attrs["split"] else "pairs"
        if instr.op in STACKED and instr.inputs[STACKED[instr.op]] is not None:
            used[name] = STACK + used[name].removeprefix(STACK)
    used.update(_quads(program))
    return {name: "vector" if len(table[name].shape) == 1 else layout for name, layout in used.items()}


def _quads(program: Program) -> dict[str, str]:
    """The weights of int8 products. No other op reads them, and all int8 ops agree on whether they are equalised."""
    found: dict[str, str] = {}
    for instr in program.body:
        wanted: dict[str | None, str] = {}
        if instr.op == "matmul_i8":
            wanted[instr.inputs[2]] = "equalised" if instr.attrs["equalised"] else "quads"
        if instr.op in OF_INT8:
            wanted[instr.inputs[-1]] = "equalised"  # the reader
        for name, layout in wanted.items():
            if name is not None and found.setdefault(name, layout) != layout:
                raise FormatError(
                    f"program {program.name}", f"{name} is equalised for one instruction, not for another"
                )
    others = {name for instr in program.body if instr.op not in OF_INT8 for name in instr.operands}
    if found.keys() & others:
        raise FormatError(
            f"program {program.name}", f"{min(found.keys() & others)} is read by others than int8 products"
        )
    return found


def stored_shape(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape in its file of a weight that has `shape` in the program."""
    return (*shape[:-1], shape[-1] // 2) if layout.removeprefix(STACK) == "split" else shape


def native_weight(value: np.ndarray | Packed, layout: str) -> Any:
    """The kernels' form of a weight. Rows are borrowed, not copied; panels and vectors are the core's own memory.

    The value has its shape in the program, so one whose layout is "split" is split already.
    """
    import numpy as np

    from weft.ops.packed import Packed

    if layout == "vector":
        dense = value.dense() if isinstance(value, Packed) else value
        return pack.Weight.vector(np.ascontiguousarray(dense, np.float32).reshape(-1))
    packed = value if isinstance(value, Packed) else _as_packed(value)
    if layout.startswith(STACK):
        count, *shape = packed.shape
        matrices = [Packed(packed.dtype, tuple(shape), data) for data in packed.data.reshape(count, -1)]
        return pack.Weight.stacked([native_weight(matrix, layout.removeprefix(STACK)) for matrix in matrices])
    rows, cols = math.prod(packed.shape[:-1]), packed.shape[-1]
    if layout == "rows":
        return pack.Weight.in_rows(packed.dtype.name, rows, cols, packed.data)
    packing = pack.Packing()
    weight = packing.add("pairs" if layout == "split" else layout, packed.dtype.name, rows, cols, packed.data)
    packing.finish()
    return weight


def native_table(array: AdapterArray) -> Any:
    """The kernels' form of the adapters of a weight."""
    table = _core.AdapterTable(array.rows, array.cols, array.matrices)
    for place, part in array.parts.items():
        matrix, index = divmod(place, _core.ADAPTERS)
        matrices = [None if value is None else native_weight(value, "panels") for value in (part.down, part.up)]
        vectors = [part.scale, part.gain, part.shift]
        given = [None if value is None else native_weight(value, "vector") for value in vectors]
        table.put(index, *matrices, *given, matrix)
    return table


def _as_packed(values: np.ndarray) -> Packed:
    import numpy as np

    from weft.dtype import dtype
    from weft.ops.packed import Packed

    name = "f16" if values.dtype == np.float16 else "f32"
    stored = np.ascontiguousarray(values, np.float16 if name == "f16" else np.float32)
    return Packed(dtype(name), stored.shape, stored.reshape(-1).view(np.uint8))
