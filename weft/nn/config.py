"""Reading config.json into a model's Config: upstream names, unknown keys ignored, wrong types and values refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast, get_args, get_type_hints

from weft.errors import FormatError, UnsupportedError
from weft.frozen import frozen

T = TypeVar("T")

# Fields that many models have. A config that asks for more than the limit is refused before anything is allocated.
# Fields of one model are in its Config: `LIMITS` and `ABOVE_ZERO` there.
LIMITS = {
    "num_hidden_layers": 1024,
    "hidden_size": 65_536,
    "intermediate_size": 1 << 20,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 4096,
    "vocab_size": 4_194_304,
    "max_position_embeddings": 16_777_216,
    "type_vocab_size": 65_536,
    "original_max_position_embeddings": 16_777_216,
    "sliding_window": 16_777_216,
}
MAX_EXPERTS = 65_536  # weft/ops/experts.py
# Numbers that are divisors, dividends or below a root.
ABOVE_ZERO = ("layer_norm_eps", "norm_eps", "partial_rotary_factor", "rms_norm_eps", "rope_theta")
LAYER_TYPES = ("full_attention", "sliding_attention")


def read_config(cls: type[T], raw: Mapping[str, Any]) -> T:
    """An instance of the dataclass `cls` from the keys of `raw` that it has; a key without a default must be there."""
    hints = get_type_hints(cls)
    names = _declared(cls, "ALIASES")
    raw = {**{name: raw[other] for other, name in names.items() if other in raw}, **raw}
    raw = flat_rope(raw, _declared(cls, "LAYER_ROPES"))
    limits = {**LIMITS, **_declared(cls, "LIMITS"), **dict.fromkeys([*ABOVE_ZERO, *_declared(cls, "ABOVE_ZERO")], 0)}
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        value = raw.get(field.name)
        if value is None:
            if field.name in raw and type(None) in get_args(hints[field.name]):
                values[field.name] = None  # null is a value of its own where the model says so
                continue
            if field.default is MISSING and field.default_factory is MISSING:
                raise FormatError("config", "is missing; config.json does not describe this model", field=field.name)
            continue
        values[field.name] = _checked(field.name, value, hints[field.name], limits.get(field.name))
    return cls(**values)


def unsupported(cfg: Any, field: str, what: str = "is not supported", **rest: Any) -> UnsupportedError:
    """The error about a value of a model's Config; it begins with the model's type. `rest`: given, advice."""
    return UnsupportedError(type(cfg).__module__.rpartition(".")[2], what, field=field, **rest)


def check_one_of(cfg: Any, field: str, known: Collection[str]) -> None:
    """Refuse a value of the Config that is not one of `known`."""
    if getattr(cfg, field) not in known:
        raise unsupported(cfg, field, given=getattr(cfg, field), advice=f"weft knows {', '.join(known)}")


def check_part_rotates(cfg: Any) -> None:
    """Refuse a partial_rotary_factor that does not rotate an even number of channels of a head."""
    if not 0 < cfg.partial_rotary_factor <= 1 or not cfg.rotated or cfg.rotated % 2:
        what = f"must be above 0, at most 1, and rotate an even number of {cfg.channels} channels"
        raise unsupported(cfg, "partial_rotary_factor", what, given=cfg.partial_rotary_factor)


def check_layer_types(cfg: Any, types: Sequence[str] | None, known: Collection[str] = LAYER_TYPES) -> None:
    """Refuse layer_types that are not one known type for each layer."""
    unknown = sorted(set(types or ()) - set(known))
    if unknown:
        given = ", ".join(unknown)
        raise unsupported(cfg, "layer_types", given=given, advice=f"weft knows {', '.join(known)}")
    if types is not None and len(types) != cfg.num_hidden_layers:
        what = f"must have one entry for each of {cfg.num_hidden_layers} layers"
        raise unsupported(cfg, "layer_types", what, given=f"{len(types)} entries")


@frozen
class Mamba2:
    """Sizes of a layer: `heads` of `head_dim` channels, each with a state [state, head_dim]; b and c are shared by the
    heads of a group; the convolution is `width` tokens wide."""

    heads: int
    head_dim: int
    groups: int
    state: int
    width: int
    eps: float
    bias: bool = False  # of the projections
    conv_bias: bool = True

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    def refusal(self, cfg: Any, fields: dict[str, str]) -> UnsupportedError | None:
        """Why a layer of these sizes cannot be, if so. `fields` has the Config's names of `heads` and `width`."""
        if self.heads % self.groups:
            return unsupported(cfg, fields["heads"], f"must be a multiple of {self.groups} groups", given=self.heads)
        if self.width < 2:
            return unsupported(cfg, fields["width"], "must be at least 2", given=self.width)
        return None


def _declared(cls: type, name: str) -> dict[str, Any]:
    """A class variable of a Config and of those it inherits from, joined; a tuple's entries are keys."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        own = vars(base).get(name, {})
        found.update(own if isinstance(own, Mapping) else dict.fromkeys(own))
    return found


def flat_rope(raw: Mapping[str, Any], by_layer: Mapping[str, tuple[str, str]]) -> Mapping[str, Any]:
    """The config with theta and scaling in fields of their own: older files, and GGUF, have them so.

    Newer files keep both in `rope_parameters`, once for every type of layer where a model says so (`by_layer`: type ->
    fields). A file with both spellings was edited by hand, and upstream takes the older key.
    """
    rope, older = raw.get("rope_parameters"), raw.get("rope_scaling")
    if isinstance(older, dict) and older and isinstance(rope, dict) and "rope_theta" in rope:
        rope = older
    if not isinstance(rope, dict):
        return raw
    if not any(isinstance(value, dict) for value in rope.values()):
        moved = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        return {**raw, **moved, "rope_scaling": rope}
    if not set(rope) <= set(by_layer):
        what = "differs by layer type, which this model type does not support"
        raise UnsupportedError("config", what, field="rope_parameters", given=", ".join(map(str, rope)))
    flat = dict(raw)
    for kind, (theta, scaling) in by_layer.items():
        part = flat[scaling] = rope.get(kind)
        if isinstance(part, dict) and "rope_theta" in part:
            flat[theta] = part["rope_theta"]
    return flat


def _checked(name: str, value: Any, hint: Any, limit: int | None) -> Any:
    """The value, if it is of a type in `hint`. `limit` is the highest count, 0 for a number that must be positive."""
    options = get_args(hint) if type(None) in get_args(hint) else (hint,)
    if bool in options and isinstance(value, bool):
        return value
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise FormatError("config", "must be a finite number", field=name, given=value)
        if limit == 0 and value <= 0:
            raise FormatError("config", "must be above zero", field=name, given=value)
        return float(value)
    if int in options and isinstance(value, int) and not isinstance(value, bool):
        if limit is not None and not 0 < value <= limit:
            raise FormatError("config", f"must be 1 to {limit}", field=name, given=value)
        return value
    if str in options and isinstance(value, str):
        return value
    for option in options:
        kind = getattr(option, "__origin__", option)
        if is_dataclass(option) and isinstance(value, cast(type, option)):
            return value  # a section of a description, which is read already
        if kind is dict and isinstance(value, dict):
            return value
        if kind is list and isinstance(value, list) and all(type(entry) is get_args(option)[0] for entry in value):
            return value
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options if option is not type(None))
    raise FormatError("config", f"must be of type {wanted}", field=name, given=value)
