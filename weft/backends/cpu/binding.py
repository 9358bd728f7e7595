"""Weights as the kernels read them: which layout a program wants for each, and making it."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from weft._core import pack
from weft.graph.program import Program, Value
from weft.ops.packed import Packed

PRODUCTS = ("matmul", "matmul_q")


def weight_layouts(program: Program) -> dict[str, str]:
    """The layout of every weight: "vector", "rows" (as in the file, zero copy), "panels" (16 rows interleaved) or
    "pairs" (the same of bfloat16, for the matrix unit).

    A matrix that is multiplied goes into panels where its type has them; one of the lower iq types is widened tile by
    tile out of the file's own blocks. A table that is only looked up stays as it is in the file.
    """
    used = {name: "rows" for name in (value.name for value in program.weights)}
    table = program.table
    for instr in program.body:
        name = instr.inputs[1] if instr.op in PRODUCTS else None
        if name is not None and pack.has_panels(table[name].dtype.name):
            used[name] = "panels"
        if instr.op == "matmul_bf16":
            used[str(instr.inputs[1])] = "pairs"
    return {name: "vector" if len(table[name].shape) == 1 else layout for name, layout in used.items()}


def stored_shape(program: Program, value: Value) -> tuple[int, ...]:
    """The shape of a weight in its file: half the columns, where it is split in two parts."""
    for instr in program.body:
        if instr.op == "matmul_bf16" and instr.inputs[1] == value.name and instr.attrs["split"]:
            return (cast(int, value.shape[0]), cast(int, value.shape[1]) // 2)
    return cast(tuple[int, ...], value.shape)  # a weight's sizes are numbers


def native_weight(
    value: np.ndarray | Packed,
    layout: str,
    *,
    columns: int = 0,
    row_order: np.ndarray | None = None,
    threads: int = 1,
    arena: pack.Arena | None = None,
) -> pack.Weight:
    """The kernels' form of a weight. Rows are borrowed, not copied; panels and vectors are the core's own memory.

    That memory is part of the `arena`, where one is given: a model's weights together, in huge pages.
    Where the program wants twice the `columns` that there are, the values are split in two parts.
    """
    if layout == "vector":
        dense = value.dense() if isinstance(value, Packed) else value
        return pack.Weight.vector(np.ascontiguousarray(dense, np.float32).reshape(-1), arena)
    packed = value if isinstance(value, Packed) else _as_packed(value)
    rows, cols = math.prod(packed.shape[:-1]), packed.shape[-1]
    if layout in ("panels", "pairs"):
        order = None if row_order is None else np.ascontiguousarray(row_order, np.int32)
        make = pack.Weight.in_panels if layout == "panels" else pack.Weight.in_pairs
        if layout == "pairs" and columns == 2 * cols:
            make = pack.Weight.in_split
        return make(packed.dtype.name, rows, cols, packed.data, order, threads, arena)
    data = packed.data if row_order is None else packed.take(row_order).data
    return pack.Weight.in_rows(packed.dtype.name, rows, cols, np.ascontiguousarray(data))


def _as_packed(values: np.ndarray) -> Packed:
    from weft.dtype import dtype

    name = "f16" if values.dtype == np.float16 else "f32"
    stored = np.ascontiguousarray(values, np.float16 if name == "f16" else np.float32)
    return Packed(dtype(name), stored.shape, stored.reshape(-1).view(np.uint8))
