"""Chooses the files of a repository or folder that make up a model. Pure functions over names.

With a quantisation: the GGUF file of that name, all its parts if it is split. Without: the safetensors model with its
configuration and tokenizer files, or the default GGUF file if there is no such model. Pickled weights and code are
never chosen.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.errors import NotFoundError, UnsupportedError
from weft.weights.sources.folders import inside

DEFAULT_QUANT = "Q4_K_M"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".h5", ".msgpack")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
SIDECARS = frozenset(
    (
        *TOKENIZERS,
        "adapter_config.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "config_sentence_transformers.json",
        "generation_config.json",
        "merges.txt",
        "model.safetensors.index.json",
        "modules.json",
        "preprocessor_config.json",
        "processor_config.json",
        "sentence_bert_config.json",
        "special_tokens_map.json",
        "tokenizer_config.json",
        "weft.json",  # the model's description
    )
)
CLIP, CLIP_CONFIG = "0_CLIPModel/model.safetensors", "0_CLIPModel/config.json"
INDEX = "model.safetensors.index.json"
INDEX_BYTES, INDEX_VALUES = 32 << 20, 400_000  # the limits of the reader of an index

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
# Subfolders of modules.json (1_Pooling, 2_Dense …): their settings, weights and vocabularies.
_MODULE = re.compile(r"\d+_\w+/[\w.-]+\.(json|safetensors|txt|model)")
# A quantisation inside a file name, for listing what is there.
_QUANT = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|TQ\d\w*|MXFP4\w*))(?=$|[-._/])", re.IGNORECASE)


def ggufs(names: Iterable[str]) -> list[str]:
    """Models among the GGUF files, sorted: no projectors, and only the first part of a split one."""
    found = [name for name in names if name.lower().endswith(".gguf")]
    found = [name for name in found if not name.rpartition("/")[2].lower().startswith(("mmproj", "imatrix"))]
    return sorted(name for name in found if not (part := _SPLIT.search(name)) or part[1] == "00001")


def quant_of(name: str) -> str | None:
    """The quantisation a GGUF file's name mentions, in capitals; the last one where there are several."""
    found = _QUANT.findall(_SPLIT.sub("", name)[: -len(".gguf")])
    return found[-1].upper() if found else None


def pick_gguf(where: str, names: Sequence[str], quant: str | None) -> str:
    """The GGUF file of `quant`; by default Q4_K_M, then the first. Of several matches the shortest name wins."""
    models = ggufs(names)
    wanted = re.compile(rf"(^|[-._/]){re.escape(quant or DEFAULT_QUANT)}($|[-._/])", re.IGNORECASE)
    fitting = [name for name in models if wanted.search(_SPLIT.sub("", name)[: -len(".gguf")])]
    if fitting:
        return min(fitting, key=lambda name: (len(name), name))
    if quant is None and models:
        return models[0]
    have = ", ".join(sorted({quant_of(name) or name for name in models})) or "no GGUF file at all"
    raise NotFoundError("models", f"{where} has no GGUF file of quantisation {quant}", advice=f"it has {have}")


def parts_of(name: str) -> list[str]:
    """All parts of a split GGUF file, given its first; a whole file is its own only part."""
    split = _SPLIT.search(name)
    if not split:
        return [name]
    head, tail, count = name[: split.start()], name[split.end() :], int(split[2])
    return [f"{head}-{index:05d}-of-{split[2]}{tail}" for index in range(1, count + 1)]


def weights(names: Iterable[str]) -> list[str]:
    """The safetensors files of a model in the top folder: one file, or all shards, or whatever there is.

    Folders of sentence-transformers with a CLIP have it in a folder of its own.
    """
    names = list(names)
    if "modules.json" in names and CLIP in names:
        return [CLIP]
    top = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    if "model.safetensors" in top:
        return ["model.safetensors"]
    return [name for name in top if _SHARD.fullmatch(name)] or top


def choose(where: str, names: Sequence[str], quant: str | None) -> list[str]:
    """The files to fetch, out of all `names` of the repository `where`."""
    tensors = weights(names)
    if quant is None and tensors:
        sidecars = [name for name in names if name in SIDECARS or _MODULE.fullmatch(name)]
        templates = [name for name in names if re.fullmatch(r"additional_chat_templates/[\w.-]+\.jinja", name)]
        return [name for name in (*sidecars, *templates) if name not in tensors] + tensors
    if quant is not None or ggufs(names):
        chosen = parts_of(pick_gguf(where, names, quant))
        missing = sorted(set(chosen) - set(names))
        if missing:
            raise NotFoundError("models", f"{where} lacks parts of a split file: {', '.join(missing[:3])}")
        return chosen
    if any(name.lower().endswith(PICKLES) for name in names):
        raise UnsupportedError(
            "models",
            f"{where} has only pickled weights, which can run code when they are opened",
            advice="look for a safetensors or GGUF version of the model",
        )
    nested = (
        "weights must be in the top folder, even if modules.json names another" if "modules.json" in names else None
    )
    raise NotFoundError("models", f"{where} holds neither safetensors nor GGUF files", advice=nested)


def entry_point(folder: Path, chosen: Sequence[str]) -> Path:
    """What to load once the chosen files are in `folder`: the (first) GGUF file, or the folder."""
    models = ggufs(chosen)
    return folder / models[0] if models else folder


def shards(index: Path) -> list[str] | None:
    """File names that a model.safetensors.index.json mentions, or None where it cannot be read as one."""
    try:
        if index.stat().st_size > INDEX_BYTES:
            return None
        raw = index.read_bytes()
        if sum(map(raw.count, (b",", b"[", b"{"))) > INDEX_VALUES:
            return None
        table = json.loads(raw)["weight_map"]
        return sorted({str(name) for name in table.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def ready(folder: Path, names: Sequence[str], quant: str | None, *, lenient: bool = False) -> Path | None:
    """What to load from `folder`, whose files are `names`, if the model is complete there; else None.

    `folder` may be a partial copy of a repository. So without `lenient` a model needs a tokenizer beside its weights,
    and a GGUF file other than the default one only counts if `quant` names it.
    """
    present = set(names)
    if quant is None and weights(names) == [CLIP] and CLIP_CONFIG in present:
        return folder
    if quant is None and "config.json" in present:
        wanted = weights(names)
        if "model.safetensors" not in present and INDEX in present:
            wanted = shards(folder / INDEX) or []
            if not all(inside(folder, name) and name in present for name in wanted):
                wanted = []
        if wanted and (lenient or present.intersection(TOKENIZERS)):
            return folder
    models = ggufs(names)
    if models and (quant is not None or not weights(names)):
        try:
            name = pick_gguf(folder.name, names, quant or (None if lenient else DEFAULT_QUANT))
        except NotFoundError:
            return None
        if present.issuperset(parts_of(name)):
            return folder / name
    return None
