"""Ops whose numbers have 16 bits, which programs of compute "f16" and "bf16" have beside others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.backends.webgpu.cuda.attention import within
from weft.backends.webgpu.launch import LANES, Call, Launch, attention_paged, count
from weft.backends.webgpu.launch import supports as shaded
from weft.backends.webgpu.products import multiply
from weft.dtype import DType
from weft.errors import BackendError


def product(call: Call) -> Iterator[Launch]:
    if call.given(3):
        what = "mixtures of experts are not computed in bf16 on this backend"
        raise BackendError(call.instr.op, what, advice='use compute="f32" or "f16"')
    if call.attrs.get("rounded") and call.shape(1)[0] % 2:
        raise BackendError(call.instr.op, "results in bf16 have an even number of columns", given=call.shape(1)[0])
    yield from multiply(call).launches(call.device.products)


def round_rows(call: Call) -> Iterator[Launch]:
    if call.attrs["split"]:
        what = "bf16x3 is not computed on this backend, whose f32 has the same products"
        raise BackendError("round_rows", what, advice='use compute="f32"')
    total: Any = count(call.shape(0))
    places = {"x": call.at(0), "out": call.out(), "count": total}
    yield Launch("round_rows", (), places, (), total, 2 * LANES)


def attention(call: Call) -> Iterator[Launch]:
    """q times scale and log2(e), keys, values and weights are rounded: products times ln 2 are scores."""
    q, rounded = call.values[0], call.attrs["rounded"]
    assert q is not None
    defines = {"BFLOAT": 1, "PARTS": 1, "ROUNDED": rounded, "NARROW": q.dtype.name == "bf16"}
    by = np.float32(call.attrs["scale"]) * np.float32(math.log2(math.e))
    yield from within(call, {"by": float(by), "scale": math.log(2)}, defines)


NARROW: dict[str, Callable[[Call], Iterator[Launch]]] = {
    "matmul_half": product,
    "matmul_bf16": product,
    "round_rows": round_rows,
    "attention_bf16": attention,
    "attention_paged_bf16": attention_paged,  # with the pages as they are, which is more exact
}


def supports(op: str, dtypes: Sequence[DType]) -> bool:
    """Whether an op of these has a kernel; a product whose rows have matrices of a stack has none."""
    if op not in NARROW:
        return False
    if op == "attention_paged_bf16":
        return shaded("attention_paged", dtypes)
    return not op.startswith("matmul") or "i32" not in [one.name for one in dtypes]
