"""Rotary positions: the frequencies, with the ways checkpoints stretch them, and the rotation of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.errors import UnsupportedError

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


@dataclass(frozen=True)
class Rope:
    """Angle per position of each pair, float32 [pairs], and what cosine and sine are multiplied by."""

    frequencies: np.ndarray
    scale: float = 1.0


def rope(
    dim: int, theta: float, scaling: Mapping[str, Any] | None = None, *, positions: int = 0, context: int = 0
) -> Rope:
    """The rotation of `dim` channels; `scaling` is the config's rope_scaling.

    `positions` is how many the model takes, `context` how many will be used (0: all of them): some ways depend on it.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnsupportedError(f"[rope] unknown rope scaling: {kind!r:.80}; known are {', '.join(SCALINGS)}")
    try:
        with np.errstate(all="ignore"):
            plain = theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
            values, scale = SCALINGS[kind](_Rule(dim, theta, positions, context or positions, scaling), plain)
            turn = Rope(values.astype(np.float32), scale)
    except (ArithmeticError, ValueError):  # a logarithm, root or quotient that is none
        turn = Rope(np.asarray([math.nan]))
    if not np.isfinite(turn.frequencies).all() or not math.isfinite(turn.scale):
        raise UnsupportedError(f"[rope] rope_theta {theta} and rope_scaling of type {kind} give no finite frequencies")
    return turn


@dataclass(frozen=True)
class _Rule:
    """What a way of stretching may ask for."""

    dim: int
    theta: float
    positions: int
    context: int
    scaling: Mapping[str, Any]

    def number(self, name: str, default: float | None = None) -> float:
        value: Any = self.scaling.get(name)
        value = default if value is None else value
        if not _above_zero(value):
            raise UnsupportedError(f"[rope] {name} is {value!r:.80}; a number above zero is wanted")
        return float(value)

    @property
    def original(self) -> float:
        """The positions that the model was trained on before it was stretched."""
        return self.number("original_max_position_embeddings", self.positions or None)

    def within_original(self, kind: str) -> None:
        """Refuse a longer context: past the original one `kind` turns keys anew that are stored already."""
        if self.context > self.original:
            raise UnsupportedError(
                f"[rope] {kind} scaling changes stored keys past {self.original:.0f} positions and {self.context} are "
                f"asked for; give a context of at most {self.original:.0f}"
            )

    def divisors(self, name: str) -> np.ndarray:
        """One for each pair."""
        given = self.scaling.get(name)
        numbers = given if isinstance(given, list) else []
        if len(numbers) != self.dim // 2:
            raise UnsupportedError(f"[rope] {name}: {len(numbers)} rope factors for {self.dim // 2} pairs")
        if not all(_above_zero(number) for number in numbers):
            raise UnsupportedError(f"[rope] {name} holds something else than numbers above zero")
        return np.asarray(numbers, dtype=np.float64)


def _above_zero(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def _plain(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    return plain, 1.0


def _linear(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    return plain / rule.number("factor"), 1.0


def _llama3(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Long waves are stretched by `factor`, short ones kept, those between blended (Llama 3.1).

    GGUF files hold the divisor of each pair in place of the rule.
    """
    if "factors" in rule.scaling:
        return plain / rule.divisors("factors"), 1.0
    factor, low, high = (rule.number(k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    turns = rule.number("original_max_position_embeddings") * plain / (2 * math.pi)  # within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (blend + (1.0 - blend) / factor), 1.0


def _yarn(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Pairs that turn fast are kept, slow ones divided by `factor`, with a ramp over the pairs between (YaRN)."""
    factor = rule.number("factor")
    original = rule.original

    def pair(turns: float) -> float:
        """The (fractional) pair that turns so often within the original context."""
        return rule.dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(rule.theta))

    low, high = pair(rule.number("beta_fast", 32.0)), pair(rule.number("beta_slow", 1.0))
    if rule.scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rule.dim - 1)
    ramp = np.clip((np.arange(rule.dim // 2) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    return plain * (1.0 - ramp) + plain / factor * ramp, _yarn_scale(rule, factor)


def _yarn_scale(rule: _Rule, factor: float) -> float:
    """Longer contexts want sharper attention: cosine and sine grow with the logarithm of the factor."""
    if rule.scaling.get("attention_factor") is not None:
        return rule.number("attention_factor")

    def magnitude(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rule.scaling.get("mscale") and rule.scaling.get("mscale_all_dim"):
        return magnitude(rule.number("mscale")) / magnitude(rule.number("mscale_all_dim"))
    return magnitude(1.0)


def _dynamic(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Frequencies that fall as a text outgrows the original context; within it they are the plain ones."""
    rule.within_original("dynamic")
    return plain, 1.0


def _longrope(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Two lists of divisors, one for texts within the original context and one for longer texts (LongRoPE)."""
    rule.within_original("longrope")
    factor = rule.number("factor", rule.positions / rule.original)
    stretched = math.sqrt(1.0 + math.log(factor) / math.log(rule.original)) if factor > 1 else 1.0
    return plain / rule.divisors("short_factor"), rule.number("attention_factor", stretched)


SCALINGS = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _longrope,
}


def rotate(x: Tensor, step: Step, turn: Rope) -> Tensor:
    """x [T, heads, dim] turned by its positions; channel i pairs with i + pairs, channels past the pairs stay."""
    inv_freq = x.trace.constant("rope.inv_freq", turn.frequencies)
    return ops.rope(x, step.positions, inv_freq, interleaved=False, scale=turn.scale)
