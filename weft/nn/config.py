"""Reading config.json into a model's Config: upstream names, unknown keys ignored, wrong types and values refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from weft.errors import FormatError, UnsupportedError

T = TypeVar("T")

# reliability limits: a config that asks for more is refused before anything is allocated
LIMITS = {
    "num_hidden_layers": 1024,
    "hidden_size": 65_536,
    "intermediate_size": 1 << 20,
    "local_attention": 16_777_216,
    "global_attn_every_n_layers": 1024,
    "num_attention_heads": 1024,
    "num_key_value_heads": 1024,
    "head_dim": 4096,
    "vocab_size": 4_194_304,
    "max_position_embeddings": 16_777_216,
    "type_vocab_size": 65_536,
    "original_max_position_embeddings": 16_777_216,
    "sliding_window": 16_777_216,
    "sliding_window_pattern": 1024,
}
# numbers that divide or are divided by, or stand below a root
ABOVE_ZERO = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "global_rope_theta",
    "layer_norm_eps",
    "local_rope_theta",
    "norm_eps",
    "partial_rotary_factor",
    "query_pre_attn_scalar",
    "rms_norm_eps",
    "rope_local_base_freq",
    "rope_theta",
)


def read_config(cls: type[T], raw: Mapping[str, Any]) -> T:
    """An instance of the dataclass `cls` from the keys of `raw` that it has; a key without a default must be there."""
    hints = get_type_hints(cls)
    names: Mapping[str, str] = getattr(cls, "ALIASES", {})  # another name of a key -> the one that the class has
    raw = {**{name: raw[other] for other, name in names.items() if other in raw}, **raw}
    raw = _flat_rope(raw, by_layer="rope_local_base_freq" in hints)
    values: dict[str, Any] = {}
    for field in fields(cls):  # type: ignore[arg-type]
        value = raw.get(field.name)
        if value is None:
            if field.name in raw and type(None) in getattr(hints[field.name], "__args__", ()):
                values[field.name] = None  # null is a value of its own where the model says so
                continue
            if field.default is MISSING and field.default_factory is MISSING:
                raise FormatError(f"[config] {field.name} is missing; config.json does not describe this model")
            continue
        values[field.name] = _checked(field.name, value, hints[field.name])
    return cls(**values)


def _flat_rope(raw: Mapping[str, Any], by_layer: bool) -> Mapping[str, Any]:
    """Newer files keep theta and scaling together in `rope_parameters`; older ones, and GGUF, in two keys.

    A model whose sliding layers turn at a rate of their own has them twice there, under the types of layers. A file
    with both has had the older key put in by hand, and upstream goes by that.
    """
    rope, older = raw.get("rope_parameters"), raw.get("rope_scaling")
    if isinstance(older, dict) and older and isinstance(rope, dict) and "rope_theta" in rope:
        rope = older
    if not isinstance(rope, dict):
        return raw
    if not any(isinstance(value, dict) for value in rope.values()):
        moved = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        return {**raw, **moved, "rope_scaling": rope}
    if not by_layer or not set(rope) <= {"full_attention", "sliding_attention"}:
        kinds = ", ".join(map(str, rope))
        raise UnsupportedError(
            f"[config] rope_parameters differ from layer to layer ({kinds[:80]}) as in no model of weft"
        )
    full, local = rope.get("full_attention"), rope.get("sliding_attention")
    flat = {**raw, "rope_scaling": full, "rope_local_scaling": local}
    for name, part in (("rope_theta", full), ("rope_local_base_freq", local)):
        if isinstance(part, dict) and "rope_theta" in part:
            flat[name] = part["rope_theta"]
    return flat


def _checked(name: str, value: Any, hint: Any) -> Any:
    options = getattr(hint, "__args__", (hint,))
    if bool in options and isinstance(value, bool):
        return value
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise FormatError(f"[config] {name} is {value}; a finite number is wanted")
        if name in ABOVE_ZERO and value <= 0:
            raise FormatError(f"[config] {name} is {value}; a number above zero is wanted")
        return float(value)
    if int in options and isinstance(value, int) and not isinstance(value, bool):
        limit = LIMITS.get(name)
        if limit is not None and not 0 < value <= limit:
            raise FormatError(f"[config] {name} is {value}; 1 to {limit} is allowed")
        return value
    if str in options and isinstance(value, str):
        return value
    kinds = tuple(getattr(option, "__origin__", option) for option in options)
    if isinstance(value, dict) and dict in kinds:
        return value
    if isinstance(value, list) and list in kinds and all(isinstance(entry, str) for entry in value):
        return value
    raise FormatError(f"[config] {name} is {value!r:.80} ({type(value).__name__}), which is not what the model takes")
