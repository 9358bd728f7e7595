"""The metadata of mmproj files, each the picture tower of a GGUF model, with the architecture `clip`.

What their tensors are called, and what else differs, the file of a tower declares (weft/models): names.Projector.
"""

from __future__ import annotations

from typing import Any

from weft.errors import FormatError, InputError, UnsupportedError
from weft.weights.gguf_config import MAX_EMBEDDING, MAX_FEED_FORWARD, MAX_HEADS, MAX_LAYERS, shortest
from weft.weights.gguf_meta import Metadata
from weft.weights.names import Projector

ARCHITECTURE = "clip"
KIND = "clip.projector_type"
DEEP = "clip.vision.is_deepstack_layers"
MAX_SIDE = 4_096  # pixels
# config.json's word in vision_config -> the key below clip.vision, and the most that a file may say
_COUNTS = {
    "hidden_size": ("embedding_length", MAX_EMBEDDING),
    "intermediate_size": ("feed_forward_length", MAX_FEED_FORWARD),
    "num_hidden_layers": ("block_count", MAX_LAYERS),
    "num_attention_heads": ("attention.head_count", MAX_HEADS),
    "image_size": ("image_size", MAX_SIDE),
    "patch_size": ("patch_size", MAX_SIDE),
}
_EPS = "attention.layer_norm_epsilon"
# hidden_act -> the flag that says so, None where none does; readers apply the tanh form of gelu
_ACTIVATIONS = {"gelu_pytorch_tanh": "clip.use_gelu", "silu": "clip.use_silu", "quick_gelu": None}


def projector_kind(meta: Metadata) -> str:
    """The kind of projector in a file; an error that says what else it is."""
    architecture = meta.get_str("general.architecture")
    if architecture != ARCHITECTURE:
        what = f"is a model of architecture {architecture!r}, not a picture tower"
        raise UnsupportedError(meta.file_name, what, field="mmproj", advice="give the file whose name has mmproj in it")
    if not meta.get_bool("clip.has_vision_encoder", False):
        raise UnsupportedError(meta.file_name, "has no picture tower: clip.has_vision_encoder is not true")
    return meta.get_str("clip.vision.projector_type", meta.get_str(KIND, "")) or meta.get_str(KIND)


def vision_config(meta: Metadata, projector: Projector) -> dict[str, Any]:
    """The vision_config of config.json, from a file's metadata; every number is within weft's limits."""
    found: dict[str, Any] = {
        projector.words.get(name, name): meta.get_int(f"clip.vision.{key}", low=1, high=high)
        for name, (key, high) in _COUNTS.items()
    }
    flags = {name: flag for name, flag in _ACTIVATIONS.items() if flag is not None and meta.get_bool(flag, False)}
    if len(flags) > 1:
        raise FormatError(meta.file_name, "cannot both be true", field=" and ".join(flags.values()))
    eps = shortest(meta.get_float(f"clip.vision.{_EPS}"))
    deep = {"deepstack_visual_indexes": deep_layers(meta)} if projector.deep[0] else {}
    return {**found, **deep, "hidden_act": next(iter(flags), "quick_gelu"), "layer_norm_eps": eps}


def colours(meta: Metadata) -> dict[str, Any]:
    """image_mean and image_std of preprocessor_config.json."""
    found = {}
    for name in ("image_mean", "image_std"):
        key = f"clip.vision.{name}"
        values = meta.get_array(key, "float")
        if len(values) != 3:
            raise FormatError(meta.file_name, "must be three numbers", field=key, given=f"{len(values)} of them")
        found[name] = [shortest(float(value)) for value in values]
    return found


def deep_layers(meta: Metadata) -> list[int]:
    """The layers of the tower whose states go in deeper (deep stack)."""
    return [layer for layer, flag in enumerate(meta.get_array(DEEP, "bool", ())) if flag]


def projector_metadata(projector: Projector, config: Any, text_hidden_size: int) -> dict[str, Any]:
    """The keys that files of all kinds have; `config` is the tower's Config."""
    if config.hidden_act not in _ACTIVATIONS:
        what = f"the activation {config.hidden_act} cannot be written: mmproj files have no key for it"
        raise InputError("mmproj", what, field="hidden_act", given=config.hidden_act)
    flag = _ACTIVATIONS[config.hidden_act]
    keys: dict[str, Any] = {
        f"clip.vision.{key}": getattr(config, projector.words.get(name, name)) for name, (key, _) in _COUNTS.items()
    }
    return {
        "general.architecture": ARCHITECTURE,
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        KIND: projector.kind,
        "clip.vision.projection_dim": text_hidden_size,
        **keys,
        f"clip.vision.{_EPS}": float(config.layer_norm_eps),
        **({flag: True} if flag is not None else {}),
        **({DEEP: [layer in config.deep for layer in range(config.depth)]} if projector.deep[0] else {}),
    }
