"""Reading config.json into a model's Config: upstream names, unknown keys ignored, wrong types and values refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

from weft.errors import FormatError

T = TypeVar("T")

# reliability limits: a config that asks for more is refused before anything is allocated
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
}


def read_config(cls: type[T], raw: Mapping[str, Any]) -> T:
    """An instance of the dataclass `cls` from the keys of `raw` that it has; a key without a default must be there."""
    hints = get_type_hints(cls)
    values = {}
    for field in fields(cls):  # type: ignore[arg-type]
        value = raw.get(field.name)
        if value is None:
            if field.default is MISSING and field.default_factory is MISSING:
                raise FormatError(f"[config] {field.name} is missing; config.json does not describe this model")
            continue
        values[field.name] = _checked(field.name, value, hints[field.name])
    return cls(**values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    options = getattr(hint, "__args__", (hint,))
    if bool in options and isinstance(value, bool):
        return value
    if float in options and isinstance(value, int | float) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise FormatError(f"[config] {name} is {value}; a finite number is wanted")
        return float(value)
    if int in options and isinstance(value, int) and not isinstance(value, bool):
        limit = LIMITS.get(name)
        if limit is not None and not 0 < value <= limit:
            raise FormatError(f"[config] {name} is {value}; 1 to {limit} is allowed")
        return value
    if str in options and isinstance(value, str):
        return value
    if isinstance(value, dict) and dict in (getattr(option, "__origin__", option) for option in options):
        return value
    raise FormatError(f"[config] {name} is {value!r} ({type(value).__name__}), which is not what the model takes")
