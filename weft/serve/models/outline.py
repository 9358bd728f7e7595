"""What is known of a model before it is loaded: its kind, the memory it will take, and what its files say about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.frozen import frozen
from weft.serve.models.digest import digest_of
from weft.serve.settings import Limits, ModelSpec

if TYPE_CHECKING:
    from weft.generate.choice.defaults import Defaults
    from weft.runtime import Checkpoint
    from weft.weights.sources import Located

FOR_ALL = (
    "context",
    "kv_dtype",
    "compute",
    "threads",
    "expert_bytes",
)  # command-line options, given to models of every kind
DOES = {
    "generate": "generates text",
    "embed": "embeds texts",
    "rerank": "scores documents",
    "classify": "classifies texts",
}
README_BYTES = 64 << 10  # of a model's README.md, in which its licence may stand
# general.file_type of GGUF files: how llama.cpp names the mixture of types in a file.
# fmt: off
FILE_TYPES = (
    "F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S",
    "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K", "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
    "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "", "TQ1_0", "TQ2_0", "MXFP4_MOE",
)
# fmt: on
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
    sees: bool = False  # a generator reads pictures
    sizes: Mapping[str, int] = field(default_factory=dict)


@frozen
class Outline:
    """A model's kind, the bytes it will take by use, the longest input in tokens, and the facts of its files.

    `defaults` are the sampling settings of requests that leave them unset, of a generator.
    """

    kind: str
    bytes: dict[str, int]
    max_tokens: int
    digest: str = ""  # of its files
    facts: Facts = field(default_factory=Facts)
    defaults: Defaults | None = None

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


def outline_of(spec: ModelSpec, *, offline: bool = True) -> Outline:
    """Outline a model from its files, reading only pieces of them."""
    from weft.classify.classifier import is_classifier
    from weft.embed.recipe import embeds
    from weft.embed.seeing import model_folder, sees
    from weft.rerank.classifier import Labels, label_count
    from weft.rerank.reranker import scorer_of, stated_method
    from weft.runtime import open_checkpoint
    from weft.runtime.projector import with_projector
    from weft.weights.sources import locate

    if is_classifier(spec.source):
        return _outline_of_head(spec, offline)
    located = locate(spec.source, offline=offline, progress=False)
    checkpoint = with_projector(open_checkpoint(model_folder(located.path)), spec.options.get("mmproj"))
    digest, facts = digest_of(located.path), facts_of(checkpoint, located)
    method = stated_method(checkpoint, located)
    if method == "classifier" and "label" not in spec.options and label_count(checkpoint) > 1:
        labels = Labels(checkpoint, **options_for(spec, "classify"))
        return Outline("classify", labels.memory_plan(512), labels.max_tokens, digest, facts)
    if method is not None:
        options = options_for(spec, "rerank")
        try:
            scorer = scorer_of(checkpoint, method, **options)
        except InputError as error:
            raise error.but(where=f"models.{spec.name} in the --config file") from None
        return Outline("rerank", scorer.memory_plan(512), scorer.max_tokens, digest, facts)
    if not sees(checkpoint) and not embeds(checkpoint, located.entry):
        from weft.generate.choice.defaults import model_defaults
        from weft.runtime import Decoder

        decoder = Decoder(checkpoint, **{**options_for(spec, "generate"), "bind": False})
        defaults = model_defaults(checkpoint.generation, located.entry)
        used = dict(decoder.memory_plan())
        used["work"] += Limits().of_pictures.work_bytes if facts.sees else 0
        return Outline("generate", used, decoder.max_context, digest, facts, defaults)
    from weft.embed.seeing import recipe_of
    from weft.runtime import Encoder

    options = options_for(spec, "embed")
    recipe = recipe_of(checkpoint, located.entry, options.get("pooling"), located.path)
    recipe = recipe.with_prompts(options.get("prompts", {}))
    head = recipe.head(options.get("normalise", recipe.normalise))
    computed = {name: options[name] for name in ("compute", "threads") if name in options}
    encoder = Encoder(recipe.with_dense(checkpoint), head, **computed)
    most = min(recipe.max_tokens, encoder.max_tokens)
    used = dict(encoder.memory_plan(512))
    used["work"] += Limits().of_pictures.work_bytes if sees(checkpoint) else 0
    return Outline("embed", used, most, digest, facts)


def _outline_of_head(spec: ModelSpec, offline: bool) -> Outline:
    """The outline of a classifier that weft has trained: that of its embedder."""
    from weft.classify.classifier import read_about

    folder = Path(spec.source)
    about = read_about(folder)
    threads = {name: value for name, value in options_for(spec, "classify").items() if name == "threads"}
    options = {"compute": about["options"].get("compute", "f32"), **threads}
    base = outline_of(replace(spec, source=about["base"], options=options), offline=offline)
    return replace(base, kind="classify", digest=digest_of(folder))


def options_for(spec: ModelSpec, kind: str) -> dict[str, Any]:
    """The options for a model of this kind; FOR_ALL are ignored where they do not apply, others are an error."""
    wanted = {
        "generate": ("context", "kv_dtype", "kv_tokens", "kv_bytes", "expert_bytes", "compute", "threads", "mmproj"),
        "embed": ("compute", "threads", "pooling", "normalise", "dimensions", "matryoshka", "prompts"),
        "rerank": ("compute", "threads", "label", "instruction"),
        "classify": ("compute", "threads", "label"),
    }[kind]
    for name in spec.options:
        if name not in wanted and name not in FOR_ALL:
            reason = f"does not apply to a model that {DOES[kind]}"
            raise InputError("serve", reason, field=f"models.{spec.name}.{name}", advice="leave it out")
    return {name: value for name, value in spec.options.items() if name in wanted}


def facts_of(checkpoint: Checkpoint, located: Located) -> Facts:
    """The facts of a model on this machine; its weights are not read."""
    from weft.runtime.projector import reads_pictures

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
        quantisation=_file_type(given) or most.upper(),
        file_bytes=sum(file.size for file in checkpoint.files),
        licence=_licence(checkpoint, located),
        sees=reads_pictures(checkpoint),
        sizes={name: value for name, value in sizes.items() if isinstance(value, int)},
    )


def _file_type(given: Any) -> str:
    """The name of a GGUF file's general.file_type; "" if it has none."""
    known = isinstance(given, int) and 0 <= given < len(FILE_TYPES)
    return FILE_TYPES[given] if known else ""


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
