"""weft's own files of tiny networks: safetensors, with the layers, the classes and the temperature in the header.

Weights are float32, or with `int8` codes of a byte with one scale for each output, as `Compiled` computes with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError, InputError
from weft.tiny.layers import NAMES, Layer
from weft.weights.safetensors import open_safetensors, write_safetensors

KEY, VERSION = "weft.tiny", 1
STEPS = 127  # of an int8 code, to each side


def write(
    path: Path,
    layers: Sequence[Layer],
    classes: np.ndarray | None,
    temperature: float,
    *,
    int8: bool = False,
    more: Mapping[str, Any] | None = None,
) -> None:
    """`more` goes into the header beside the network."""
    kinds = [{"activation": layer.activation, "slope": layer.slope} for layer in layers]
    about: dict[str, Any] = {"version": VERSION, "layers": kinds, "temperature": temperature, **(more or {})}
    if classes is not None:
        about["classes"] = {"values": classes.tolist(), "dtype": classes.dtype.str}
    tensors: dict[str, np.ndarray] = {}
    for number, layer in enumerate(layers):
        tensors |= _codes(number, layer) if int8 else {f"{number}.weight": layer.weight}
        tensors[f"{number}.bias"] = layer.bias
    write_safetensors(path, tensors, {KEY: json.dumps(about)})


def _codes(number: int, layer: Layer) -> dict[str, np.ndarray]:
    if not np.isfinite(layer.weight).all():
        raise InputError("tiny", "must be finite to be kept in int8", field="weights", index=number)
    scales = np.abs(layer.weight).max(axis=1) / np.float32(STEPS)
    codes = np.rint(layer.weight / np.where(scales > 0, scales, 1)[:, None]).clip(-STEPS, STEPS)
    return {f"{number}.codes": codes.astype(np.int8), f"{number}.scales": scales.astype(np.float32)}


def more(path: Path) -> dict[str, Any]:
    """The header of a file, with what it has beside the network."""
    with open_safetensors(path) as opened:
        try:
            about = json.loads(opened.metadata[KEY])
        except (KeyError, ValueError) as error:
            raise FormatError(path.name, "is not a tiny network of weft") from error
    if not isinstance(about, dict):
        raise FormatError(path.name, "is not a tiny network of weft")
    return about


def is_tiny(path: Path) -> bool:
    """Whether a file is one of these."""
    try:
        return path.is_file() and bool(more(path))
    except FormatError:
        return False


def read(path: Path) -> tuple[list[Layer], np.ndarray | None, float]:
    """The layers, what their outputs stand for, and the temperature."""
    about = more(path)
    try:
        with open_safetensors(path) as opened:
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
    bias = opened.tensors[f"{number}.bias"].numpy().copy()
    if f"{number}.codes" in opened.tensors:
        codes, scales = (opened.tensors[f"{number}.{name}"].numpy() for name in ("codes", "scales"))
        if codes.dtype != np.int8 or scales.dtype != np.float32 or codes.ndim != 2 or scales.shape != codes.shape[:1]:
            raise ValueError(number)
        weight = codes.astype(np.float32) * scales[:, None]
    else:
        weight = opened.tensors[f"{number}.weight"].numpy().copy()
    if about["activation"] not in NAMES or weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(number)
    if weight.dtype != np.float32 or bias.dtype != np.float32:
        raise ValueError(number)
    return Layer(weight, bias, about["activation"], float(about["slope"]))
