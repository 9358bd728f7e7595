"""Chroma takes the class as its own kind: in a collection, and when the collection is opened again."""

from pathlib import Path

import numpy as np
import pytest

import weft

chromadb = pytest.importorskip("chromadb", reason="Chroma is not installed; pip install chromadb")
from chromadb.api.types import EmbeddingFunction
from chromadb.utils.embedding_functions import known_embedding_functions

from weft.integrations.chroma import WeftEmbeddingFunction

TEXTS = ["the cat sat", "one two three", "the quick brown fox"]


def test_a_collection_finds_what_is_near_and_opens_again(
    tiny_folder: Path, tiny_embedder: weft.Embedder, tmp_path: Path
) -> None:
    made = WeftEmbeddingFunction(str(tiny_folder), threads=1)
    assert isinstance(made, EmbeddingFunction) and known_embedding_functions["weft"] is WeftEmbeddingFunction
    client = chromadb.PersistentClient(str(tmp_path), chromadb.Settings(anonymized_telemetry=False))
    collection = client.create_collection("notes", embedding_function=made)
    collection.add(ids=["0", "1", "2"], documents=TEXTS)
    wanted = [str(r.index) for r in tiny_embedder.rank("one two three", TEXTS)]
    assert collection.query(query_texts=["one two three"], n_results=3)["ids"] == [wanted]
    stored = collection.get(ids=["1"], include=["embeddings"])["embeddings"]
    assert np.allclose(stored[0], tiny_embedder.encode_document(TEXTS[1]))
    again = client.get_collection("notes")  # the class is found by its name, the model by its configuration
    assert again.query(query_texts=["one two three"], n_results=3)["ids"] == [wanted]


def test_its_configuration_comes_back_and_another_model_is_refused(tiny_folder: Path) -> None:
    made = WeftEmbeddingFunction(str(tiny_folder), threads=1)
    config = made.get_config()
    WeftEmbeddingFunction.validate_config(config)
    again = WeftEmbeddingFunction.build_from_config(config)
    assert again.get_config() == config and again.default_space() == "cosine"
    assert np.array_equal(made(TEXTS), again(TEXTS))
    with pytest.raises(weft.WeftError, match="is not what made"):
        WeftEmbeddingFunction.build_from_config({**config, "compute": "int8"})
