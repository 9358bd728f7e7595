"""A checkpoint: config, tensors and text files of one model, the same whether it is a folder or a GGUF file.

Tensors carry Hugging Face names and row order in both cases, so one model file and one adapter convention serve both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.dtype import DType
from weft.errors import FormatError, NotFoundError, UnsupportedError, WeightError
from weft.weights import strict_json
from weft.weights.files import MappedFile, TensorView

if TYPE_CHECKING:
    from weft.text import Tokenizer

MAX_JSON_BYTES = 16 << 20

# How the tensors of a saved model may be prefixed: BertModel inside BertForMaskedLM, inside sentence-transformers …
PREFIXES = {
    "bert": ("bert.", "model.bert."),
    "roberta": ("roberta.", "model.roberta."),
    "xlm-roberta": ("roberta.", "model.roberta."),
}


@dataclass(frozen=True)
class Tensor:
    """One stored tensor; `row_order` gives the stored row that belongs at each place, None for as they are."""

    view: TensorView
    row_order: np.ndarray | None = None

    def rows(self, first: int, end: int) -> Tensor:
        """The tensor of these rows alone; no copy."""
        if self.row_order is not None:
            return Tensor(self.view.take(self.row_order[first:end]))
        size = self.view.nbytes // self.view.shape[0]
        data = self.view.bytes()[first * size : end * size]
        return Tensor(TensorView(self.view.dtype, (end - first, *self.view.shape[1:]), data))

    def numpy(self) -> np.ndarray:
        values = self.view.numpy()
        return values if self.row_order is None else values[self.row_order]


@dataclass(frozen=True)
class Checkpoint:
    """`config` is config.json's content, or the same made from GGUF metadata."""

    path: Path
    format: str  # "safetensors" or "gguf"
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    size_bytes: int
    generation: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    make_tokenizer: Callable[[], Tokenizer] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[MappedFile] = ()

    def release(self) -> None:
        """Give back the memory that reading the files took so far."""
        for file in self.files:
            file.release(0, file.size)

    @property
    def model_type(self) -> str:
        kind = self.config.get("model_type")
        if not isinstance(kind, str):
            raise FormatError(f"[config] model_type is {kind!r}; config.json must name the model's type")
        return kind

    def tokenizer(self) -> Tokenizer:
        """A new tokenizer from the checkpoint's own files."""
        if self.make_tokenizer is None:
            raise NotFoundError(f"[tokenizer] {self.path.name} has no tokenizer files; only ids can be used")
        return self.make_tokenizer()

    def stored(self, name: str) -> DType | None:
        """How `name` is stored, None when there is no such tensor."""
        tensor = self.tensors.get(name.partition(":")[0])
        return None if tensor is None else tensor.view.dtype

    def with_tensors(self, prefix: str, path: Path) -> Checkpoint:
        """The checkpoint with the tensors of another safetensors file below `prefix`."""
        from weft.weights import open_safetensors

        more = {f"{prefix}.{name}": Tensor(view) for name, view in open_safetensors(path).tensors.items()}
        return replace(self, tensors={**self.tensors, **more})

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, or for `name:first-end/total` those rows of a stored tensor of `total` rows."""
        stored, _, rows = name.partition(":")
        tensor = self.tensors.get(stored)
        first, end, total = map(int, re.split("[-/]", rows)) if rows else (0, shape[0], shape[0])
        wanted = (total, *shape[1:])
        if tensor is None:
            raise WeightError(f"[weights] {stored} is missing; the model wants {wanted}")
        if tensor.view.shape != wanted:
            raise WeightError(f"[weights] {stored} has shape {tensor.view.shape}, the model wants {wanted}")
        return tensor.rows(first, end) if rows else tensor


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a Hugging Face folder, a GGUF file, or a folder that holds one GGUF file."""
    if path.is_file():
        if path.suffix == ".gguf":
            return _open_gguf(path)
        if path.suffix == ".safetensors":
            return _open_folder(path.parent, path)
        raise UnsupportedError(f"[load] {path.name} is no model file; give a .gguf or .safetensors file or a folder")
    if not path.is_dir():
        raise NotFoundError(f"[load] no such file or folder: {path}")
    if (path / "config.json").is_file():
        return _open_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _open_gguf(files[0])
    found = ", ".join(file.name for file in files) or "no .gguf file"
    raise NotFoundError(f"[load] {path.name} has no config.json and {found}; name one file")


def _open_folder(folder: Path, file: Path | None = None) -> Checkpoint:
    from weft.weights import open_safetensors

    config = read_object(folder / "config.json", missing={})
    if not config:
        raise NotFoundError(f"[load] {folder.name} has no config.json; weft does not guess what a model is")
    weights = file or next(
        (p for p in (folder / "model.safetensors", folder / "model.safetensors.index.json") if p.is_file()), None
    )
    if weights is None:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        hint = "; pickled weights are refused, convert them to safetensors" if pickled else ""
        raise NotFoundError(f"[load] {folder.name} has no model.safetensors{hint}")
    opened = open_safetensors(weights)
    prefix = _prefix(str(config.get("model_type")), opened.tensors)
    tensors = {
        name.removeprefix(prefix): Tensor(view) for name, view in opened.tensors.items() if name.startswith(prefix)
    }
    return Checkpoint(
        path=folder,
        format="safetensors",
        config=config,
        tensors=tensors,
        size_bytes=opened.nbytes,
        generation=read_object(folder / "generation_config.json", missing={}),
        chat_template=_folder_template(folder),
        make_tokenizer=_folder_tokenizer(folder),
        metadata=opened.metadata,
        files=opened.files,
    )


def _prefix(model_type: str, names: Mapping[str, Any]) -> str:
    for prefix in PREFIXES.get(model_type, ()):
        if any(name.startswith(prefix) for name in names):
            return prefix
    return ""


def read_object(path: Path, *, kind: type = dict, missing: Any = None) -> Any:
    """The JSON object (or list) in a file of at most 16 MiB; `missing`, when given, stands for an absent file."""
    try:
        if not path.is_file():
            if missing is not None:
                return missing
            raise NotFoundError(f"[config] no such file: {path.name}")
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise FormatError(f"[config] {path.name} has {size} bytes; at most {MAX_JSON_BYTES} are read")
        value = strict_json.parse(strict_json.text_of(path.read_bytes()))
    except OSError as error:
        raise NotFoundError(f"[config] {path.name} cannot be read: {error.strerror}") from None
    except strict_json.JsonError as error:
        raise FormatError(f"[config] {path.name}: {error}") from None
    if not isinstance(value, kind):
        raise FormatError(f"[config] {path.name} is not {'an object' if kind is dict else 'a list'}")
    return value


def member(table: Mapping[str, Any], name: str, kind: type, otherwise: Any, *, file: str) -> Any:
    """`table[name]`, which must be of `kind`; `otherwise` where it is missing or null. `file` is for the message."""
    value = table.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FormatError(f"[config] {file}: {name} is {value!r:.80}, not of type {kind.__name__}")
    return value


def _folder_template(folder: Path) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    name = "tokenizer_config.json"
    settings = read_object(folder / name, missing={})
    if not isinstance(settings.get("chat_template"), list):
        return member(settings, "chat_template", str, None, file=name)
    for entry in settings["chat_template"]:  # several named templates: the default one
        if not isinstance(entry, dict):
            raise FormatError(f"[config] {name}: chat_template is a list of something else than objects")
        if member(entry, "name", str, None, file=name) == "default":
            return member(entry, "template", str, None, file=name)
    return None


def _folder_tokenizer(folder: Path) -> Callable[[], Tokenizer] | None:
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt")):
        return None

    def make() -> Tokenizer:
        from weft.text import Tokenizer

        return Tokenizer.from_file(folder)

    return make


def _open_gguf(path: Path) -> Checkpoint:
    from weft.weights import config_from_gguf, hf_name, open_gguf, row_order

    opened = open_gguf(path)
    meta = opened.metadata
    architecture = meta.get_str("general.architecture")
    config = config_from_gguf(opened)
    tensors = {}
    for name, view in opened.tensors.items():
        full = hf_name(architecture, name)
        if full is not None:
            tensors[full] = Tensor(view, row_order(architecture, full, config))
    return Checkpoint(
        path=path,
        format="gguf",
        config=config,
        tensors=tensors,
        size_bytes=opened.nbytes,
        chat_template=meta.get_str("tokenizer.chat_template") if "tokenizer.chat_template" in meta else None,
        make_tokenizer=_gguf_tokenizer(meta),
        metadata=meta,
        files=opened.files,
    )


def _gguf_tokenizer(meta: Any) -> Callable[[], Tokenizer] | None:
    if "tokenizer.ggml.model" not in meta:
        return None

    def make() -> Tokenizer:
        from weft.text import Tokenizer

        return Tokenizer.from_gguf(meta)

    return make
