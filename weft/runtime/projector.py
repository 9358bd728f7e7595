"""The picture tower of a GGUF model: the mmproj file beside it, found, read and joined to the text part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.errors import NotFoundError, UnsupportedError, WeightError
from weft.frozen import frozen
from weft.models import PROJECTORS, model_module
from weft.nn.scope import PLUS_ONE
from weft.runtime.checkpoint import Checkpoint, Tensor, read_object
from weft.runtime.tower import derived_of, picture_tokens, unfolded
from weft.weights.files import TensorView
from weft.weights.names import Projector

if TYPE_CHECKING:
    from weft.weights.files import TensorFile
    from weft.weights.gguf_meta import Metadata

_NOT_NAME = re.compile(
    r"mmproj|(?:^|[-._])(?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*)(?=$|[-._])|[-._]|model", re.IGNORECASE
)


@frozen
class ProjectorFile:
    """A tower that is read: config.json's content for both parts, that of preprocessor_config.json, the tower's
    checkpoint, and the fields of config.json that the text part's vocabulary has."""

    name: str
    config: Mapping[str, Any]
    processor: Mapping[str, Any]
    tower: Checkpoint
    tokens: tuple[str, ...]


def find_projector(model: Path) -> Path | None:
    """The mmproj file beside a GGUF file: the only one, or of several the one whose name is like the model's."""
    names = (path for path in model.parent.glob("*.gguf") if "mmproj" in path.name.lower() and path != model)
    found = sorted(names)
    if len(found) > 1:
        wanted = _NOT_NAME.sub("", model.stem).lower()
        found = [path for path in found if _NOT_NAME.sub("", path.stem).lower() == wanted]
    return found[0] if found else None


def with_projector(checkpoint: Checkpoint, given: str | Path | None) -> Checkpoint:
    """The checkpoint with its mmproj file: the one `given`, or one that lies beside a GGUF file and fits it.

    One that was not asked for and that weft does not run is left out: the model reads texts.
    """
    from weft.weights import open_gguf
    from weft.weights.projector import deep_layers, projector_kind

    if given is None and (checkpoint.format != "gguf" or not checkpoint.path.is_file()):
        return checkpoint
    path = find_projector(checkpoint.path) if given is None else Path(given).expanduser()
    if path is None:
        return checkpoint
    if checkpoint.format != "gguf":
        advice = "leave it out: a folder has its picture tower in model.safetensors"
        raise UnsupportedError("load", "is for GGUF files", field="mmproj", given=str(path), advice=advice)
    if not path.is_file():
        raise NotFoundError("load", f"no such mmproj file: {path}")
    opened = open_gguf(path)
    kind, width = projector_kind(opened.metadata), checkpoint.config["hidden_size"]
    if given is None and (kind not in PROJECTORS or _text_width(opened, kind) != width):
        return checkpoint
    if _text_width(opened, kind) != width:
        made = _text_width(opened, kind)
        what = f"{path.name} makes vectors of {made} numbers, and {checkpoint.path.name} reads {width}"
        raise UnsupportedError("load", what, field="mmproj", advice="give the file that was made for this model")
    deep, read = len(deep_layers(opened.metadata)), checkpoint.config.get("deepstack_layers", 0)
    if deep != read and given is None:
        return checkpoint
    if deep != read:
        what = f"{path.name} makes vectors for {deep} layers, and {checkpoint.path.name} reads them in {read}"
        raise UnsupportedError("load", what, field="mmproj", advice="give the file that was made for this model")
    declared = projector_of(kind, path.name).tokens
    ids = {name: _token(checkpoint, token) for name, token in declared.items()}
    missing = next((declared[name] for name, id in ids.items() if id is None), None)
    if missing is not None and given is None:
        return checkpoint
    if missing is not None:
        what = f"{checkpoint.path.name} has no token {missing}, which stands for pictures"
        raise UnsupportedError("load", what, field="mmproj", advice="load it without the mmproj file")
    size = checkpoint.size_bytes + opened.nbytes
    return replace(checkpoint, projector=path, size_bytes=size, config={**checkpoint.config, **ids})


def reads_pictures(checkpoint: Checkpoint) -> bool:
    """Whether a generator has pictures among its tokens."""
    if checkpoint.projector is not None:
        return True
    if checkpoint.format != "safetensors" or not checkpoint.path.is_dir():
        return False
    return picture_tokens(read_object(checkpoint.path / "config.json", missing={})) is not None


def projector_of(kind: str, file: str) -> Any:
    """The declaration of a tower in mmproj files of this kind."""
    if kind not in PROJECTORS:
        what = f"must be one of {', '.join(PROJECTORS)}"
        raise UnsupportedError(file, what, field="clip.projector_type", given=kind)
    return cast(Any, model_module(PROJECTORS[kind])).PROJECTOR


def _text_width(opened: TensorFile[Metadata], kind: str) -> int:
    """How wide the vectors are that a file's tower makes."""
    projector_of(kind, opened.metadata.file_name)
    return opened.metadata.get_int("clip.vision.projection_dim", low=1, high=1 << 16)


def _token(checkpoint: Checkpoint, mark: str) -> int | None:
    """The id of a token; None where the vocabulary has none."""
    meta, key = cast("Metadata", checkpoint.metadata), "tokenizer.ggml.tokens"
    tokens: Any = meta.get_array(key, "str") if key in meta else ()
    wanted = mark.encode()
    return next((id for id in range(len(tokens)) if tokens.raw(id) == wanted), None)


def _with_frames(tensors: Mapping[str, TensorView], projector: Projector) -> Mapping[str, TensorView]:
    """The tensors with a matrix over two frames as one, [outputs, colours, frames, rows, cols]."""
    import numpy as np

    if not projector.frames:
        return tensors
    first = next(f"{stem}.weight" for stem, own in projector.root.items() if own == projector.frames)
    missing = next((name for name in (first, f"{first}.1") if name not in tensors), None)
    if missing is not None:
        raise WeightError(
            "mmproj", f"has no {missing}: {projector.kind} projectors have a matrix for each of two frames"
        )
    frames = [tensors[name].numpy().astype(np.float32) for name in (first, f"{first}.1")]
    if frames[0].shape != frames[1].shape or frames[0].ndim != 4:
        raise WeightError("mmproj", f"{first} and {first}.1 must have one shape of four dimensions")
    rest = {name: view for name, view in tensors.items() if name != f"{first}.1"}
    return {**rest, first: TensorView.of(np.stack(frames, axis=2))}


def read_projector(path: Path, text_hidden_size: int) -> ProjectorFile:
    """The tower in an mmproj file, for a text part whose vectors are so wide."""
    from weft.weights import open_gguf
    from weft.weights.projector import colours, deep_layers, projector_kind, vision_config

    opened = open_gguf(path)
    meta = opened.metadata
    kind = projector_kind(meta)
    projector = projector_of(kind, path.name)
    vision, deep = vision_config(meta, projector), deep_layers(meta)
    outer, processor = projector.read(meta, vision)
    vision |= outer.pop("vision_config", {})
    wider = opened.tensors.get("v.blk.0.ffn_down.weight")
    swapped = wider is not None and vision["intermediate_size"] != vision["hidden_size"] == wider.shape[-1]
    tensors = {}
    for name, view in _with_frames(opened.tensors, projector).items():
        own_name = projector.own_name(name, swapped, deep)
        form = PLUS_ONE if own_name.rpartition(".")[0] in projector.plus_one else ""
        tensors[own_name + form] = Tensor(unfolded(view))
    tensors |= derived_of(model_module(PROJECTORS[kind]), tensors)
    config = {"model_type": projector.model_type, "vision_config": vision, **outer}
    own = {**vision, **outer, "text_hidden_size": text_hidden_size, "model_type": PROJECTORS[kind]}
    tower = Checkpoint(
        path=path,
        format="gguf",
        config=own,
        tensors=tensors,
        size_bytes=opened.nbytes,
        metadata=meta,
        files=opened.files,
    )
    return ProjectorFile(path.name, config, {**processor, **colours(meta)}, tower, tuple(projector.tokens))
