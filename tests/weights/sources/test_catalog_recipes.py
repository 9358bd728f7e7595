"""An embedding model of the catalogue is used as its entry says, with and without the files that say so themselves."""

import hashlib
import json
from pathlib import Path

import pytest

from weft.embed.recipe import POOLING_WORDS, read_recipe
from weft.runtime import Checkpoint
from weft.weights.sources import catalog

ENTRIES = [entry for entry in catalog.entries() if entry.kind == "embed"]
FLAGS = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token", "last": "pooling_mode_lasttoken"}


def opened(folder: Path, positions: int = 40960) -> Checkpoint:
    return Checkpoint(folder, "safetensors", {"max_position_embeddings": positions}, {}, 0)


def write_modules(folder: Path, entry: catalog.Entry) -> None:
    """The files by which sentence-transformers knows such a model, without prompts."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if entry.normalise else [])]
    modules = [
        {"path": "1_Pooling" if kind == "Pooling" else "", "type": f"sentence_transformers.models.{kind}"}
        for kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({FLAGS[entry.pooling or ""]: True}))


@pytest.mark.parametrize("with_modules", [False, True])
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_recipe_is_the_entrys(entry: catalog.Entry, with_modules: bool, tmp_path: Path) -> None:
    if with_modules:
        write_modules(tmp_path, entry)
    recipe = read_recipe(opened(tmp_path), entry)
    assert recipe.pooling == POOLING_WORDS[entry.pooling or ""] and recipe.normalise == entry.normalise
    assert recipe.max_tokens == entry.max_tokens
    assert (recipe.prompt("query"), recipe.prompt("document")) == (entry.query_prefix, entry.document_prefix)


def test_a_models_own_prompt_goes_before_the_catalogues(tmp_path: Path) -> None:
    (entry,) = [entry for entry in ENTRIES if entry.name == "multilingual-e5-small"]
    write_modules(tmp_path, entry)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "Frage: "}}))
    recipe = read_recipe(opened(tmp_path, positions=100), entry)
    assert (recipe.prompt("query"), recipe.prompt("document")) == ("Frage: ", "passage: ")
    assert recipe.max_tokens == 100


def test_the_prompt_of_qwen3_embedding_is_the_one_in_its_pinned_file() -> None:
    (entry,) = [entry for entry in ENTRIES if entry.name == "Qwen3-Embedding-0.6B"]
    (pin,) = [file for file in entry.files if file.name == "config_sentence_transformers.json"]
    prompts = {"query": entry.query_prefix, "document": entry.document_prefix}
    text = json.dumps({"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"}, indent=2)
    assert (len(text), hashlib.sha256(text.encode()).hexdigest()) == (pin.bytes, pin.sha256)
