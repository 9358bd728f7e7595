"""What is quantised: a GGUF file as it is, or a folder as the GGUF file that it would be."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft import digest
from weft.errors import InputError, UnsupportedError
from weft.frozen import frozen
from weft.models import model_module
from weft.nn.config import read_config
from weft.quantise.encoding import FLOATS
from weft.runtime.checkpoint import Checkpoint, open_checkpoint
from weft.text.words.gguf_words import gguf_vocabulary
from weft.weights import Gguf, TensorView, gguf_from_config, gguf_tensors, open_gguf
from weft.weights.files import MappedFile
from weft.weights.gguf_config import POOLING
from weft.weights.rotation import refuse_rotated

# What old files have beside their weights: tables that are computed, and heads of the task that encoders learnt.
UNUSED = ("rotary_emb.inv_freq", "attention.masked_bias", "attention.bias", "embeddings.position_ids")
LEARNT_BY = ("cls.", "lm_head.", "mlm_head.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector.")
DEFAULTS = ("max_position_embeddings", "intermediate_size", "rms_norm_eps", "layer_norm_eps", "type_vocab_size")


@frozen
class Source:
    """Tensors and metadata as a GGUF file has them, and the mapped files that they are read from."""

    path: Path
    tensors: Mapping[str, TensorView]
    metadata: Mapping[str, Any]
    files: tuple[MappedFile, ...]

    def release(self) -> None:
        """Give back the memory that reading the files took so far."""
        for file in self.files:
            file.release(0, file.size)

    def digest(self) -> str:
        """SHA-256 of the file; of a folder, of the digests of its weights and of its metadata."""
        with open(self.files[0].path, "rb") as file:
            first = digest.of_file(file)
        if self.path.is_file() and len(self.files) == 1:
            return first
        parts = [first]
        for mapped in self.files[1:]:
            with open(mapped.path, "rb") as file:
                parts.append(digest.of_file(file))
        said = repr(sorted((key, str(value)) for key, value in self.metadata.items()))
        return hashlib.sha256("\n".join((*parts, said)).encode()).hexdigest()


def open_source(path: str | os.PathLike[str]) -> Source:
    """The model at `path`, a .gguf file (any of a split model's) or a folder of safetensors."""
    path = Path(path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        opened = open_gguf(path)
        stored = dict(opened.metadata.stored())
        return Source(path, opened.tensors, without_split(stored), tuple(opened.files))
    if not path.is_dir():
        advice = "give a .gguf file or a folder with a config.json"
        raise UnsupportedError("quantize", "is no model", field="model", given=str(path), advice=advice)
    checkpoint = open_checkpoint(path)
    if checkpoint.format == "gguf":
        return open_source(checkpoint.path)
    return of_checkpoint(checkpoint)


def without_split(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a model in several files as that of one file."""
    return {key: value for key, value in metadata.items() if not key.startswith("split.")}


def of_checkpoint(checkpoint: Checkpoint) -> Source:
    """A folder's model as a GGUF file holds it; nothing is read but names and settings."""
    refuse_rotated("quantize", checkpoint.config, "GGUF has no words for what it does while it runs")
    module = model_module(checkpoint.model_type)
    gguf: Gguf | None = module.GGUF
    if gguf is None:
        what = f"GGUF has no models of type {checkpoint.model_type!r}"
        raise UnsupportedError("quantize", what, field="model", given=str(checkpoint.path))
    with checkpoint.naming():
        config = {**_whole(checkpoint.config, module.Config), **_pooling(checkpoint)}
    views = {name: tensor.view for name, tensor in checkpoint.tensors.items() if _is_used(name, config, gguf)}
    views, labels = _with_classifier(views)
    if labels:
        config["pooling_type"] = "rank"
    for name, view in views.items():
        if view.dtype.gguf is None or not (view.dtype.quantised or view.dtype.name in FLOATS):
            what = f"{name} has numbers of type {view.dtype}, which GGUF has no blocks of"
            raise UnsupportedError("quantize", what, field="model", given=str(checkpoint.path))
    tensors = gguf_tensors(config, views, gguf)
    made = gguf_from_config(config, gguf)
    architecture = made["general.architecture"]
    metadata: dict[str, Any] = {
        "general.architecture": architecture,
        "general.type": "model",
        "general.name": checkpoint.path.resolve().name,
        **made,
    }
    if "token_embd.weight" not in tensors:
        raise InputError("quantize", "has no embedding", field="model", given=str(checkpoint.path))
    rows = tensors["token_embd.weight"].shape[0]
    metadata[f"{architecture}.vocab_size"] = rows
    if labels:
        metadata[f"{architecture}.classifier.output_labels"] = labels
    metadata |= gguf_vocabulary(checkpoint.path, rows) | _template(checkpoint)
    return Source(checkpoint.path, tensors, metadata, tuple(checkpoint.files))


def _whole(config: Mapping[str, Any], cls: type[Any]) -> dict[str, Any]:
    """The config with the names that all models share, and those defaults that GGUF's readers have no equal of."""
    read, aliases = read_config(cls, config), getattr(cls, "ALIASES", {})
    found = {**{aliases[name]: value for name, value in config.items() if name in aliases}, **config}
    for name in DEFAULTS if "rope_parameters" in config else (*DEFAULTS, "rope_theta"):
        if found.get(name) is None and getattr(read, name, None) is not None:
            found[name] = getattr(read, name)
    return found


def _is_used(name: str, config: Mapping[str, Any], gguf: Gguf) -> bool:
    if name.endswith(UNUSED):
        return False
    if gguf.encoder:
        return not name.startswith(LEARNT_BY)
    return not (name == "lm_head.weight" and config.get("tie_word_embeddings"))


def _with_classifier(views: dict[str, TensorView]) -> tuple[dict[str, TensorView], list[str]]:
    """A cross-encoder's classifier under the names of GGUF's, and its labels; BERT's inner layer is its pooler."""
    last = views.get("classifier.weight")
    if last is not None and "pooler.dense.weight" in views:
        moved = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
        views = {_moved(name, moved): view for name, view in views.items()}
    else:
        last = views.get("classifier.out_proj.weight")
    return views, [f"LABEL_{i}" for i in range(last.shape[0])] if last is not None else []


def _moved(name: str, moved: Mapping[str, str]) -> str:
    stem, _, suffix = name.rpartition(".")
    return f"{moved[stem]}.{suffix}" if stem in moved else name


def _pooling(checkpoint: Checkpoint) -> dict[str, str]:
    """How an embedder pools, in GGUF's words; what comes after the pooling there is none of in such a file."""
    if not (checkpoint.path / "modules.json").is_file():
        return {}
    from weft.embed.recipe import POOLING_WORDS, embeds, read_recipe

    if not embeds(checkpoint, None):
        return {}
    recipe = read_recipe(checkpoint, None)
    if recipe.dense:
        what = "has dense layers after its pooling, which GGUF cannot say"
        raise UnsupportedError("quantize", what, field="model", given=str(checkpoint.path))
    word = next((word for word in POOLING if POOLING_WORDS.get(word) == recipe.pooling), None)
    if word is None:
        what = f"pools by {recipe.pooling!r}, which GGUF cannot say"
        raise UnsupportedError("quantize", what, field="model", given=str(checkpoint.path))
    return {"pooling_type": word}


def _template(checkpoint: Checkpoint) -> dict[str, str]:
    """The chat template, or several by their names."""
    template, key = checkpoint.chat_template, "tokenizer.chat_template"
    if template is None:
        return {}
    if isinstance(template, str):
        return {key: template}
    named = {f"{key}.{name}": text for name, text in template.items() if name != "default"}
    if "default" in template:
        named[key] = template["default"]
    if len(named) > 1:
        named["tokenizer.chat_templates"] = [name for name in template if name != "default"]  # type: ignore[assignment]
    return named
