"""A trained model as a folder: the files of its base with the new weights, and what sentence-transformers reads."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.embed.recipe import MODULES, POOLING_FLAGS, Recipe
from weft.errors import UnsupportedError
from weft.graph.passes.learn import DOWN, UP, LowRank
from weft.models import model_module
from weft.runtime.checkpoint import Checkpoint, read_object
from weft.train.targets import part_of
from weft.weights import open_safetensors, write_safetensors
from weft.weights.files import replacing

if TYPE_CHECKING:
    import numpy as np

    from weft.train.vectors.head import NewHead
    from weft.train.vectors.trainee import Trainee

Arrays = dict[str, "np.ndarray"]
WEIGHTS = (
    ".safetensors",
    ".safetensors.index.json",
    ".bin",
    ".bin.index.json",
    ".pt",
    ".gguf",
    ".onnx",
    ".h5",
    ".msgpack",
)
OTHERS = ("onnx", "openvino", "coreml")  # folders with the base's weights in other formats
SETTINGS = "config_sentence_transformers.json"
# Of an embedder, which a model with a new classifier is no more.
EMBEDDER_FILES = (MODULES, SETTINGS, "sentence_bert_config.json", "1_Pooling", "2_Normalize")


def check_writable(checkpoint: Checkpoint) -> None:
    """UnsupportedError for a base whose weights are in no folder of safetensors: there is nothing to put them into."""
    if checkpoint.format != "safetensors" or not checkpoint.path.is_dir():
        advice = "train an adapter (--lora 8), or begin with the model's safetensors folder"
        raise UnsupportedError("train", f"{checkpoint.path.name} is not a folder of safetensors", advice=advice)


def write_model(
    trainee: Trainee,
    folder: Path,
    changes: Mapping[str, LowRank],
    parameters: Mapping[str, np.ndarray],
    *,
    dims: tuple[int, ...] = (),
) -> None:
    """The base's folder with weights as they are now: those trained in full, and those with a change of low rank."""
    base = trainee.checkpoint
    check_writable(base)
    _copy(base.path, folder, () if trainee.head is None else EMBEDDER_FILES)
    values = trained_values(base, changes, parameters)
    for inner in sorted({_place(base, name) for name in base.tensors}):
        mine = {name: value for name, value in values.items() if _place(base, name) == inner}
        (folder / inner).mkdir(parents=True, exist_ok=True)
        _write_weights(base, base.path / inner, folder / inner, mine, trainee.head)
    _settle(folder, trainee, dims)


def trained_values(
    base: Checkpoint, changes: Mapping[str, LowRank], parameters: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The new values of all weights that training changed, f32, by the names of the checkpoint."""
    import numpy as np

    found = {name: value for name, value in parameters.items() if not name.startswith((DOWN, UP))}
    for name, change in changes.items():
        up, down = (parameters[part + name].astype(np.float64) for part in (UP, DOWN))
        old = base.tensor(name, (len(up), down.shape[1])).numpy().astype(np.float64)
        found[name] = (old + change.scale * (up @ down)).astype(np.float32)
    return found


def _stored(base: Checkpoint, name: str) -> Any:
    return base.tensors[name if name in base.tensors else name.partition(":")[0]]


def _place(base: Checkpoint, name: str) -> str:
    """The folder inside the base's that has a tensor's file: "" or that of a dense layer."""
    path: Path | None = getattr(_stored(base, name).view, "path", None)  # a new weight has none
    return "" if path is None or path.parent == base.path else path.parent.name


def _write_weights(
    base: Checkpoint, place: Path, folder: Path, values: Mapping[str, np.ndarray], head: NewHead | None
) -> None:
    """All tensors of one folder's files, with the new ones among them, as one file."""
    import numpy as np

    single = place / "model.safetensors"
    opened = open_safetensors(single if single.is_file() else place / "model.safetensors.index.json")
    tensors: dict[str, Any] = dict(opened.tensors)
    for name, value in values.items():
        if head is not None and name in head.weights:
            continue
        tensor = _stored(base, name)
        part = part_of(name, len(value)) if ":" in name else None
        new = value - np.float32(1) if tensor.plus_one else value
        if tensor.row_order is not None:
            back = np.empty_like(new)
            back[np.asarray(tensor.row_order)] = new
            new = back
        key = tensor.view.name
        if part is not None:  # rows of a stored matrix
            whole = tensors[key]
            whole = whole if isinstance(whole, np.ndarray) else whole.numpy().astype(np.float32)
            whole[part.first : part.end] = new
            new = whole
        tensors[key] = new.reshape(opened.tensors[key].shape)
    if head is not None:
        tensors = _below_prefix(base, tensors, head) | {
            head.kind.file_name(name): values[name] for name in head.weights
        }
    write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})


def _below_prefix(base: Checkpoint, tensors: Mapping[str, Any], head: NewHead) -> dict[str, Any]:
    """The tensors by the names that they have in a model with a classifier, whatever those of the base are."""
    prefixes = model_module(base.model_type).NAMES.prefixes
    bare = {next((name.removeprefix(p) for p in prefixes if name.startswith(p)), name): name for name in tensors}
    return {head.kind.file_name(name): tensors[stored] for name, stored in bare.items()}


def _copy(source: Path, folder: Path, without: tuple[str, ...] = ()) -> None:
    """Every file of the base but its weights and those named `without`."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.name in without:
            continue
        if path.is_dir() and path.name not in OTHERS and not path.name.startswith("."):
            _copy(path, folder / path.name)
        elif path.is_file() and not path.name.endswith(WEIGHTS) and path.name != "README.md":
            shutil.copyfile(path, folder / path.name)


def _settle(folder: Path, trainee: Trainee, dims: tuple[int, ...]) -> None:
    """What the files must say of the new weights, and of the recipe where the base's files say nothing."""
    config = read_object(folder / "config.json")
    for name in ("dtype", "torch_dtype"):
        if name in config:
            config[name] = "float32"
    if dims:
        config |= {"is_matryoshka": True, "matryoshka_dimensions": sorted(dims, reverse=True)}
    if trainee.head is not None:
        config = {key: value for key, value in config.items() if key != "problem_type"} | trainee.head.settings
    _write(folder / "config.json", config)
    recipe = trainee.recipe
    if recipe is None:
        return
    if not (folder / MODULES).is_file():
        _write_recipe(folder, recipe, config)
    prompts = {name: text for name, text in recipe.prompts.items() if text}
    settings = read_object(folder / SETTINGS, missing={})
    if prompts and not any((settings.get("prompts") or {}).values()):
        _write(folder / SETTINGS, {**settings, "prompts": prompts})


def _write_recipe(folder: Path, recipe: Recipe, config: Mapping[str, Any]) -> None:
    kinds = [
        ("", "Transformer"),
        ("1_Pooling", "Pooling"),
        *([("2_Normalize", "Normalize")] if recipe.normalise else []),
    ]
    modules = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(kinds)
    ]
    _write(folder / MODULES, modules)
    for path, _ in kinds[1:]:
        (folder / path).mkdir(exist_ok=True)
    flags = {flag: mode == recipe.pooling for flag, mode in POOLING_FLAGS.items()}
    size = {"word_embedding_dimension": config["hidden_size"], "include_prompt": recipe.include_prompt}
    _write(folder / "1_Pooling" / "config.json", {**size, **flags})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": recipe.max_tokens, "do_lower_case": recipe.lower})
    _write(folder / SETTINGS, {"prompts": {}, "similarity_fn_name": recipe.similarity})


def _write(path: Path, value: Any) -> None:
    with replacing(path) as out:
        out.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())
