"""An adapter added to the weights of its base, for readers that take no adapters: measured before it is kept.

A quantised matrix that has an adapter's small change added may lose it when it is rounded again. So the loss is
measured of the base, of the base with the adapter, of the merged model, and of the merged model as it is served.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.dtype import DTYPES
from weft.errors import InputError, UnsupportedError, WeightError
from weft.frozen import frozen
from weft.quantise.plan import FILE_TYPES
from weft.runtime.adapters.targets import OF_EXPERTS
from weft.runtime.checkpoint import Checkpoint, Tensor, open_checkpoint
from weft.train.adapter import spellings
from weft.train.data.encode import Encoder
from weft.train.data.lessons import read_lessons
from weft.train.data.rows import Data
from weft.train.data.sample import SAMPLE, read_sample, sample_of
from weft.train.measure import Measured, measure_checkpoint
from weft.train.targets import part_of
from weft.train.training import Base
from weft.weights import open_gguf, open_safetensors, quantise, write_gguf, write_safetensors
from weft.weights.adapters import AdaptedModule, open_adapter
from weft.weights.files import MadeView, TensorView
from weft.weights.rotation import refuse_rotated

if TYPE_CHECKING:
    import numpy as np

    from weft.train.learner import Lesson

FLOATS = ("f32", "f16", "bf16")
TYPES = (*FLOATS, "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")


@frozen
class Merged:
    """What was measured: the base, with the adapter, merged in f32 arithmetic, and merged as it is served."""

    path: Path
    base: Measured
    adapted: Measured
    merged: Measured
    served: Measured

    @property
    def lost(self) -> float:
        """By how much the loss of the merged model is above that of the base with its adapter, at worst."""
        return max(self.merged.loss, self.served.loss) - self.adapted.loss


def merge(
    model: str | os.PathLike[str],
    adapter: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    type: str | None = None,
    max_loss: float = 0.01,
    data: Data | None = None,
) -> Merged:
    """Write the model with the adapter in its weights: a GGUF file for a GGUF base, a folder for a folder.

    `type` is what changed matrices, and others that are not quantised yet, are stored as; None keeps the type of each.
    The losses are measured on `data`, or on the rows beside an adapter that weft trained. InputError, and no file, if
    one of the merged model's is more than `max_loss` above that of the base with its adapter.
    """
    base, place, folder = Base.open(model), Path(output), Path(adapter)
    _check(base.checkpoint, place, type)
    lessons = _lessons(base, folder, data)
    changed = _changed(base.checkpoint, open_adapter(folder).modules, type)
    partial = place.with_name(f".{place.stem}.partial{place.suffix}")
    try:
        _write(base.checkpoint, partial, changed, type)
        measures = {
            "base": measure_checkpoint(base.checkpoint, lessons, compute="f32"),
            "adapted": measure_checkpoint(base.checkpoint, lessons, compute="f32", adapter=folder),
            "merged": measure_checkpoint(open_checkpoint(partial), lessons, compute="f32"),
            "served": measure_checkpoint(open_checkpoint(partial), lessons, compute=None),
        }
        found = Merged(place, **measures)
        if found.lost > max_loss:
            numbers = ", ".join(f"{name} {measure.loss:.4f}" for name, measure in measures.items())
            what = (
                f"the merged model's loss is {found.lost:.4f} above the adapter's, more than {max_loss:g} ({numbers})"
            )
            raise InputError("merge", what, advice="use a wider --type, or serve the adapter beside its base")
        os.replace(partial, place)
        return found
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)


def _check(checkpoint: Checkpoint, output: Path, type: str | None) -> None:
    refuse_rotated("merge", checkpoint.config, "adapters are merged before, or applied while it runs")
    if type is not None and type not in TYPES:
        advice = f"use one of {', '.join(TYPES)}"
        raise UnsupportedError("merge", "cannot be written", field="type", given=type, advice=advice)
    if output.exists():
        raise InputError("merge", f"{output} exists", field="output", advice="name a new file or folder")
    if not output.parent.is_dir():
        raise InputError("merge", f"{output.parent} is not a folder", field="output", advice="create it")
    is_file = output.suffix.lower() == ".gguf"
    if checkpoint.format == "gguf" and not is_file:
        raise InputError("merge", "must end in .gguf, as the base does", field="output", given=output.name)
    if checkpoint.format != "gguf" and is_file:
        advice = "name a folder; other tools convert it to GGUF"
        raise UnsupportedError(
            "merge", "must be a folder, as the base is", field="output", given=output.name, advice=advice
        )
    if checkpoint.format != "gguf" and type not in (None, *FLOATS):
        advice = f"use one of {', '.join(FLOATS)}, or a GGUF file as the base"
        raise UnsupportedError("merge", "cannot be stored as safetensors", field="type", given=type, advice=advice)


def _lessons(base: Base, adapter: Path, data: Data | None) -> list[Lesson]:
    if data is not None:
        encoder = Encoder(base.tokenizer, base.template, base.end)
        return sample_of(read_lessons(data, encoder, max_length=base.positions, too_long="cut").lessons)
    if not (adapter / SAMPLE).is_file():
        what = f"there is nothing to measure the loss on: {adapter} has no {SAMPLE}"
        raise InputError("merge", what, advice="give rows with --data")
    return read_sample(adapter / SAMPLE, base.vocab_size)


def _changed(checkpoint: Checkpoint, modules: Mapping[str, AdaptedModule], type: str | None) -> dict[str, TensorView]:
    """The changed tensors by their names in the file; each is made when it is written."""
    found: dict[str, TensorView] = {}
    for given, module in modules.items():
        if module.matrices > 1 or OF_EXPERTS.fullmatch(given):
            what = f"{given[:120]}: an adapter of experts cannot be merged"
            raise UnsupportedError("merge", what, advice="serve it beside its base")
        stored = next(filter(None, (_stored(checkpoint, name) for name in spellings(given, checkpoint))), None)
        if stored is None:
            tied = "; its weights are those of the embedding" if given.endswith("lm_head") else ""
            raise WeightError("merge", f"the base has no matrix of its own for {given[:120]}{tied}")
        others = [what for what, _ in module.tensors() if what not in ("down", "up", "magnitude", "weight")]
        lookup = "embed" in given.rpartition(".")[2]
        # A table replaced as a whole is merged, unless it is the head too, which the adapter leaves as it is.
        if others or (lookup and (module.weight is None or "lm_head.weight" not in checkpoint.tensors)):
            what = f"{given[:120]}: an adapter with {others[0] if others else 'embeddings'} cannot be merged"
            raise UnsupportedError("merge", what, advice="serve it beside its base")
        for name, tensor in stored.items():
            kind = type or tensor.view.dtype.name
            if kind not in TYPES:
                what = f"{name} is stored as {kind}, which weft cannot quantise to"
                raise UnsupportedError("merge", what, advice=f"choose a --type: {', '.join(TYPES)}")
            view: Any = tensor.view
            found[view.name] = _made(given, name, tensor, module, _fitting(kind, tensor.view.shape))
    return found


def _stored(checkpoint: Checkpoint, module: str) -> dict[str, Tensor]:
    """The tensors that hold a module's matrix, whole or in parts."""
    name = f"{module}.weight"
    return {key: tensor for key, tensor in checkpoint.tensors.items() if key == name or key.startswith(f"{name}:")}


def _fitting(kind: str, shape: tuple[int, ...]) -> str:
    """The type, or f16 where the rows are not whole blocks of it."""
    return kind if len(shape) > 1 and shape[-1] % DTYPES[kind].block == 0 else "f16"


def _made(given: str, name: str, tensor: Tensor, module: AdaptedModule, kind: str) -> TensorView:
    part = part_of(name, tensor.view.shape[0])
    assert part is not None
    whole = (part.total, tensor.view.shape[1])
    for what, view in module.tensors():
        rank = module.rank
        wanted = {"down": (rank, whole[1]), "up": (whole[0], rank), "weight": whole}.get(what, (whole[0],))
        if view.shape != wanted:
            raise WeightError("merge", f"{given[:120]}: {what} has shape {view.shape}, the base needs {wanted}")

    def make() -> np.ndarray:
        import numpy as np

        rows = slice(part.first, part.end)
        values = {what: view.numpy().astype(np.float32) for what, view in module.tensors()}
        if "weight" in values:
            new = values["weight"][rows]
        else:
            change = values["up"][rows].astype(np.float64) @ values["down"].astype(np.float64)
            new = (tensor.numpy().astype(np.float64) + module.scale * change).astype(np.float32)
        if "magnitude" in values:
            new *= (values["magnitude"][rows] / np.linalg.norm(new, axis=1))[:, None]
        if tensor.row_order is not None:
            back = np.empty_like(new)
            back[np.asarray(tensor.row_order)] = new
            new = back
        return quantise(new, kind).bytes()

    return MadeView(DTYPES[kind], tensor.view.shape, make)


def _converted(view: TensorView, type: str | None) -> TensorView:
    """A matrix that is not quantised yet, in another type."""
    if type is None or len(view.shape) < 2 or view.dtype.name not in FLOATS or view.dtype.name == type:
        return view
    kind = _fitting(type, view.shape)
    return MadeView(DTYPES[kind], view.shape, lambda: quantise(view.numpy(), kind).bytes())


def _write(checkpoint: Checkpoint, path: Path, changed: Mapping[str, TensorView], type: str | None) -> None:
    if checkpoint.format == "gguf":
        opened = open_gguf(checkpoint.path)
        metadata = opened.metadata.stored()
        if type is not None:
            metadata["general.file_type"] = FILE_TYPES[type]
        write_gguf(path, _all(opened.tensors, changed, type), metadata)
        return
    path.mkdir()
    folder = checkpoint.path
    for file in sorted(folder.iterdir()):
        if file.is_file() and not file.name.endswith(
            (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".gguf")
        ):
            shutil.copyfile(file, path / file.name)
    weights = folder / "model.safetensors"
    found = open_safetensors(weights if weights.is_file() else folder / "model.safetensors.index.json")
    write_safetensors(path / "model.safetensors", _all(found.tensors, changed, type), {"format": "pt"})


def _all(
    tensors: Mapping[str, TensorView], changed: Mapping[str, TensorView], type: str | None
) -> dict[str, TensorView]:
    return {name: changed[name] if name in changed else _converted(view, type) for name, view in tensors.items()}
