"""Weights as the kernels read them: which layout a program wants for each, and making it."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from weft._core import pack
from weft.errors import FormatError
from weft.graph.program import Program, Value
from weft.ops.packed import Packed

PRODUCTS = ("matmul", "matmul_q")
OF_INT8 = ("matmul_i8", "quantise_tokens")


def weight_layouts(program: Program) -> dict[str, str]:
    """The layout of every weight: "vector", "rows" (as in the file, zero copy), "panels" (16 rows interleaved),
    "pairs" (the same of bfloat16, for the matrix unit) or "quads" (the same of int8; "equalised": with factors).

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
    used.update(_quads(program))
    return {name: "vector" if len(table[name].shape) == 1 else layout for name, layout in used.items()}


def _quads(program: Program) -> dict[str, str]:
    """The weights of products in int8. Nothing else reads them, and all who do agree whether they are equalised."""
    found: dict[str, str] = {}
    for instr in program.body:
        wanted: dict[str | None, str] = {}
        if instr.op == "matmul_i8":
            wanted[instr.inputs[2]] = "equalised" if instr.attrs["equalised"] else "quads"
        if instr.op in ("matmul_i8", "quantise_tokens"):
            wanted[instr.inputs[-1]] = "equalised"  # the reader
        for name, layout in wanted.items():
            if name is not None and found.setdefault(name, layout) != layout:
                raise FormatError(f"[program {program.name}] {name} is equalised for one instruction, not for another")
    others = {name for instr in program.body if instr.op not in OF_INT8 for name in instr.operands}
    if found.keys() & others:
        raise FormatError(f"[program {program.name}] {min(found.keys() & others)} is read by others than int8 products")
    return found


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
    if layout in ("quads", "equalised"):
        order = None if row_order is None else np.ascontiguousarray(row_order, np.int32)
        return pack.Weight.in_quads(
            packed.dtype.name, rows, cols, packed.data, layout == "equalised", order, threads, arena
        )
    data = packed.data if row_order is None else packed.take(row_order).data
    return pack.Weight.in_rows(packed.dtype.name, rows, cols, np.ascontiguousarray(data))


def _as_packed(values: np.ndarray) -> Packed:
    from weft.dtype import dtype

    name = "f16" if values.dtype == np.float16 else "f32"
    stored = np.ascontiguousarray(values, np.float16 if name == "f16" else np.float32)
    return Packed(dtype(name), stored.shape, stored.reshape(-1).view(np.uint8))
