"""The picture tower of a folder as the mmproj file that lies beside a GGUF file of its text part."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from weft.errors import UnsupportedError
from weft.models import model_module
from weft.nn.config import read_config
from weft.quantise.source import Source
from weft.runtime.checkpoint import read_object
from weft.runtime.tower import open_tower, picture_tokens
from weft.weights import TensorView
from weft.weights.names import Projector
from weft.weights.projector import projector_metadata

PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def open_tower_source(folder: Path) -> Source:
    """The tower of a folder, as an mmproj file has it; nothing is read but names and settings."""
    config: dict[str, Any] = read_object(folder / "config.json", missing={}) if folder.is_dir() else {}
    if not config or picture_tokens(config) is None:
        what = "has no picture tower whose outputs are tokens of a text"
        advice = "give the folder of a chat that sees, such as SmolVLM"
        raise UnsupportedError("quantize", what, field="mmproj", given=str(folder), advice=advice)
    text = config.get("text_config")
    width = text.get("hidden_size") if isinstance(text, dict) else None
    if type(width) is not int:
        raise UnsupportedError("quantize", "does not say how wide the text is", field="mmproj", given=str(folder))
    checkpoint = open_tower(folder, width)
    assert checkpoint is not None  # `picture_tokens`
    module = cast(Any, model_module(checkpoint.model_type))
    projector = getattr(module, "PROJECTOR", None)
    if projector is None:
        what = f"mmproj files have no towers of type {checkpoint.model_type!r}"
        raise UnsupportedError("quantize", what, field="mmproj", given=str(folder))
    with checkpoint.naming():
        own = read_config(module.Config, checkpoint.config)
    metadata = projector_metadata(projector, own, width)
    metadata |= {"general.name": folder.resolve().name, **projector.write(config, _processor(folder))}
    deep, tensors = getattr(own, "deep", ()), dict[str, TensorView]()
    for name, tensor in checkpoint.tensors.items():
        stem, _, suffix = name.rpartition(".")
        if stem in projector.made:
            continue
        stored = projector.file_name(name, deep)
        if stem == projector.frames and suffix == "weight":
            tensors |= {stored + ending: _frame(tensor.view, i) for i, ending in enumerate(("", ".1"))}
        else:
            tensors[stored] = _stored(name, tensor.view, own, projector)
    return Source(folder, tensors, metadata, tuple(checkpoint.files))


def _processor(folder: Path) -> dict[str, Any]:
    """What the folder says about preparing pictures."""
    for file in PROCESSORS:
        said: dict[str, Any] = read_object(folder / file, missing={})
        said = said.get("image_processor", {}) if file == PROCESSORS[1] else said
        if said:
            return said
    return {}


def _frame(view: TensorView, index: int) -> TensorView:
    """The part of a matrix [outputs, colours, frames, rows, cols] over one frame."""
    import numpy as np

    outputs, colours, frames, rows, cols = view.shape
    parts = view.bytes().reshape(outputs, colours, frames, -1)[:, :, index]
    return TensorView(view.dtype, (outputs, colours, rows, cols), np.ascontiguousarray(parts).reshape(-1))


def _stored(name: str, view: TensorView, config: Any, projector: Projector) -> TensorView:
    """A tensor as files have it: the matrix over patches is a convolution, and norms may have one added."""
    import numpy as np

    if name.rpartition(".")[0] in projector.plus_one:
        return TensorView.of(view.numpy().astype(np.float32) + np.float32(1))
    if name != "embeddings.patch_embedding.weight":
        return view
    shape = (config.hidden_size, config.num_channels, config.patch_size, config.patch_size)
    return TensorView(view.dtype, shape, view.bytes())
