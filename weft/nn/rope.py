"""Rotary positions: the frequencies, with the ways checkpoints stretch them, and the rotation of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


def inverse_frequencies(dim: int, theta: float, scaling: Mapping[str, Any] | None = None) -> np.ndarray:
    """Angle per position of each of the dim/2 pairs, float32; `scaling` is the config's rope_scaling."""
    plain = 1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    if not scaling:
        return plain.astype(np.float32)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in SCALINGS:
        raise UnsupportedError(f"[rope] unknown rope scaling: {kind!r}; known are {', '.join(SCALINGS)}")
    return SCALINGS[kind](plain, scaling).astype(np.float32)


def _linear(plain: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    return plain / float(scaling["factor"])


def _llama3(plain: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1).

    GGUF files hold the divisor of each pair in place of the rule.
    """
    if "factors" in scaling:
        return _factors(plain, scaling)
    factor, low, high = (float(scaling[k]) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    context = float(scaling["original_max_position_embeddings"])
    turns = context * plain / (2 * math.pi)  # how often a pair turns within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (blend + (1.0 - blend) / factor)


def _factors(plain: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    factors = np.asarray(scaling["factors"], dtype=np.float64)
    if factors.shape != plain.shape:
        raise UnsupportedError(f"[rope] {factors.shape[0]} rope factors for {plain.shape[0]} pairs")
    return plain / factors


SCALINGS = {"default": lambda plain, _: plain, "linear": _linear, "llama3": _llama3}


def rotate(x: Tensor, step: Step, frequencies: np.ndarray) -> Tensor:
    """x [T, heads, dim] turned by its positions; channel i pairs with i + dim/2."""
    inv_freq = x.trace.constant("rope.inv_freq", frequencies)
    return ops.rope(x, step.positions, inv_freq, interleaved=False, scale=1.0)
