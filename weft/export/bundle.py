"""Writing a bundle: what `weft export` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import weft
from weft._core import verify_program
from weft.embed.recipe import entry_of, read_recipe
from weft.errors import InputError, UnsupportedError
from weft.export import tokenizers
from weft.export.adapters import BaseDigest, ExportedAdapter, write_adapter
from weft.export.launches import LIST, list_of
from weft.export.templates import pieces_of
from weft.export.writing import BundleFolder, Shards
from weft.frozen import frozen
from weft.models import model_module
from weft.runtime import Decoder, Encoder, open_checkpoint
from weft.text.calls.formats import formats_of
from weft.text.chat import choose_template, render
from weft.weights.sources import locate

if TYPE_CHECKING:
    from weft.backends import Backend
    from weft.embed.recipe import Recipe
    from weft.runtime import Checkpoint
    from weft.runtime.prepared import Prepared
    from weft.text import Tokenizer
    from weft.weights.sources import Located

SHARD_BYTES = 256 << 20
PURPOSES = ("embed", "generate")
PROGRAM, ADAPTED = "program.json", "program-adapted.json"
STACK = "stack:"


@frozen
class Exported:
    """A bundle that was written: `digest` is the sha-256 of its manifest, which lists those of all other files."""

    path: Path
    kind: str
    files: int
    nbytes: int
    digest: str


def export(
    model: str,
    output: Path,
    *,
    purpose: str | None = None,
    compute: str | None = None,
    context: int | None = None,
    adapters: bool = False,
    gpu: bool | None = None,
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    offline: bool | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write `model` to the folder `output`; `tell` gets the bytes of weights written, and of all.

    `purpose` is "embed" or "generate"; without it, what the model is for. `compute` is the arithmetic of activations:
    without it int8 for a text generator whose weights are quantised, and f32 for all others, whatever this machine
    prefers. `context` is the longest text of a generator, by default all that the model reads. With `adapters` hosts
    may load LoRA adapters beside the model (`export_adapter` writes them); without one it has the same bits. Programs
    are planned for the instruction set that runs here, or WEFT_ISA; one in f32 is the same for all of them. `gpu` adds
    the launches for hosts with WebGPU: None, where GPUs have all that the model needs; True is an error where they have
    not.
    """
    source = _opened(model, purpose, compute, context, offline)
    return _write(source, output, _name_of(model), adapters, gpu, shard_bytes, overwrite, tell)


def export_adapter(
    model: str,
    adapter: Path,
    output: Path,
    *,
    purpose: str | None = None,
    overwrite: bool = False,
    offline: bool | None = None,
) -> ExportedAdapter:
    """Write the adapter in the folder `adapter` (PEFT's or MLX's) to the file `output`.

    It is for bundles of `model` that were exported with `adapters` and for this `purpose`, in any arithmetic.
    """
    source = _opened(model, purpose, None, None, offline)
    _check_layers(source.checkpoint.model_type, source.prepared)

    def base() -> str:
        digest = BaseDigest()
        for name, dtype, shape, data, constant in _tensors(source.checkpoint, [source.prepared, source.adapted]):
            if not constant:
                digest.add(name, dtype, shape, data)
        return digest.finish()

    return write_adapter(source.adapters, adapter, output, base, overwrite=overwrite)


def _opened(
    model: str, purpose: str | None, compute: str | None, context: int | None, offline: bool | None
) -> _Encoding | _Decoding:
    if purpose not in (None, *PURPOSES):
        raise InputError("export", f"must be one of {', '.join(PURPOSES)}", field="purpose", given=purpose)
    located = locate(model, offline=offline)
    checkpoint = open_checkpoint(located.path.absolute())
    embeds = (purpose or _purpose_of(located, checkpoint)) == "embed"
    if embeds and context is not None:
        raise InputError("export", "is for models that generate text", field="context", given=context)
    if embeds:
        return _Encoding(located, checkpoint, compute or "f32")
    return _Decoding(located, checkpoint, compute, context)


def _name_of(spec: str) -> str:
    """Of a path only the last part: bundles travel."""
    given = Path(spec)
    return given.resolve().name if given.exists() else spec


def _purpose_of(located: Located, checkpoint: Checkpoint) -> str:
    with checkpoint.naming():
        decodes = model_module(checkpoint.model_type).KIND == "decoder"
    embeds = entry_of(located) is not None or (checkpoint.path / "modules.json").is_file()
    return "generate" if decodes and not embeds else "embed"


class _Encoding:
    """A model that embeds, as a bundle has it."""

    kind = "encoder"
    program = "vectors"

    def __init__(self, located: Located, checkpoint: Checkpoint, compute: str) -> None:
        self.recipe: Recipe = read_recipe(checkpoint, entry_of(located), None)
        if self.recipe.lower:
            what = "texts are converted to lower case before this model's tokenizer, which bundles cannot"
            raise UnsupportedError("export", what)
        if self.recipe.dimensions is not None:
            raise UnsupportedError("export", "this model shortens its vectors, which bundles cannot")
        self.checkpoint = self.recipe.with_dense(checkpoint)
        self.encoder = Encoder(
            self.checkpoint, self.recipe.head(self.recipe.normalise), compute=compute, threads=1, backend="cpu"
        )
        self.prepared: Prepared = self.encoder.prepared
        self.adapters = self.encoder.adapters
        self.compute, self.level = compute, self.encoder.info["level"]

    @property
    def adapted(self) -> Prepared:
        """The program with adapters."""
        return self.encoder.adapted

    def prepared_on(self, backend: Backend) -> Prepared:
        """The same program for another backend."""
        return Encoder(self.checkpoint, self.encoder.head, threads=1, backend=backend).prepared

    def about(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The part of the manifest that says how texts become vectors."""
        special = [text for text, _, is_special in tokenizer.added_tokens if is_special]
        prompts = self.recipe.used_prompts()
        for name, prompt in prompts.items():
            if any(token in prompt for token in special):
                raise UnsupportedError("export", f"the prompt {name!r} has a special token in it, which bundles cannot")
        return {
            "embed": {
                "pooling": self.recipe.pooling,
                "normalise": self.recipe.normalise,
                "dimension": self.encoder.dimension,
                "max_tokens": min(self.recipe.max_tokens, self.encoder.max_tokens),
                "prompts": prompts,
                "skips": not self.recipe.include_prompt,
                "similarity": self.recipe.similarity,
            }
        }


class _Decoding:
    """A model that generates text, as a bundle has it."""

    kind = "decoder"
    program = "logits"

    def __init__(self, located: Located, checkpoint: Checkpoint, compute: str | None, context: int | None) -> None:
        if located.adapter is not None:
            what = "is an adapter with its base"
            advice = (
                "export its base with --adapters and the adapter's folder with --adapter FOLDER --alone, or merge them"
            )
            raise UnsupportedError("export", what, field="model", given=located.spec, advice=advice)
        quantised = any(tensor.view.dtype.quantised for tensor in checkpoint.tensors.values())
        self.compute, self.context = compute or ("int8" if quantised else "f32"), context
        options: dict[str, Any] = {"draft_head": False, "bind": False, "threads": 1, "backend": "cpu"}
        self.decoder = Decoder(checkpoint, compute=self.compute, context=context, **options)
        self.checkpoint, self.level = checkpoint, self.decoder.backend.info["level"]
        self.prepared: Prepared = self.decoder.prepared
        self.adapters = self.decoder.adapters
        entry = located.entry
        self.template = checkpoint.chat_template or (entry.chat_template if entry else None)

    @property
    def adapted(self) -> Prepared:
        """The program with adapters."""
        return self.decoder.adapted

    def prepared_on(self, backend: Backend) -> Prepared:
        """The same program for another backend, with activations in f32."""
        options: dict[str, Any] = {"draft_head": False, "bind": False, "threads": 1, "compute": "f32"}
        options |= {"context": self.context, "kv_dtype": self.decoder.kv_dtype}
        return Decoder(self.checkpoint, backend=backend, **options).prepared

    def about(self, tokenizer: Tokenizer) -> dict[str, Any]:
        """The parts of the manifest that say how texts go on, and how conversations are written."""
        facts: dict[str, Any] = {
            "context": self.prepared.facts["context"],
            "eos_ids": sorted(self.decoder.eos_ids),
            "bos_id": tokenizer.bos_id,
            "kv_dtype": self.decoder.kv_dtype,
        }
        chat, refused = self._chat(tokenizer)
        return {"generate": facts, "chat": chat, **({"chat_refused": refused} if refused else {})}

    def _chat(self, tokenizer: Tokenizer) -> tuple[dict[str, Any] | None, str]:
        """The chat template as data, or None and why it cannot be exported."""
        if self.template is None:
            return None, "the model has no chat template"
        chosen = choose_template(self.template)
        ids = {"bos_token": tokenizer.bos_id, "eos_token": tokenizer.eos_id}
        names: dict[str, Any] = {name: "" if id is None else tokenizer.token(id) or "" for name, id in ids.items()}

        def written(messages: Sequence[Mapping[str, str]], asks: bool = True) -> str:
            return render(chosen, messages, add_generation_prompt=asks, **names)

        pieces, refused = pieces_of(chosen, written)
        if pieces is None:
            return None, refused
        structural = [text for text, _, special in tokenizer.added_tokens if not special and text in chosen]
        ends = (tokenizer.id(token) for token in formats_of(self.template).ends)
        return {
            **pieces,
            "structural": [text for text in structural if not text.isspace()],
            "ends": sorted(id for id in ends if id is not None and id in tokenizer.special_ids),
        }, ""


def _write(
    source: _Encoding | _Decoding,
    output: Path,
    name: str,
    adapters: bool,
    gpu: bool | None,
    shard_bytes: int,
    overwrite: bool,
    tell: Callable[[int, int], None] | None,
) -> Exported:
    _check_layers(source.checkpoint.model_type, source.prepared)
    programs = {source.program: (PROGRAM, source.prepared)}
    if adapters:
        programs[f"{source.program}_adapted"] = (ADAPTED, source.adapted)
    for _, prepared in programs.values():
        verify_program(prepared.json)  # what the host will say of it, before anything is written
    with BundleFolder(output, overwrite=overwrite) as folder:
        tokenizer, about, content = tokenizers.described(source.checkpoint)
        folder.write(tokenizers.FILE, content)
        for file, prepared in programs.values():
            folder.write(file, prepared.json.encode())
        shards = Shards(folder.folder, shard_bytes)
        done, base = 0, BaseDigest()
        for tensor, dtype, shape, data, constant in _tensors(source.checkpoint, [one for _, one in programs.values()]):
            shards.add(tensor, dtype, shape, data)
            if adapters and not constant:
                base.add(tensor, dtype, shape, data)
            done += memoryview(data).nbytes
            if tell is not None:
                tell(done, max(source.checkpoint.size_bytes, done))
        shards.finish()
        folder.files.update(shards.files)
        launches, refused = (
            (None, "") if gpu is False else list_of(source.prepared_on, shards.tensors, needed=gpu is True)
        )
        if launches is not None:
            folder.write(LIST, launches, host="gpu")
        manifest = {
            "weft": weft.__version__,
            "kind": source.kind,
            "name": name,
            "model_type": source.checkpoint.model_type,
            "compute": source.compute,
            "planned_for": source.level,
            "programs": {program: file for program, (file, _) in programs.items()},
            **({"adapters": {"base": base.finish()}} if adapters else {}),
            "tokenizer": about,
            **source.about(tokenizer),
            "gpu": None if launches is None else {"launches": LIST},
            **({"gpu_refused": refused} if refused else {}),
            "weights": shards.tensors,
        }
        nbytes = sum(entry["bytes"] for entry in folder.files.values())
        count = len(folder.files) + 1
        return Exported(output, source.kind, count, nbytes, folder.finish(manifest))


def _check_layers(model_type: str, prepared: Prepared) -> None:
    """UnsupportedError for a model with layers that bundles do not have."""
    if any(state.kind != "kv" for state in prepared.states):
        what = f"models of type {model_type} have recurrent layers, which bundles do not have yet"
        raise UnsupportedError("export", what)
    if any(layout.startswith(STACK) for _, _, layout in prepared.weights):
        what = f"models of type {model_type} are mixtures of experts, which bundles do not have yet"
        raise UnsupportedError("export", what)


def _tensors(
    checkpoint: Checkpoint, programs: Sequence[Prepared]
) -> Iterator[tuple[str, str, tuple[int, ...], Any, bool]]:
    """Name, type, shape and bytes of each weight, rows in the program's order, and whether it is a constant, in no file
    of the model; vectors are float32."""
    constants = {name: data for prepared in programs for name, data in prepared.constants.items()}
    wanted = {weight.name: weight for prepared in programs for weight in prepared.weights}
    for name, shape, layout in wanted.values():
        if name in constants:
            yield name, "f32", shape, constants[name], True
            continue
        tensor = checkpoint.tensor(name, shape)
        if layout == "vector":
            yield name, "f32", shape, tensor.numpy().astype("<f4").reshape(-1), False
            continue
        if tensor.plus_one:
            raise UnsupportedError("export", f"{name} is a matrix plus one, which no model has")
        taken = tensor if tensor.row_order is None else tensor.rows(0, shape[0])
        yield name, taken.view.dtype.name, shape, taken.view.buffer(), False
