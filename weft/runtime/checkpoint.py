"""A checkpoint: config, tensors and text files of one model, the same whether it is a folder or a GGUF file.

Tensors carry Hugging Face names and row order in both cases, so one model file and one adapter convention serve both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.dtype import DType
from weft.errors import FormatError, NotFoundError, UnsupportedError, WeightError, naming
from weft.frozen import frozen
from weft.models import find_module, gguf_declaration, text_config
from weft.nn.scope import COLUMNS, EACH, MINUS_EXP, PLUS_ONE, TRANSPOSED
from weft.runtime.threads import Soon
from weft.weights import strict_json
from weft.weights.experts import expert_stacks
from weft.weights.files import MappedFile, TensorView
from weft.weights.integers import integer_matrices
from weft.weights.names import Names
from weft.weights.rotation import as_it_was

if TYPE_CHECKING:
    import numpy as np

    from weft.text import Template, Tokenizer

DESCRIPTION = "weft.json"  # the model in words; weft/nn/description.py reads it

# Files beside the weights have some kilobytes, except those with labels, settings of each layer, or added tokens.
MAX_BYTES = 256 << 10
LARGER = {
    "config.json": 2 << 20,
    DESCRIPTION: 1 << 20,
    "tokenizer_config.json": 2 << 20,
    "chat_template.json": 1 << 20,
}
MAX_TEMPLATE_BYTES = 1 << 20

DESCRIBED = "description"  # the key of a config below which the content of weft.json is

# What the config of a model with images says for its text part too.


@frozen
class Tensor:
    """One stored tensor; `row_order` gives the stored row that belongs at each place, None for as they are. With
    `plus_one` its values are one more than those stored."""

    view: TensorView
    row_order: Any = None
    plus_one: bool = False

    def rows(self, first: int, end: int) -> Tensor:
        """The tensor of these rows alone; no copy."""
        if self.row_order is not None:
            return Tensor(self.view.take(self.row_order[first:end]))
        size = self.view.nbytes // self.view.shape[0]
        data = self.view.bytes()[first * size : end * size]
        return Tensor(TensorView(self.view.dtype, (end - first, *self.view.shape[1:]), data))

    def every(self, first: int, end: int, period: int) -> Tensor:
        """The tensor of rows [first, end) of every `period` rows."""
        import numpy as np

        starts = np.arange(0, self.view.shape[0], period)[:, None]
        chosen = (starts + np.arange(first, end)).reshape(-1).astype(np.int32)
        return Tensor(self.view.take(chosen if self.row_order is None else np.asarray(self.row_order)[chosen]))

    def flat(self) -> Tensor:
        """The rows of all matrices of a stack [count, rows, cols] one after another; no copy."""
        count, rows, cols = self.view.shape
        return Tensor(TensorView(self.view.dtype, (count * rows, cols), self.view.bytes()))

    def columns(self, first: int, end: int) -> Tensor:
        """The matrix of these columns alone; of a quantised one they must be whole blocks."""
        rows, dtype = self.view.shape[0], self.view.dtype
        if first % dtype.block or end % dtype.block:
            raise WeightError("weights", f"columns {first} to {end} are not whole blocks of {dtype.block} ({dtype})")
        data = self.view.bytes().reshape(rows, -1)[:, dtype.nbytes(first) : dtype.nbytes(end)].copy()
        return Tensor(TensorView(dtype, (rows, end - first), data.reshape(-1)), self.row_order)

    def minus_exp(self) -> Tensor:
        """Minus the exponential of every element, rounded once to f32: libraries differ in exponentials of f32."""
        import numpy as np

        return Tensor(TensorView.of(-np.exp(self.numpy().astype(np.float64)).astype(np.float32)))

    def numpy(self) -> np.ndarray:
        import numpy as np

        values = self.view.numpy()
        values = values if self.row_order is None else values[self.row_order]
        return values.astype(np.float32) + np.float32(1) if self.plus_one else values


@frozen
class Checkpoint:
    """`config` is config.json's content, or the same made from GGUF metadata."""

    path: Path
    format: str  # "safetensors" or "gguf"
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    size_bytes: int  # of its weights, with those of the picture tower
    generation: Mapping[str, Any] = field(default_factory=dict)
    chat_template: Template | None = None
    make_tokenizer: Callable[..., Tokenizer] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[MappedFile] = ()
    file_names: Mapping[str, str] = field(default_factory=dict)  # of tensors that the file calls otherwise
    projector: Path | None = None  # the mmproj file with the picture tower of a GGUF file

    def buffers(self, *, soon: bool = False) -> list[memoryview]:
        """The files, mapped; to be read as a whole `soon`."""
        for file in self.files if soon else ():
            file.read_ahead()
        return [file.slice() for file in self.files]

    def release(self) -> None:
        """Give back the memory that reading the files took so far."""
        for file in self.files:
            file.release(0, file.size)

    @property
    def model_type(self) -> str:
        kind = self.config.get("model_type")
        if not isinstance(kind, str):
            raise FormatError("config", "must be a string that names the model's type", field="model_type", given=kind)
        return kind

    def naming(self) -> AbstractContextManager[None]:
        """Let errors about `config` begin with the file's name; GGUF files have no config.json to name."""
        file = DESCRIPTION if DESCRIBED in self.config else "config.json"
        return naming(file, "config", "load") if self.format == "safetensors" else nullcontext()

    def tokenizer(self) -> Tokenizer:
        """A new tokenizer from the checkpoint's own files."""
        if self.make_tokenizer is None:
            what = f"{self.path.name} has no tokenizer files"
            raise NotFoundError("tokenizer", what, advice="give token ids instead of text")
        return self.make_tokenizer()

    def ending_texts(self, token: str) -> Checkpoint:
        """The checkpoint with a tokenizer that ends every text with `token`, if its files do not say so already."""
        if self.make_tokenizer is None:
            return self
        return replace(self, make_tokenizer=partial(self.make_tokenizer, ending=token))

    def tokenizer_soon(self) -> Callable[[], Tokenizer]:
        """Make the tokenizer in another thread; calling the result waits for it."""

        def make() -> Tokenizer:
            made = self.tokenizer()
            self.release()  # a GGUF file holds the vocabulary
            return made

        return Soon(make).get

    def stored(self, name: str) -> DType | None:
        """How `name` is stored, None when there is no such tensor."""
        tensor = self.tensors.get(name) or self.tensors.get(name.replace(f".{EACH}.", ".0.").partition(":")[0])
        return None if tensor is None else tensor.view.dtype

    def with_tensors(self, prefix: str, path: Path) -> Checkpoint:
        """The checkpoint with the tensors of another safetensors file below `prefix`."""
        from weft.weights import open_safetensors

        opened = open_safetensors(path)
        more = {f"{prefix}.{name}": Tensor(view) for name, view in opened.tensors.items()}
        return replace(self, tensors={**self.tensors, **more}, files=[*self.files, *opened.files])

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor `name`, or for `name:first-end/total` those rows of a stored tensor of `total` rows, for
        `name:first-end/period/total` those rows of every period.

        `name:in0-8/16` are columns of it. `name:plus1` is the tensor plus one, `name:-exp` minus its exponential; a
        tensor that a GGUF file holds in this form has that name.
        """
        base, transposed, rest = name.partition(TRANSPOSED)
        if transposed and base in self.tensors:
            whole = Tensor(self.tensors[base].view.transposed())
            return replace(self, tensors={base: whole}).tensor(base + rest, shape)
        if is_stack(name) and name not in self.tensors:
            return joined(self.matrices(name, shape))
        base, columns, rest = name.partition(COLUMNS)
        if columns and base in self.tensors:
            first, end, total = map(int, re.split("[-/]", rest))
            return self.tensor(base, (shape[0], total)).columns(first, end)
        if name.endswith(PLUS_ONE) and name not in self.tensors:
            return replace(self.tensor(name.removesuffix(PLUS_ONE), shape), plus_one=True)
        if name.endswith(MINUS_EXP) and name not in self.tensors:
            return self.tensor(name.removesuffix(MINUS_EXP), shape).minus_exp()
        stored, _, rows = (name, "", "") if name in self.tensors else name.partition(":")
        tensor = self.tensors.get(stored)
        counted = rows[:1].isdigit()  # otherwise it is columns of a tensor, or one turned over, that is missing
        first, end, *period, total = map(int, re.split("[-/]", rows)) if counted else (0, shape[0], shape[0])
        wanted = (total, *shape[1:])
        file = DESCRIPTION if DESCRIBED in self.config else "config.json"
        source = f" by its {file}" if self.format == "safetensors" else ""
        if tensor is None:
            shown = wanted[::-1] if transposed else wanted
            raise WeightError("weights", f"{stored} is missing; the model wants {shown}{source}")
        if len(wanted) == 1 and re.search(rf"\.({EACH}|mamba|mixer)\.", stored) and tensor.view.size == wanted[0]:
            # biases of experts, and vectors of Mamba2 layers in GGUF files, are stored as matrices
            tensor = replace(tensor, view=TensorView(tensor.view.dtype, wanted, tensor.view.bytes()))
        flat = len(wanted) == 2 and wanted == (1, *tensor.view.shape)  # GGUF stores a matrix of one row as a vector
        if _without_ones(tensor.view.shape) != _without_ones(wanted) and not flat:
            raise WeightError("weights", f"{stored} has shape {tensor.view.shape}, the model wants {wanted}{source}")
        if period:
            return tensor.every(first, end, period[0])
        return tensor.rows(first, end) if rows else tensor

    def matrices(self, name: str, shape: tuple[int, ...]) -> list[Tensor]:
        """The matrices of a stack [count, rows, cols]: tensors of their own, or parts of one stored tensor; no copies.

        `name.each.rest` is the stored tensors name.0.rest, name.1.rest and so on, or one tensor of that name.
        `name:first-end/total:each` is those rows of each matrix of the stored tensor `name`.
        """
        count, rows, cols = shape
        if f".{EACH}." in name and name not in self.tensors:
            first, rest = name.split(f".{EACH}.")
            found = [self.tensor(f"{first}.{index}.{rest}", (rows, cols)) for index in range(count)]
            odd = next((i for i, one in enumerate(found) if one.view.dtype != found[0].view.dtype), None)
            if odd is not None:
                what = f"{first}.{odd}.{rest} is {found[odd].view.dtype}, {first}.0.{rest} is {found[0].view.dtype}"
                raise WeightError("weights", f"{what}; the matrices of all experts must have one type")
            return found
        stored, _, part = name.removesuffix(f":{EACH}").partition(":")
        start, end, total = map(int, re.split("[-/]", part)) if part else (0, rows, rows)
        whole = self.tensor(stored, (count, total, cols)).flat()
        return [whole.rows(index * total + start, index * total + end) for index in range(count)]


def is_stack(name: str) -> bool:
    """Whether this is the name of matrices that lie in several tensors, or of parts of matrices."""
    return f".{EACH}." in name or name.endswith(f":{EACH}")


def joined(matrices: Sequence[Tensor]) -> Tensor:
    """One tensor [count, rows, cols] of matrices of one shape and type; a copy."""
    import numpy as np

    view = matrices[0].view
    data = np.concatenate([one.view.bytes() for one in matrices])
    return Tensor(TensorView(view.dtype, (len(matrices), *view.shape), data))


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without inner axes of one: the taps of a convolution are [C, 1, W] in one format, [C, W] in another."""
    return shape if len(shape) < 3 else (shape[0], *(size for size in shape[1:-1] if size != 1), shape[-1])


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`: a Hugging Face folder, a GGUF file, or a folder that holds one GGUF file."""
    if path.is_file():
        if path.suffix == ".gguf":
            return _open_gguf(path)
        if path.suffix == ".safetensors":
            return _open_folder(path.parent, path)
        advice = "give a .gguf or .safetensors file, or a folder"
        raise UnsupportedError("load", f"{path.name} is not a model file", advice=advice)
    if not path.is_dir():
        raise NotFoundError("load", f"no such file or folder: {path}")
    if (path / "config.json").is_file() or (path / DESCRIPTION).is_file():
        return _open_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _open_gguf(files[0])
    found = ", ".join(file.name for file in files) or "no .gguf file"
    raise NotFoundError("load", f"{path.name} has no config.json and {found}", advice="give the path of one file")


def _open_folder(folder: Path, file: Path | None = None) -> Checkpoint:
    from weft.weights import open_safetensors

    config = as_it_was(read_object(folder / "config.json", missing={}))
    described = read_object(folder / DESCRIPTION, missing={})
    if described:
        config = described_config(config, described)
    if not config:
        raise NotFoundError("load", f"{folder.name} has no config.json; weft does not guess what a model is")
    weights = file or next(
        (p for p in (folder / "model.safetensors", folder / "model.safetensors.index.json") if p.is_file()), None
    )
    if weights is None:
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
        advice = "pickled weights are refused: convert them to safetensors" if pickled else None
        raise NotFoundError("load", f"{folder.name} has no model.safetensors", advice=advice)
    opened = open_safetensors(weights)
    module = find_module(str(config.get("model_type")))
    text_type = getattr(module, "TEXT_TYPE", None)
    names = module.NAMES if module else Names()
    stored_tensors = integer_matrices(opened.tensors, config)
    named = _named(stored_tensors, names, part=text_type is not None)
    views: dict[str, Any] = {name: stored_tensors[stored] for name, stored in named.items()}
    return Checkpoint(
        path=folder,
        format="safetensors",
        config=text_config(config, text_type) if text_type else config,
        tensors={name: Tensor(view) for name, view in _stacked(views, names).items()},
        size_bytes=opened.nbytes,
        generation=read_object(folder / "generation_config.json", missing={}),
        chat_template=_folder_template(folder),
        make_tokenizer=_folder_tokenizer(folder),
        metadata=opened.metadata,
        files=opened.files,
        file_names={name: stored for name, stored in named.items() if name != stored},
    )


def described_config(config: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a model with a description: config.json's, for special tokens and labels, with the sizes of the
    description under the names that others read. models/generic.py checks the description itself."""
    attention = described.get("attention")
    attention = attention if isinstance(attention, dict) else {}
    sizes = {
        "vocab_size": described.get("vocab_size"),
        "hidden_size": described.get("hidden_size"),
        "num_hidden_layers": described.get("layers"),
        "num_attention_heads": attention.get("heads"),
        "num_key_value_heads": attention.get("kv_heads"),
        "max_position_embeddings": described.get("positions"),
    }
    kind = "generic_encoder" if described.get("kind") == "encoder" else "generic"
    return {**config, **sizes, "model_type": kind, DESCRIBED: described}


def _stacked(views: dict[str, Any], names: Names) -> dict[str, Any]:
    return expert_stacks(views, halves=names.halves) if names.stacks else views


def _named(stored: Mapping[str, TensorView], names: Names, *, part: bool) -> dict[str, str]:
    """The model's name of each tensor of a safetensors file -> the file's; of a text part (`part`) of its own only."""
    starts = names.part if part else names.starts(stored)
    found = {}
    for name in stored:
        start = next((prefix for prefix in starts if name.startswith(prefix)), None)
        if start is not None:
            found[names.current(starts[start] + name.removeprefix(start))] = name
    return found


def read_object(path: Path, *, kind: type = dict, missing: Any = None, name: str | None = None) -> Any:
    """The JSON object (or list) in a file of a model; `missing`, when given, stands for an absent file.

    `name` is the file's name in messages, and decides how large it may be.
    """
    name = name or path.name
    try:
        if not path.is_file():
            if missing is not None:
                return missing
            raise NotFoundError(name, "no such file")
        size, limit = path.stat().st_size, LARGER.get(name, MAX_BYTES)
        if size > limit:
            raise FormatError(name, f"the file is too large: {size} bytes; the limit is {limit}")
        value = strict_json.parse(strict_json.text_of(path.read_bytes()), infinity=name == "config.json")
    except OSError as error:
        raise NotFoundError(name, f"the file cannot be read: {error.strerror}") from None
    except strict_json.CrowdError as error:
        raise FormatError(name, str(error)) from None
    except strict_json.JsonError as error:
        raise FormatError(name, f"malformed JSON: {error}") from None
    if not isinstance(value, kind):
        raise FormatError(name, f"the document must be {'an object' if kind is dict else 'a list'}")
    return value


def member(table: Mapping[str, Any], name: str, kind: type, otherwise: Any, *, file: str) -> Any:
    """`table[name]`, which must be of `kind`; `otherwise` where it is missing or null. `file` is for the message."""
    value = table.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise FormatError(file, f"must be of type {kind.__name__}", field=name, given=value)
    return value


def _folder_template(folder: Path) -> Template | None:
    """The chat template of a folder, or its templates by name; .jinja files have precedence over JSON files."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return _one_or_named({name: _read_template(path) for name, path in files.items()})
    for name in ("tokenizer_config.json", "chat_template.json"):
        settings = read_object(folder / name, missing={})
        if isinstance(settings.get("chat_template"), list):
            found = _one_or_named(_listed_templates(settings["chat_template"], name))
        else:
            found = member(settings, "chat_template", str, None, file=name)
        if found:
            return found
    return None


def _listed_templates(rows: Sequence[Any], file: str) -> dict[str, Any]:
    """Templates as tokenizer_config.json lists them: objects with a name and a template."""
    if not all(isinstance(row, dict) for row in rows):
        raise FormatError(file, "must be a string or a list of objects", field="chat_template")
    return {
        member(row, "name", str, "default", file=file): member(row, "template", str, None, file=file) for row in rows
    }


def _one_or_named(templates: Mapping[str, Any]) -> Template | None:
    """A lone default template, or several by name; entries that are not text are left out."""
    found = {name: text for name, text in templates.items() if isinstance(text, str)}
    return found["default"] if list(found) == ["default"] else found or None


def _read_template(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_TEMPLATE_BYTES:
        raise FormatError(path.name, f"the file is too large: {size} bytes; the limit is {MAX_TEMPLATE_BYTES}")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(path.name, f"malformed UTF-8 at byte {error.start}") from None


def _folder_tokenizer(folder: Path) -> Callable[..., Tokenizer] | None:
    names = ("tokenizer.json", "tekken.json", "merges.txt", "vocab.txt", "tokenizer.model")
    if not any((folder / name).is_file() for name in names):
        return None

    def make(ending: str | None = None) -> Tokenizer:
        from weft.text import Tokenizer

        return Tokenizer.from_file(folder, ending=ending)

    return make


def _open_gguf(path: Path) -> Checkpoint:
    from weft.weights import config_from_gguf, open_gguf

    opened = open_gguf(path)
    meta = opened.metadata
    architecture = meta.get_str("general.architecture")
    gguf = gguf_declaration(architecture, meta.get_int(f"{architecture}.expert_count", 0) > 0)
    config = config_from_gguf(opened, gguf)
    layers, tensors = config["num_hidden_layers"], {}
    drafts = gguf.has_draft_head(opened.tensors, layers)
    for name, view in opened.tensors.items():
        full = gguf.hf_name(name)
        if full is not None:
            form = PLUS_ONE if gguf.holds_plus_one(full) else MINUS_EXP if gguf.holds_minus_exp(full) else ""
            full = gguf.draft_name(full, layers) if drafts else full
            read_as = full + gguf.rows_of(name, view.shape[0]) + form
            tensors[read_as] = Tensor(view, gguf.row_order(full, config))
    return Checkpoint(
        path=path,
        format="gguf",
        config=config,
        tensors=tensors,
        size_bytes=opened.nbytes,
        chat_template=_gguf_template(meta),
        make_tokenizer=_gguf_tokenizer(meta),
        metadata=meta,
        files=opened.files,
    )


def _gguf_template(meta: Any) -> Template | None:
    """The template of a GGUF file, or its templates by name: those have keys of their own, after a dot."""
    key = "tokenizer.chat_template"
    named = {name: name.removeprefix(f"{key}.") for name in meta if name.startswith(f"{key}.")}
    if key in meta:
        named[key] = "default"
    return _one_or_named({short: meta.get_str(name) for name, short in named.items()})


def _gguf_tokenizer(meta: Any) -> Callable[..., Tokenizer] | None:
    if "tokenizer.ggml.model" not in meta or meta.get_str("tokenizer.ggml.model") == "no_vocab":
        return None
    if meta.get_str("tokenizer.ggml.model") == "bert":
        from weft.text.gguf_vocab import named_ids

        named_ids(meta)  # a file whose texts cannot be tokenized is refused here, and not at its first text

    def make(ending: str | None = None) -> Tokenizer:
        from weft.text import Tokenizer

        return Tokenizer.from_gguf(meta, ending=ending)

    return make
