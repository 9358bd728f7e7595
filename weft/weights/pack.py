"""Block formats: their descriptions, and the plain quantisers that make them from floats.

The quantisers round to nearest within each block of 32 and equal the format's reference implementation bit for bit.
Unpacking is native: TensorView.numpy().
"""

from collections.abc import Callable

import numpy as np

from weft.dtype import DTYPES, DType, f32_to_bf16
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.weights.files import TensorView

_K_SCALES = "f16 scale and minimum a block, 6-bit scale and minimum per 32"
_SCALES = {
    "q4_0": "f16 scale a block",
    "q4_1": "f16 scale and minimum a block",
    "q5_0": "f16 scale a block",
    "q5_1": "f16 scale and minimum a block",
    "q8_0": "f16 scale a block",
    "q2_k": "f16 scale and minimum a block, 4-bit scale and minimum per 16",
    "q3_k": "f16 scale a block, 6-bit scale per 16",
    "q4_k": _K_SCALES,
    "q5_k": _K_SCALES,
    "q6_k": "f16 scale a block, 8-bit scale per 16",
    "iq2_xxs": "f16 scale a block, 4-bit scale per 32; vectors of 8 from a grid of 256",
    "iq2_xs": "f16 scale a block, 4-bit scale per 16; vectors of 8 from a grid of 512",
    "iq2_s": "f16 scale a block, 4-bit scale per 16; vectors of 8 from a grid of 1024",
    "iq3_xxs": "f16 scale a block, 4-bit scale per 32; vectors of 4 from a grid of 256",
    "iq3_s": "f16 scale a block, 4-bit scale per 32; vectors of 4 from a grid of 512",
    "iq1_s": "f16 scale a block, 3-bit scale and a shift per 32; vectors of 8 from a grid of 2048",
    "iq1_m": "f16 scale a block, 3-bit scale per 16, a shift per 8; vectors of 8 from a grid of 2048",
    "iq4_nl": "f16 scale a block; 16 uneven levels",
    "iq4_xs": "f16 scale a block, 6-bit scale per 32; 16 uneven levels",
    "tq1_0": "f16 scale a block; -1, 0 or 1, five to a byte",
    "tq2_0": "f16 scale a block; -1, 0 or 1, four to a byte",
    "mxfp4": "power-of-two scale a block; 4-bit floats (E2M1)",
    "q4_z": "f16 scale and integer zero point a block",
    "a8_32": "f32 scale per 32; int8 activations",
    "a8_256": "f32 scale per 256; int8 activations",
}


@frozen
class Format:
    """The description of a stored format; `bits` per weight include the scales."""

    name: str
    bits: float
    block: int
    scales: str

    def __str__(self) -> str:
        block = f", blocks of {self.block} ({self.scales})" if self.block > 1 else ""
        return f"{self.name}: {self.bits:g} bits a weight{block}"


def describe(dtype: DType | str) -> Format:
    """The size of `dtype` and how its blocks are scaled."""
    dtype = _named(dtype)
    return Format(dtype.name, 8 * dtype.size_bytes / dtype.block, dtype.block, _SCALES.get(dtype.name, "none"))


def quantise(values: np.ndarray, dtype: DType | str) -> TensorView:
    """`values` (floats [..., n], n whole blocks) stored as `dtype`: f32, f16, bf16, q8_0, q4_0, q4_1, q5_0 or q5_1."""
    dtype = _named(dtype)
    values = np.asarray(values, dtype=np.float32)
    if dtype.name in _CASTS:
        return TensorView(dtype, values.shape, np.ascontiguousarray(_CASTS[dtype.name](values)))
    if dtype.name not in _QUANTISERS:
        able = ", ".join([*_CASTS, *_QUANTISERS])
        raise UnsupportedError("quantise", f"weft cannot quantise to {dtype}", advice=f"use one of {able}")
    if not values.ndim or values.shape[-1] % dtype.block:
        raise InputError(
            "quantise", f"must have rows of whole blocks of {dtype.block}", field="values", given=values.shape
        )
    if not np.isfinite(values).all():
        raise InputError("quantise", "must be finite: a block with an infinity or NaN has no scale", field="values")
    blocks = _QUANTISERS[dtype.name](values.reshape(-1, dtype.block))
    return TensorView(dtype, values.shape, blocks)


def _named(dtype: DType | str) -> DType:
    if isinstance(dtype, DType):
        return dtype
    if dtype not in DTYPES:
        raise InputError("weights", f"must be one of {', '.join(DTYPES)}", field="dtype", given=dtype)
    return DTYPES[dtype]


def _half(scales: np.ndarray) -> np.ndarray:
    """Scales [blocks, 1] as the two bytes of a half [blocks, 2]; one too large for a half becomes infinite."""
    with np.errstate(over="ignore"):
        return scales.astype("<f2").view(np.uint8)


def _inverse(scales: np.ndarray) -> np.ndarray:
    """1 / scales, zero where the scale is."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def _levels(scaled: np.ndarray, top: int) -> np.ndarray:
    """Levels 0..top of values that were offset so that truncation rounds them. A denormal scale has an infinite
    inverse; its levels are those of the reference's conversion to a byte."""
    with np.errstate(invalid="ignore"):
        return np.trunc(scaled).astype(np.uint8).clip(0, top)


def _nibbles(levels: np.ndarray) -> np.ndarray:
    """Two to a byte [blocks, 16]: element i low, element i + 16 high."""
    return (levels[:, :16] & 15) | (levels[:, 16:] << 4)


def _fifth_bits(levels: np.ndarray) -> np.ndarray:
    return np.packbits(levels >> 4, axis=-1, bitorder="little")


def _symmetric(blocks: np.ndarray, half_range: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and levels with the value of largest magnitude at level 0, the end that has one level more."""
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scale = extreme / np.float32(-half_range)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = blocks * _inverse(scale) + np.float32(half_range + 0.5)
    return scale, _levels(scaled, 2 * half_range - 1)


def _asymmetric(blocks: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, minimum and levels with the minimum at level 0 and the maximum at `top`."""
    low = blocks.min(axis=-1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (blocks.max(axis=-1, keepdims=True) - low) / np.float32(top)
        scaled = (blocks - low) * _inverse(scale) + np.float32(0.5)
    return scale, low, _levels(scaled, top)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    scale, levels = _symmetric(blocks, 8)
    return np.concatenate([_half(scale), _nibbles(levels)], axis=-1)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    scale, low, levels = _asymmetric(blocks, 15)
    return np.concatenate([_half(scale), _half(low), _nibbles(levels)], axis=-1)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    scale, levels = _symmetric(blocks, 16)
    return np.concatenate([_half(scale), _fifth_bits(levels), _nibbles(levels)], axis=-1)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    scale, low, levels = _asymmetric(blocks, 31)
    return np.concatenate([_half(scale), _half(low), _fifth_bits(levels), _nibbles(levels)], axis=-1)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    with np.errstate(invalid="ignore", over="ignore"):
        scaled = blocks * _inverse(scale)
        magnitude = np.abs(scaled)
        whole = np.floor(magnitude)
        # Halves go away from zero; numpy's own rounding would take them to even.
        rounded = np.sign(scaled) * (whole + np.floor(2 * (magnitude - whole)))
        levels = rounded.astype(np.int8).view(np.uint8)
    return np.concatenate([_half(scale), levels], axis=-1)


def _f16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype("<f2")


_CASTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"f32": lambda v: v, "f16": _f16, "bf16": f32_to_bf16}
_QUANTISERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
}
