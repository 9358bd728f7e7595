"""What is known of a model before it is loaded: its kind, the memory it will take, and what its files say about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.serve.models.digest import digest_of
from weft.serve.settings import ModelSpec

if TYPE_CHECKING:
    from weft.runtime import Checkpoint
    from weft.weights.sources import Located

FOR_ALL = ("context", "kv_dtype", "compute", "threads")  # command-line options, given to models of every kind
README_BYTES = 64 << 10  # of a model's README.md, in which its licence may stand
# general.file_type of GGUF files: how llama.cpp names the mixture of types in a file.
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4_MOE"},
}
# A field of config.json, and its name after the architecture in GGUF, which Ollama's clients read.
GGUF_NAMES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "vocab_size": "vocab_size",
}
_LICENCE = re.compile(r"^license: *[\"']?([\w.+-]{1,60})[\"']? *$", re.MULTILINE | re.ASCII)


@frozen
class Facts:
    """What a model's files say about it. `quantisation` is how most weights are stored: Q4_K_M, BF16.

    `sizes` has the whole numbers of its config by their names in GGUF.
    """

    model_type: str = ""
    format: str = ""
    parameters: int = 0
    quantisation: str = ""
    file_bytes: int = 0
    licence: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


@frozen
class Outline:
    """A model's kind, the bytes it will take by use, the longest input in tokens, and the facts of its files."""

    kind: str
    bytes: dict[str, int]
    max_tokens: int
    digest: str = ""  # of its files
    facts: Facts = field(default_factory=Facts)

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def outline_of(spec: ModelSpec, *, offline: bool = True) -> Outline:
    """Outline a model from its files, reading only pieces of them."""
    from weft.embed.recipe import embeds
    from weft.rerank.reranker import scorer_of, stated_method
    from weft.runtime import open_checkpoint
    from weft.weights.sources import locate

    located = locate(spec.source, offline=offline, progress=False)
    checkpoint = open_checkpoint(located.path)
    digest, facts = digest_of(located.path), facts_of(checkpoint, located)
    method = stated_method(checkpoint, located)
    if method is not None:
        options = options_for(spec, "rerank")
        try:
            scorer = scorer_of(checkpoint, method, **options)
        except InputError as error:
            raise error.but(where=f"models.{spec.name} in the --config file") from None
        return Outline("rerank", scorer.memory_plan(512), scorer.max_tokens, digest, facts)
    if not embeds(checkpoint, located.entry):
        from weft.runtime import Decoder

        decoder = Decoder(checkpoint, **{**options_for(spec, "generate"), "bind": False})
        return Outline("generate", decoder.memory_plan(), decoder.max_context, digest, facts)
    from weft.embed.recipe import read_recipe
    from weft.runtime import Encoder

    options = options_for(spec, "embed")
    recipe = read_recipe(checkpoint, located.entry, options.get("pooling")).with_prompts(options.get("prompts", {}))
    head = recipe.head(options.get("normalise", recipe.normalise))
    computed = {name: options[name] for name in ("compute", "threads") if name in options}
    encoder = Encoder(recipe.with_dense(checkpoint), head, **computed)
    most = min(recipe.max_tokens, encoder.max_tokens)
    return Outline("embed", dict(encoder.memory_plan(512)), most, digest, facts)


def options_for(spec: ModelSpec, kind: str) -> dict[str, Any]:
    """The options for a model of this kind; FOR_ALL are ignored where they do not apply, others are an error."""
    wanted = {
        "generate": ("context", "kv_dtype", "kv_tokens", "kv_bytes", "compute", "threads"),
        "embed": ("compute", "threads", "pooling", "normalise", "dimensions", "matryoshka", "prompts"),
        "rerank": ("compute", "threads", "label", "instruction"),
    }[kind]
    for name in spec.options:
        if name not in wanted and name not in FOR_ALL:
            does = {"generate": "generates text", "embed": "embeds texts", "rerank": "scores documents"}[kind]
            reason = f"does not apply to a model that {does}"
            raise InputError("serve", reason, field=f"models.{spec.name}.{name}", advice="leave it out")
    return {name: value for name, value in spec.options.items() if name in wanted}


def facts_of(checkpoint: Checkpoint, located: Located) -> Facts:
    """The facts of a model on this machine; its weights are not read."""
    weights: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        dtype = tensor.view.dtype
        if dtype.quantised or dtype.name.startswith(("f", "bf")):  # positions and masks are stored as integers
            weights[dtype.name] += tensor.view.size
    most = max(weights, key=lambda name: weights[name], default="")
    given = checkpoint.metadata.get("general.file_type")
    sizes = {new: checkpoint.config.get(old) for old, new in GGUF_NAMES.items()}
    return Facts(
        model_type=checkpoint.model_type,
        format=checkpoint.format,
        parameters=sum(weights.values()),
        quantisation=FILE_TYPES.get(given, most.upper()) if isinstance(given, int) else most.upper(),
        file_bytes=sum(file.size for file in checkpoint.files),
        licence=_licence(checkpoint, located),
        sizes={name: value for name, value in sizes.items() if isinstance(value, int)},
    )


def _licence(checkpoint: Checkpoint, located: Located) -> str:
    """The licence by the catalogue, the GGUF file, or the header of the model's README.md; "" if none says it."""
    if located.entry is not None:
        return located.entry.licence
    stated = checkpoint.metadata.get("general.license")
    if isinstance(stated, str):
        return stated[:200]
    readme = (checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent) / "README.md"
    return _header_licence(readme)


def _header_licence(readme: Path) -> str:
    try:
        with readme.open("rb") as opened:
            text = opened.read(README_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    header = text.split("\n---", 1)[0] if text.startswith("---") else ""
    found = _LICENCE.search(header)
    return found[1] if found else ""
