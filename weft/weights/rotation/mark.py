"""What config.json says of a rotated model: its type as no other program knows it, and how it was rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.errors import FormatError, UnsupportedError
from weft.weights.rotation.turns import VERSION, Rotation

MARK = "weft_rotation"  # in config.json
MODEL_TYPE = "weft_rotated"  # in config.json, so that no other program computes something else from the weights
GAIN = "weft_rotation.gain."  # then the name of a norm's weight: what it was
KEPT = ("model_type", "architectures")


def marked(config: Mapping[str, Any], rotation: Rotation) -> dict[str, Any]:
    """config.json of a rotated model, from that of the model as it was."""
    mark: dict[str, Any] = {"version": VERSION, "seed": rotation.seed, "head": rotation.head}
    mark |= {"stream": rotation.stream, "turned": rotation.turned}
    mark |= {name: config[name] for name in KEPT if name in config}
    changed: dict[str, Any] = {"model_type": MODEL_TYPE, "architectures": ["WeftRotated"]}
    changed |= {"tie_word_embeddings": False} if rotation.stream else {}
    return {**config, **changed, MARK: mark}


def rotation_of(config: Mapping[str, Any]) -> Rotation | None:
    """The turns that the weights of a folder with this config.json have been through; None for none."""
    mark = config.get(MARK)
    if mark is None:
        return None
    if not isinstance(mark, dict):
        raise FormatError("config.json", "must be an object", field=MARK, given=mark)
    if mark.get("version") != VERSION:
        advice = "use a newer weft, or quantise the model again with this one"
        given = mark.get("version")
        raise UnsupportedError("config.json", f"is not {VERSION}", field=f"{MARK}.version", given=given, advice=advice)
    for name, least in (("seed", 0), ("head", 1)):
        value = mark.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            what = f"must be a whole number from {least} on"
            raise FormatError("config.json", what, field=f"{MARK}.{name}", given=value)
    if not isinstance(mark.get("stream"), bool):
        raise FormatError("config.json", "must be true or false", field=f"{MARK}.stream", given=mark.get("stream"))
    made = Rotation(mark["seed"], mark["head"], stream=mark["stream"])
    if mark.get("turned") != made.turned:
        what = f"must be {made.turned}"
        raise FormatError("config.json", what, field=f"{MARK}.turned", given=mark.get("turned"))
    if not isinstance(mark.get("model_type"), str):
        raise FormatError("config.json", "must be a string", field=f"{MARK}.model_type", given=mark.get("model_type"))
    return made


def as_it_was(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with the type that the model had before it was rotated; MARK stays."""
    if rotation_of(config) is None:
        return dict(config)
    mark = config[MARK]
    return {**config, **{name: mark[name] for name in KEPT if name in mark}}


def refuse_rotated(where: str, config: Mapping[str, Any], what: str) -> None:
    """Raise an UnsupportedError where the model is rotated; `what` cannot be done with one."""
    if config.get(MARK) is not None:
        advice = "do it with the model as it was, then weft quantize --rotate"
        raise UnsupportedError(where, f"the model is rotated (weft quantize --rotate): {what}", advice=advice)


def turned_of(config: Mapping[str, Any]) -> Mapping[str, int]:
    """What Trace.turned is for a model of this config."""
    rotation = rotation_of(config)
    return {} if rotation is None else rotation.turned
