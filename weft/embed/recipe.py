"""How a model's hidden states become a vector: pooling, dense layers, normalising, prompts, the longest input.

Read from a sentence-transformers folder, else from the catalogue, else from GGUF metadata, else from the caller.
Nothing is guessed: an encoder whose files do not say how it pools is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError
from weft.frozen import frozen
from weft.runtime import Checkpoint, DenseLayer, Head, member, read_object
from weft.runtime.programs import model_module

if TYPE_CHECKING:
    from weft.weights.sources import Entry, Located

POOLINGS = ("mean", "first", "last", "max", "mean_sqrt_len", "weightedmean")
# sentence-transformers' flags, and the values of `pooling_mode`, which replaced them
POOLING_FLAGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
POOLING_WORDS = {
    "cls": "first",
    "lasttoken": "last",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    **{name: name for name in POOLINGS},
}
GGUF_POOLINGS = ("mean", "cls", "last")  # beside none, and rank: a reranker's
ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"}
MAX_FEATURES = 65_536
MAX_MODULES = 64
MODULES = "modules.json"
# Where sentence-transformers looks for the first module's settings: the first of these files that exists.
SETTINGS = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# Arguments for transformers in those settings that change no vector; all others are refused.
HARMLESS = (
    *("add_pooling_layer", "attn_implementation", "device_map", "dtype", "low_cpu_mem_usage", "padding"),
    *("padding_side", "return_tensors", "revision", "torch_dtype", "trust_remote_code", "truncation"),
    *("use_cache", "use_fast", "use_safetensors"),
)
ARGUMENTS = ("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs")
ONLY = {
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "query_length": None,
    "document_length": None,
    "query_expansion": None,
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@frozen
class Dense:
    """A linear layer after pooling, from its own folder."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


@frozen
class Recipe:
    """Everything between the last hidden state and the vector, and the prompts."""

    pooling: str
    max_tokens: int
    normalise: bool = False
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    lower: bool = False  # convert texts to lower case before they are tokenized
    similarity: str = "cosine"
    matryoshka: bool = False  # whether the model was trained for shortened vectors
    dimensions: int | None = None  # the length of vectors in the model's files, if they set one
    keeps: str = "head"  # the part of a long text that sentence-transformers keeps
    ending: str | None = None  # a token that every text must end with, also if the tokenizer's files do not say so
    projection: DenseLayer | None = None  # the layer after pooling of a model with two towers, from its own files
    length: int | None = None  # texts are filled up to so many tokens with the padding token
    source: str = ""

    def head(self, normalise: bool) -> Head:
        """The part of the recipe that is computed with the model."""
        layers = tuple(DenseLayer(d.folder.name, d.outputs, d.bias, d.activation) for d in self.dense)
        layers = layers if self.projection is None else (self.projection, *layers)
        return Head(self.pooling, layers, normalise, skips=not self.include_prompt)

    def with_dense(self, checkpoint: Checkpoint) -> Checkpoint:
        """The checkpoint with the tensors of the dense layers, from their own files, and with the ending token."""
        if self.ending is not None:
            checkpoint = checkpoint.ending_texts(self.ending)
        for layer in self.dense:
            checkpoint = checkpoint.with_tensors(layer.folder.name, layer.folder / "model.safetensors")
        return checkpoint

    def used_prompts(self) -> dict[str, str]:
        """The prompts that are not empty; under "" the one for texts without a role."""
        return {name: text for name, text in {"": self.prompt(None), **self.prompts}.items() if text}

    def with_prompts(self, prompts: Mapping[str, str]) -> Recipe:
        """The recipe with the caller's prompts, which override its own."""
        if not isinstance(prompts, Mapping) or not all(isinstance(w, str) for both in prompts.items() for w in both):
            what = 'must be a dictionary of texts by role, {"query": "…"}'
            raise InputError("embed", what, given=prompts, field="prompts")
        return replace(self, prompts={**self.prompts, **prompts}, source=f"{self.source}, prompts by the caller")

    def prompt(self, name: str | None) -> str:
        """The text put before an input of the role `name`; "" if the model has no prompt for it."""
        return self.prompts.get(name or self.default_prompt or "", "")


def embeds(checkpoint: Checkpoint, entry: Entry | None) -> bool:
    """Whether this is an embedding model, by the catalogue, its files, or, for an encoder, its type."""
    if entry is not None:
        return entry.kind == "embed"
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if checkpoint.format == "safetensors" and (folder / MODULES).is_file():
        modules = read_object(folder / MODULES, kind=list)
        return any(isinstance(row, dict) and str(row.get("type")).endswith(".Pooling") for row in modules)
    return (
        checkpoint.config.get("pooling_type") in GGUF_POOLINGS or model_module(checkpoint.model_type).KIND == "encoder"
    )


def entry_of(located: Located) -> Entry | None:
    """The catalogue's entry of an embedding model, also for another revision of its repository."""
    entry = located.entry
    if entry is None and located.source.startswith("hub:"):
        from weft.weights.sources import catalog

        entry = catalog.find(located.source.removeprefix("hub:").partition("@")[0])
    return entry if entry is not None and entry.kind == "embed" else None


def tell_of_prompts(checkpoint: Checkpoint) -> None:
    """Log a warning if a model without prompts has the name of a catalogue model whose queries need one. It may be
    another model, so no prompt is used."""
    import logging

    from weft.weights.sources import catalog

    said = [checkpoint.config.get("_name_or_path"), *map(checkpoint.metadata.get, ("general.name", "general.basename"))]
    names = [catalog.fold(Path(name).name) for name in (str(checkpoint.path), *said) if isinstance(name, str)]
    for entry in catalog.entries():
        if entry.query_prefix and any(name.startswith(catalog.fold(entry.name)) for name in names):
            logging.getLogger("weft.embed").warning(
                "%s has no prompts in its files; %s of the catalogue, which has that name, needs %r before queries: "
                "load it by its catalogue name, or give prompts=",
                checkpoint.path.name,
                entry.name,
                entry.query_prefix,
            )


def read_recipe(checkpoint: Checkpoint, entry: Entry | None, pooling: str | None = None) -> Recipe:
    """The recipe of a checkpoint; `pooling`, from the caller, overrides the files."""
    limit = _positions(checkpoint.config)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if (folder / "modules.json").is_file() and checkpoint.format == "safetensors":
        recipe = _read_modules(folder, limit)
    else:
        recipe = _read_elsewhere(checkpoint, entry, limit, pooling)
    if entry is not None:
        recipe = _fill_from_entry(recipe, entry, limit)
    recipe = replace(recipe, matryoshka=recipe.dimensions is not None or _may_be_cut(checkpoint.config, entry))
    if pooling is not None:
        if pooling not in POOLING_WORDS:
            raise UnsupportedError("embed", f"must be one of {', '.join(POOLINGS)}", given=pooling, field="pooling")
        recipe = replace(recipe, pooling=POOLING_WORDS[pooling], source=f"{recipe.source}, pooling by the caller")
    return recipe


def _read_elsewhere(checkpoint: Checkpoint, entry: Entry | None, limit: int, pooling: str | None) -> Recipe:
    if entry is not None and entry.pooling:
        return Recipe(POOLING_WORDS[entry.pooling], limit, bool(entry.normalise), source="catalogue")
    stored = checkpoint.config.get("pooling_type")
    if stored in GGUF_POOLINGS:
        return Recipe(POOLING_WORDS[stored], limit, normalise=True, source="GGUF metadata")
    if pooling is None:
        raise UnsupportedError(
            "embed",
            f"must be given, since the files of {checkpoint.path.name} do not say how hidden states are pooled",
            field="pooling",
            advice="give pooling='mean', 'first' or 'last' (--pooling)",
        )
    return Recipe("mean", limit, source="the caller")


def _may_be_cut(config: Mapping[str, Any], entry: Entry | None) -> bool:
    """Whether config.json (as of Jina and Snowflake) or the catalogue says that the model allows shorter vectors."""
    stated = member(config, "is_matryoshka", bool, False, file="config.json")
    listed = member(config, "matryoshka_dimensions", list, [], file="config.json")
    return bool(stated or listed or (entry is not None and entry.matryoshka))


def _fill_from_entry(recipe: Recipe, entry: Entry, limit: int) -> Recipe:
    prompts = {**recipe.prompts}
    for role, text in (("query", entry.query_prefix), ("document", entry.document_prefix)):
        if text and not prompts.get(role):
            prompts[role] = text
    longest = min(recipe.max_tokens, entry.max_tokens or limit)
    return replace(recipe, prompts=prompts, max_tokens=longest, ending=entry.ending)


def _positions(config: Mapping[str, Any]) -> int:
    """The longest input by config.json; older nomic_bert files use GPT-2's name for it."""
    name = next((name for name in ("max_position_embeddings", "n_positions") if name in config), "n_positions")
    return _length(config, name, 512, "config.json")


def _read_modules(folder: Path, limit: int) -> Recipe:
    modules = read_object(folder / MODULES, kind=list)
    if len(modules) > MAX_MODULES:
        raise FormatError(MODULES, f"it lists {len(modules)} modules; at most {MAX_MODULES} are allowed")
    pooling: dict[str, Any] | None = None
    pooling_file = ""
    dense: list[Dense] = []
    normalise = False
    for at, module in enumerate(modules):
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise FormatError(MODULES, "must be an object with a type", given=module, field="entry", index=at)
        code, _, kind = module["type"].rpartition(".")
        if code and code.partition(".")[0] != "sentence_transformers":
            what = "has a type that is the model's own code, which weft does not run"
            raise UnsupportedError(MODULES, what, given=module["type"], field="entry", index=at)
        place = _inside(folder, member(module, "path", str, "", file=MODULES), at)
        if kind == "Pooling":
            pooling, pooling_file = _module_config(place, at)
        elif kind == "Dense":
            if normalise or pooling is None:
                what = "is a Dense layer before Pooling or after Normalize, which weft does not support"
                raise UnsupportedError(MODULES, what, field="entry", index=at)
            dense.append(_read_dense(place, at))
        elif kind == "Normalize":
            _check_names(*_module_config(place, at, missing={}))
            normalise = True
        elif kind not in ("Transformer", "Dropout"):  # dropout is for training only
            what = "has a type that weft does not support"
            raise UnsupportedError(MODULES, what, given=kind, field="entry", index=at)
    if pooling is None:
        raise UnsupportedError(MODULES, "it has no entry of type Pooling, so a text has no single vector")
    settings_file = next((name for name in SETTINGS if (folder / name).is_file()), SETTINGS[0])
    settings = read_object(folder / settings_file, missing={})
    _check_settings(settings, settings_file)
    extra_file = "config_sentence_transformers.json"
    extra = read_object(folder / extra_file, missing={})
    kind = member(extra, "model_type", str, "SentenceTransformer", file=extra_file)
    if kind != "SentenceTransformer":
        raise UnsupportedError(extra_file, "must be SentenceTransformer", given=kind, field="model_type")
    prompts = member(extra, "prompts", dict, {}, file=extra_file)
    mode, include_prompt = _read_pooling(pooling, pooling_file)
    default = member(extra, "default_prompt_name", str, None, file=extra_file)
    if default is not None and default not in prompts:
        raise FormatError(extra_file, "must be the name of a prompt", given=default, field="default_prompt_name")
    return Recipe(
        pooling=mode,
        max_tokens=_longest(folder, settings, settings_file, limit),
        normalise=normalise,
        dense=tuple(dense),
        prompts={name: member(prompts, name, str, "", file=extra_file) for name in prompts},
        default_prompt=default,
        include_prompt=include_prompt,
        lower=member(settings, "do_lower_case", bool, False, file=settings_file),
        similarity=_read_similarity(extra, extra_file),
        dimensions=None if extra.get("truncate_dim") is None else _length(extra, "truncate_dim", 0, extra_file),
        keeps="tail" if _tokenizer_settings(folder).get("truncation_side") == "left" else "head",
        source="sentence-transformers folder",
    )


def _check_settings(settings: Mapping[str, Any], file: str) -> None:
    """Refuse settings that would change the vectors of sentence-transformers and that weft does not support."""
    for name, only in ONLY.items():
        if settings.get(name) not in (None, only):
            what = f"must be {only!r}" if only else "is not supported"
            raise UnsupportedError(file, what, given=settings[name], field=name)
    said = {name: member(settings, name, dict, {}, file=file) for name in (*ARGUMENTS, "processing_kwargs")}
    calls = said.pop("processing_kwargs")
    said |= {f"processing_kwargs.{name}": member(calls, name, dict, {}, file=file) for name in ("common", "text")}
    for name, given in said.items():
        for key in given:
            if key not in HARMLESS:
                raise UnsupportedError(file, "has a setting that weft does not support", given=key, field=name)
    text = {"method": "forward", "method_output_name": "last_hidden_state"}
    if member(settings, "modality_config", dict, {"text": text}, file=file).get("text") != text:
        what = "must compute texts by method 'forward' and use 'last_hidden_state'"
        raise UnsupportedError(file, what, field="modality_config")


def _check_names(config: Mapping[str, Any], file: str) -> None:
    """Refuse modules that work on anything but the vector of a text."""
    for name in ("module_input_name", "module_output_name"):
        given = member(config, name, str, "sentence_embedding", file=file)
        if given != "sentence_embedding":
            raise UnsupportedError(file, "must be 'sentence_embedding'", given=given, field=name)


def _tokenizer_settings(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_object(folder / "tokenizer_config.json", missing={})
    return found


def _longest(folder: Path, settings: Mapping[str, Any], file: str, limit: int) -> int:
    """max_seq_length, else the tokenizer's limit, in which a very large number means no limit."""
    if settings.get("max_seq_length") is not None:
        return min(limit, _length(settings, "max_seq_length", limit, file))
    stated = _tokenizer_settings(folder).get("model_max_length")
    return min(limit, int(stated)) if isinstance(stated, (int, float)) and 1 <= stated <= limit else limit


def _inside(folder: Path, name: str, at: int) -> Path:
    """The folder of an entry of modules.json, which must be inside the model's folder."""
    try:
        place = (folder / name).resolve()
        inside = folder.resolve() in (place, *place.parents)
    except (OSError, ValueError):  # a name that no file can have
        inside = False
    if not inside:
        raise FormatError(MODULES, "has a path outside the model's folder", given=name, field="entry", index=at)
    return place


def _module_config(place: Path, at: int, missing: dict[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """The config.json of the entry `at`, or `missing` if there is none, and its name for messages."""
    file = f"{place.name[:80]}/config.json"
    try:
        return read_object(place / "config.json", name=file, missing=missing), file
    except NotFoundError:
        what = "has a path without a config.json"
        raise NotFoundError(MODULES, what, given=place.name, field="entry", index=at) from None


def _length(config: Mapping[str, Any], name: str, otherwise: int, file: str) -> int:
    """A number of tokens, at least one."""
    length: int = member(config, name, int, otherwise, file=file)
    if length < 1:
        raise FormatError(file, "must be at least 1", given=length, field=name)
    return length


def _read_pooling(config: Mapping[str, Any], file: str) -> tuple[str, bool]:
    """The pooling, and whether the prompt's tokens are pooled too."""
    chosen = [mode for flag, mode in POOLING_FLAGS.items() if member(config, flag, bool, False, file=file)]
    words = config.get("pooling_mode")
    if words is not None:
        listed = words if isinstance(words, list) else [words]
        chosen = [POOLING_WORDS.get(word, word[:40]) if isinstance(word, str) else f"{word!r:.40}" for word in listed]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        what = f"must be one of {', '.join(POOLINGS)}"
        raise UnsupportedError(file, what, given=" and ".join(chosen) or None, field="pooling_mode")
    include_prompt = member(config, "include_prompt", bool, True, file=file)
    if chosen[0] == "weightedmean" and not include_prompt:
        raise UnsupportedError(file, "must be true for pooling_mode weightedmean", given=False, field="include_prompt")
    return chosen[0], include_prompt


def _read_dense(folder: Path, at: int) -> Dense:
    config, file = _module_config(folder, at)
    _check_names(config, file)
    if member(config, "use_residual", bool, False, file=file):
        raise UnsupportedError(file, "is not supported", given=True, field="use_residual")
    place, _, activation = member(config, "activation_function", str, "torch.Tanh", file=file).rpartition(".")
    if activation not in ACTIVATIONS or place.partition(".")[0] != "torch":  # others are the model's own code
        what = f"must be one of torch's {', '.join(ACTIVATIONS)}"
        raise UnsupportedError(file, what, given=f"{place}.{activation}", field="activation_function")
    if not (folder / "model.safetensors").is_file() and (folder / "pytorch_model.bin").is_file():
        raise UnsupportedError(
            file,
            "the layer has only pickled weights, which can run code when they are loaded",
            advice="save them as model.safetensors",
        )
    inputs, outputs = (member(config, name, int, 0, file=file) for name in ("in_features", "out_features"))
    if not (0 < inputs <= MAX_FEATURES and 0 < outputs <= MAX_FEATURES):
        what = f"in_features and out_features must be 1 to {MAX_FEATURES}"
        raise FormatError(file, what, given=(inputs, outputs))
    return Dense(folder, inputs, outputs, member(config, "bias", bool, True, file=file), ACTIVATIONS[activation])


def _read_similarity(config: Mapping[str, Any], file: str) -> str:
    name: str = member(config, "similarity_fn_name", str, "cosine", file=file)
    if name not in SIMILARITIES:
        what = f"must be one of {', '.join(SIMILARITIES)}"
        raise UnsupportedError(file, what, given=name, field="similarity_fn_name")
    return name
