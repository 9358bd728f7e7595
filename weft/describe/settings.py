"""The keys of a config.json under the names that model types have for them, and which of them were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError
from weft.nn.config import LIMITS, flat_rope

# What a draft asks for -> what config.json may call it.
ALIASES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "activation"),
    "rms_eps": ("rms_norm_eps",),
    "layer_eps": ("layer_norm_eps", "layer_norm_epsilon"),
    "norm_eps": ("norm_eps", "norm_epsilon"),
    "theta": ("rope_theta", "rotary_emb_base"),
    "part": ("partial_rotary_factor", "rotary_pct"),
    "layer_types": ("layer_types", "attention_layers"),
    "window": ("sliding_window", "window_size"),
}
HIGHEST = {"layers": LIMITS["num_hidden_layers"], "heads": LIMITS["num_attention_heads"]}
LAYER_ROPES = {
    "full_attention": ("rope_theta", "rope_scaling"),
    "sliding_attention": ("rope_local_base_freq", "rope_local_scaling"),
}


class Settings:
    """config.json, with the defaults of its type; every key that is read is remembered in `read`."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        flat = flat_rope(config, LAYER_ROPES)
        stated = {name for names in ALIASES.values() for name in names if flat.get(name) is not None}
        twins = {name: set(names) & stated for names in ALIASES.values() for name in names}
        missing = {key: value for key, value in defaults.items() if flat.get(key) is None and not twins.get(key)}
        self.values: dict[str, Any] = {**flat, **missing}
        self.read = {"rope_parameters", "rope_scaling", "rope_type"}

    def get(self, name: str, kind: type | tuple[type, ...] = object, default: Any = None) -> Any:
        """The value under any of the names that stand for `name`; None counts as missing."""
        for key in ALIASES.get(name, (name,)):
            value = self.values.get(key)
            self.read.add(key)
            if value is not None:
                wrong = isinstance(value, bool) and kind not in (bool, object)
                if wrong or not isinstance(value, kind):
                    raise FormatError("config.json", "has a value of an unexpected type", field=key, given=value)
                return value
        return default

    def count(self, name: str) -> int:
        """A number of at least one, which must be there. Too many layers are refused before lists of them are made."""
        value, high = self.get(name, int), HIGHEST.get(name, LIMITS["max_position_embeddings"])
        keys = ALIASES.get(name, (name,))
        if value is None:
            raise FormatError("config.json", "is missing", field=keys[0], advice=f"it may be called {', '.join(keys)}")
        if not 1 <= value <= high:
            raise FormatError("config.json", f"must be 1 to {high}", field=keys[0], given=value)
        return int(value)

    def real(self, name: str) -> float | None:
        value = self.get(name, (int, float))
        return None if value is None else float(value)
