"""Rotary positions: the frequencies, with every kind of rope_scaling, and the rotation of queries and keys.

Some kinds depend on a text's length. Here the context that was asked for decides, once, and not the text: cached keys
are never rotated again, and a result does not depend on how a text was cut into steps (docs/decisions/0008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import ops
from weft.errors import UnsupportedError
from weft.frozen import frozen
from weft.nn.config import LIMITS

if TYPE_CHECKING:
    from weft.graph.tensor import Tensor
    from weft.nn.step import Step


LEAST, MOST = 1e-9, 1e9  # beyond the factors of any real model, and within float32


@frozen
class Rope:
    """Angle per position of each pair, float32 [pairs], and what cosine and sine are multiplied by.

    `name` is the name of the constant in programs: a model that rotates some layers differently has several.
    `interleaved`: channel 2i pairs with 2i + 1, not i with i + pairs. `theta` and `scaling` are what it was made from.
    `axes` [pairs]: by which row of the step's `turns` a pair is turned, where it has them: time, row and column.
    """

    frequencies: np.ndarray
    scale: float = 1.0
    name: str = "rope.inv_freq"
    interleaved: bool = False
    theta: float = 0.0
    scaling: Mapping[str, Any] | None = None
    axes: np.ndarray | None = None


def rope(
    dim: int, theta: float, scaling: Mapping[str, Any] | None = None, *, positions: int = 0, context: int = 0
) -> Rope:
    """The rotation of `dim` channels; `scaling` is the config's rope_scaling.

    `positions` is how many the model takes, `context` how many will be used (0: all of them).
    """
    if not 1 <= theta < math.inf:
        raise UnsupportedError("rope", "must be a number of at least 1", field="rope_theta", given=theta)
    rule = _Rule(dim, theta, positions, context or positions, scaling or {})
    kind = _kind(rule.scaling)
    try:
        with np.errstate(all="ignore"):
            plain = theta ** -(np.arange(0, dim, 2, dtype=np.float64) / dim)
            values, scale = SCALINGS[kind](rule, plain)
            rotation = Rope(values.astype(np.float32), scale, theta=theta, scaling=scaling)
    except (ArithmeticError, ValueError):  # a logarithm, root or quotient that does not exist
        rotation = Rope(np.asarray([math.nan]))
    if not np.isfinite(rotation.frequencies).all() or not math.isfinite(rotation.scale):
        what = f"of type {kind} gives frequencies that are not finite, with a rope_theta of {theta}"
        raise UnsupportedError("rope", what, field="rope_scaling")
    return rotation


def most_positions(scaling: Mapping[str, Any] | None, positions: int) -> int:
    """The longest context that can be asked for of a model trained on `positions`."""
    if not scaling or _kind(scaling) != "dynamic":
        return positions
    longest = positions * _Rule(0, 0.0, positions, 0, scaling).number("factor")
    return max(positions, int(min(longest, LIMITS["max_position_embeddings"])))


def settled_positions(scaling: Mapping[str, Any] | None, positions: int) -> int:
    """The longest context in which the rotation is that of short texts: `positions` unless the scaling changes it."""
    if scaling and _kind(scaling) == "longrope":
        return int(min(_Rule(0, 0.0, positions, 0, scaling).original, positions))
    return positions


def _kind(scaling: Mapping[str, Any]) -> str:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(kind, str) or kind not in SCALINGS:
        advice = f"weft knows {', '.join(SCALINGS)}"
        raise UnsupportedError("rope", "is not supported", field="rope_type", given=kind, advice=advice)
    return kind


def _usable(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST < value < MOST


@frozen
class _Rule:
    """What a kind of rope_scaling may ask for."""

    dim: int
    theta: float
    positions: int
    context: int
    scaling: Mapping[str, Any]

    def number(self, name: str, default: float | None = None) -> float:
        value: Any = self.scaling.get(name)
        value = default if value is None else value
        if not _usable(value):
            raise UnsupportedError("rope", "must be a number above zero", field=name, given=value)
        return float(value)

    @property
    def original(self) -> float:
        """The positions that the model was trained on before it was scaled."""
        return self.number("original_max_position_embeddings", self.positions or None)

    def divisors(self, name: str) -> np.ndarray:
        """One for each pair."""
        given = self.scaling.get(name)
        values = given if isinstance(given, list) else []
        if len(values) != self.dim // 2:
            what = f"must have one number for each of {self.dim // 2} pairs"
            raise UnsupportedError("rope", what, field=name, given=f"{len(values)} numbers")
        if not all(map(_usable, values)):
            raise UnsupportedError("rope", "must hold numbers above zero only", field=name, given=values)
        return np.asarray(values, dtype=np.float64)


def _plain(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    return plain, 1.0


def _linear(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    return plain / rule.number("factor"), 1.0


def _llama3(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Long waves are scaled by `factor`, short ones kept, those between blended (Llama 3.1).

    GGUF files hold the divisor of each pair in place of the rule.
    """
    if "factors" in rule.scaling:
        return plain / rule.divisors("factors"), 1.0
    factor, low, high = (rule.number(k) for k in ("factor", "low_freq_factor", "high_freq_factor"))
    if low >= high:
        raise UnsupportedError("rope", f"must be below high_freq_factor ({high})", field="low_freq_factor", given=low)
    turns = rule.number("original_max_position_embeddings") * plain / (2 * math.pi)  # within the original context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    divisors = (1.0 / (blend + (1.0 - blend) / factor)).astype(np.float32)  # as GGUF keeps them, for the same bits
    return plain / divisors, 1.0


def _yarn(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Pairs that turn fast are kept, slow ones divided by `factor`, with a ramp over the pairs between (YaRN)."""
    factor = rule.number("factor")
    original = rule.original
    if rule.theta == 1:
        raise UnsupportedError("rope", "must be above 1 for yarn", field="rope_theta", given=rule.theta)

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
    """Frequencies that fall with the length of the context past what the model was trained on (NTK-aware)."""
    factor = rule.number("factor")
    if rule.context <= rule.positions or rule.dim <= 2:
        return plain, 1.0
    grown = factor * rule.context / rule.positions - (factor - 1.0)
    theta = rule.theta * grown ** (rule.dim / (rule.dim - 2))
    return theta ** -(np.arange(0, rule.dim, 2, dtype=np.float64) / rule.dim), 1.0


def _longrope(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """Two lists of divisors, one for contexts within the original one and one for longer ones (LongRoPE)."""
    short, long = rule.divisors("short_factor"), rule.divisors("long_factor")
    if rule.original <= 1:
        what, field = "must be above 1 for longrope", "original_max_position_embeddings"
        raise UnsupportedError("rope", what, field=field, given=rule.original)
    factor = rule.number("factor", rule.positions / rule.original)
    stretched = math.sqrt(1.0 + math.log(factor) / math.log(rule.original)) if factor > 1 else 1.0
    return plain / (long if rule.context > rule.original else short), rule.number("attention_factor", stretched)


def _proportional(rule: _Rule, plain: np.ndarray) -> tuple[np.ndarray, float]:
    """The first pairs turn, at the rates of a head that turns as a whole; the others stay (Gemma 4)."""
    turning = np.arange(len(plain)) < int(rule.number("partial_rotary_factor", 1.0) * rule.dim // 2)
    return np.where(turning, plain / rule.number("factor", 1.0), 0.0), 1.0


SCALINGS = {
    "default": _plain,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "dynamic": _dynamic,
    "longrope": _longrope,
    "proportional": _proportional,
}


def turned_by_axes(rotation: Rope | None, scaling: Mapping[str, Any] | None, sections: Sequence[int]) -> Rope | None:
    """The rotation with pairs that turn with time, row and column in turns, as many with each as mrope_section of the
    config says, or `sections` (interleaved multimodal rope). What rows and columns do not take turns with time."""
    if rotation is None:
        return None
    said, pairs = scaling or {}, len(rotation.frequencies)
    given = said.get("mrope_section", [min(count, pairs) for count in sections])
    counts = given if isinstance(given, list) else []
    if len(counts) != 3 or not all(type(n) is int and 0 <= n <= pairs for n in counts):
        what = f"must be three numbers of at most {pairs} pairs"
        raise UnsupportedError("rope", what, field="mrope_section", given=given)
    if said.get("mrope_interleaved", True) is not True:
        raise UnsupportedError("rope", "must be true", field="mrope_interleaved", given=said["mrope_interleaved"])
    axes = np.zeros(pairs, np.float32)
    for axis in (1, 2):
        axes[axis : 3 * given[axis] : 3] = axis
    return replace(rotation, axes=axes)


def grid_rope(dim: int, theta: float = 10_000.0) -> Rope:
    """The rotation of `dim` channels of patches: half of the pairs turn with rows, the others with columns."""
    half = dim // 2
    slow = theta ** -(np.arange(0, half, 2, dtype=np.float64) / half)
    axes = np.repeat(np.array([1, 2], np.float32), len(slow))
    return Rope(np.concatenate([slow, slow]).astype(np.float32), name="rope.grid.inv_freq", theta=theta, axes=axes)


def rotate(x: Tensor, step: Step, rotation: Rope) -> Tensor:
    """x [T, heads, dim] rotated by its positions; channels past the pairs stay."""
    inv_freq = x.trace.constant(rotation.name, rotation.frequencies)
    if rotation.axes is not None and (turns := step.turns) is not None:
        axes = x.trace.constant(f"{rotation.name}.axes", rotation.axes)
        table = ops.rope_table(turns, inv_freq, axes, scale=rotation.scale)  # one for all layers: see fuse_rope
        return ops.rope_turn(x, table, interleaved=rotation.interleaved)
    return ops.rope(x, step.positions, inv_freq, interleaved=rotation.interleaved, scale=rotation.scale)
