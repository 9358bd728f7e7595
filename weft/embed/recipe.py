"""How a model's hidden states become a vector: pooling, dense layers, normalising, prompts, the longest input.

Read from a sentence-transformers folder whole, else from the catalogue, else from GGUF metadata, else from the caller.
Nothing is guessed: an encoder that does not say how it pools is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UnsupportedError
from weft.runtime import Checkpoint, DenseLayer, Head, read_object
from weft.weights.sources import Entry

POOLINGS = ("mean", "first", "last", "max")
# sentence-transformers' flags, and the words it uses since it has one setting for all of them
POOLING_FLAGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
POOLING_WORDS = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last", "first": "first", "last": "last"}
GGUF_POOLINGS = {1: "mean", 2: "first", 3: "last"}  # 0 none, 4 rank
ACTIVATIONS = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu", "SiLU": "silu", "Sigmoid": "sigmoid"}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


@dataclass(frozen=True)
class Dense:
    """A linear layer after pooling, from its own folder."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: str


@dataclass(frozen=True)
class Recipe:
    """Everything between the last hidden state and the vector, and what is put before the text."""

    pooling: str
    max_tokens: int
    normalise: bool = False
    dense: tuple[Dense, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    similarity: str = "cosine"
    source: str = ""

    def head(self, normalise: bool) -> Head:
        """The part of the recipe that is computed with the model."""
        layers = tuple(DenseLayer(d.folder.name, d.outputs, d.bias, d.activation) for d in self.dense)
        return Head(self.pooling, layers, normalise)

    def prompt(self, name: str | None) -> str:
        """The text put before an input of the role `name`; none for a role the model has no prompt for."""
        return self.prompts.get(name or self.default_prompt or "", "")


def read_recipe(checkpoint: Checkpoint, entry: Entry | None, pooling: str | None = None) -> Recipe:
    """The recipe of a checkpoint; `pooling` is the caller's word and goes before what the files say."""
    limit = int(checkpoint.config.get("max_position_embeddings") or 512)
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    if (folder / "modules.json").is_file() and checkpoint.format == "safetensors":
        recipe = _read_modules(folder, limit)
    else:
        recipe = _read_elsewhere(checkpoint, entry, limit, pooling)
    if entry is not None:
        recipe = _fill_from_entry(recipe, entry, limit)
    if pooling is not None:
        if pooling not in POOLING_WORDS:
            raise UnsupportedError(f"[embed] pooling {pooling!r}; known are {', '.join(POOLINGS)}")
        recipe = replace(recipe, pooling=POOLING_WORDS[pooling], source=f"{recipe.source}, pooling by the caller")
    return recipe


def _read_elsewhere(checkpoint: Checkpoint, entry: Entry | None, limit: int, pooling: str | None) -> Recipe:
    if entry is not None and entry.pooling:
        return Recipe(POOLING_WORDS[entry.pooling], limit, bool(entry.normalise), source="catalogue")
    stored = checkpoint.config.get("pooling_type")
    if stored in GGUF_POOLINGS:
        return Recipe(GGUF_POOLINGS[stored], limit, normalise=True, source="GGUF metadata")
    if pooling is None:
        raise UnsupportedError(
            f"[embed] {checkpoint.path.name} does not say how its hidden states are pooled; "
            "give pooling='mean', 'first' or 'last'"
        )
    return Recipe("mean", limit, source="the caller")


def _fill_from_entry(recipe: Recipe, entry: Entry, limit: int) -> Recipe:
    prompts = {**recipe.prompts}
    for role, text in (("query", entry.query_prefix), ("document", entry.document_prefix)):
        if text and not prompts.get(role):
            prompts[role] = text
    longest = min(recipe.max_tokens, entry.max_tokens or limit)
    return replace(recipe, prompts=prompts, max_tokens=longest)


def _read_modules(folder: Path, limit: int) -> Recipe:
    modules = read_object(folder / "modules.json", kind=list)
    pooling: dict[str, Any] | None = None
    dense: list[Dense] = []
    normalise = False
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise FormatError("[embed] modules.json must be a list of objects with a type")
        kind = module["type"].rpartition(".")[2]
        place = _inside(folder, str(module.get("path", "")))
        if kind == "Pooling":
            pooling = read_object(place / "config.json")
        elif kind == "Dense":
            dense.append(_read_dense(place))
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise UnsupportedError(f"[embed] modules.json asks for {kind}, which weft does not have")
    if pooling is None:
        raise UnsupportedError("[embed] modules.json has no Pooling; a model without pooling gives no vector per text")
    settings = read_object(folder / "sentence_bert_config.json", missing={})
    extra = read_object(folder / "config_sentence_transformers.json", missing={})
    return Recipe(
        pooling=_read_pooling(pooling),
        max_tokens=min(limit, int(settings.get("max_seq_length") or limit)),
        normalise=normalise,
        dense=tuple(dense),
        prompts={str(k): str(v) for k, v in (extra.get("prompts") or {}).items()},
        default_prompt=extra.get("default_prompt_name"),
        include_prompt=bool(pooling.get("include_prompt", True)),
        similarity=_read_similarity(extra.get("similarity_fn_name") or "cosine"),
        source="sentence-transformers folder",
    )


def _inside(folder: Path, name: str) -> Path:
    place = (folder / name).resolve()
    if folder.resolve() not in (place, *place.parents):
        raise FormatError(f"[embed] modules.json points outside its folder: {name!r}")
    return place


def _read_pooling(config: Mapping[str, Any]) -> str:
    chosen = [mode for flag, mode in POOLING_FLAGS.items() if config.get(flag)]
    word = config.get("pooling_mode")
    if isinstance(word, str):
        chosen = [POOLING_WORDS.get(word, word)]
    if len(chosen) != 1 or chosen[0] not in POOLINGS:
        raise UnsupportedError(
            f"[embed] pooling by {' and '.join(chosen) or 'nothing'}; one of {', '.join(POOLINGS)} is known"
        )
    return chosen[0]


def _read_dense(folder: Path) -> Dense:
    config = read_object(folder / "config.json")
    activation = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise UnsupportedError(
            f"[embed] {folder.name} asks for the activation {activation}; known are {', '.join(ACTIVATIONS)}"
        )
    try:
        inputs, outputs = int(config["in_features"]), int(config["out_features"])
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"[embed] {folder.name}/config.json must give in_features and out_features") from None
    return Dense(folder, inputs, outputs, bool(config.get("bias", True)), ACTIVATIONS[activation])


def _read_similarity(name: str) -> str:
    if name not in SIMILARITIES:
        raise UnsupportedError(f"[embed] similarity {name!r}; known are {', '.join(SIMILARITIES)}")
    return name
