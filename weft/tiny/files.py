"""weft's own files of tiny networks: safetensors, with the layers, the classes and the temperature in the header."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.tiny.layers import NAMES, Layer
from weft.weights.safetensors import open_safetensors, write_safetensors

KEY, VERSION = "weft.tiny", 1


def write(path: Path, layers: Sequence[Layer], classes: np.ndarray | None, temperature: float) -> None:
    kinds = [{"activation": layer.activation, "slope": layer.slope} for layer in layers]
    about: dict[str, Any] = {"version": VERSION, "layers": kinds, "temperature": temperature}
    if classes is not None:
        about["classes"] = {"values": classes.tolist(), "dtype": classes.dtype.str}
    tensors = {
        f"{number}.{name}": value
        for number, layer in enumerate(layers)
        for name, value in (("weight", layer.weight), ("bias", layer.bias))
    }
    write_safetensors(path, tensors, {KEY: json.dumps(about)})


def read(path: Path) -> tuple[list[Layer], np.ndarray | None, float]:
    """The layers, what their outputs stand for, and the temperature."""
    opened = open_safetensors(path)
    try:
        about = json.loads(opened.metadata[KEY])
        layers = [_layer(opened, number, one) for number, one in enumerate(about["layers"])]
        classes = about.get("classes")
        named = None if classes is None else np.asarray(classes["values"], np.dtype(classes["dtype"]))
        version, temperature = about["version"], float(about["temperature"])
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise FormatError(path.name, "is not a tiny network of weft") from error
    if version != VERSION:
        raise FormatError(path.name, f"must be {VERSION}", field="version", given=version)
    if not layers or (named is not None and named.shape != (layers[-1].outputs,)):
        raise FormatError(path.name, "must be as many as the last layer has outputs", field="classes")
    return layers, named, temperature


def _layer(opened: Any, number: int, about: dict[str, Any]) -> Layer:
    weight, bias = (opened.tensors[f"{number}.{name}"].numpy().copy() for name in ("weight", "bias"))
    if about["activation"] not in NAMES or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(number)
    if weight.dtype != np.float32 or bias.dtype != np.float32:
        raise ValueError(number)
    return Layer(weight, bias, about["activation"], float(about["slope"]))
