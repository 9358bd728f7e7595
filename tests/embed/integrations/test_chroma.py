"""Chroma takes the class as its own kind: in a collection, and when the collection is opened again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import weft

chromadb = pytest.importorskip("chromadb", reason="Chroma is not installed; pip install chromadb")
from chromadb.api.types import EmbeddingFunction
from chromadb.utils.embedding_functions import known_embedding_functions

from weft.integrations.chroma import WeftEmbeddingFunction, fingerprint_of

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
    with pytest.raises(weft.errors.FingerprintError, match="embed the documents again"):
        WeftEmbeddingFunction.build_from_config({**config, "compute": "int8"})


def test_a_path_is_kept_whole(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = chromadb.PersistentClient(str(tmp_path / "db"), chromadb.Settings(anonymized_telemetry=False))
    monkeypatch.chdir(tiny_folder.parent)
    for number, model in enumerate((Path(tiny_folder.name), tiny_folder.name)):
        made = WeftEmbeddingFunction(model, threads=1)
        client.create_collection(f"notes{number}", embedding_function=made).add(ids=["0"], documents=TEXTS[:1])
        monkeypatch.chdir(tmp_path)
        assert client.get_collection(f"notes{number}").query(query_texts=["the cat"])["ids"] == [["0"]]
        monkeypatch.chdir(tiny_folder.parent)


@pytest.mark.parametrize("wrong", ["abc", {"the cat", "one two"}, ["the cat", None]])
def test_texts_are_a_list_of_strings(tiny_embedder: weft.Embedder, wrong: object) -> None:
    made = WeftEmbeddingFunction(embedder=tiny_embedder)
    for call in (made, made.embed_query):
        with pytest.raises(weft.errors.InputError, match="input"):
            call(wrong)  # type: ignore[operator]


def test_a_measure_that_chroma_has_not_is_told(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "model")
    said = {"prompts": {}, "similarity_fn_name": "manhattan"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(said))
    with pytest.raises(weft.errors.InputError, match=r"is manhattan, which Chroma has not; .* space=\"l2\""):
        WeftEmbeddingFunction(str(folder), threads=1)
    with pytest.raises(weft.errors.InputError, match="space is 'manhattan'; Chroma has cosine, ip, l2"):
        WeftEmbeddingFunction(str(folder), threads=1, space="manhattan")  # type: ignore[arg-type]
    made = WeftEmbeddingFunction(str(folder), threads=1, space="l2")
    client = chromadb.PersistentClient(str(tmp_path / "db"), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("notes", embedding_function=made).add(ids=["0"], documents=TEXTS[:1])
    again = client.get_collection("notes")
    assert again.configuration_json["hnsw"]["space"] == "l2"
    assert again.query(query_texts=["the cat"])["ids"] == [["0"]]
    config = {name: value for name, value in made.get_config().items() if name != "space"}
    assert WeftEmbeddingFunction.build_from_config(config).default_space() == "cosine"  # as they were made before


def test_every_option_is_kept_or_refused(tiny_folder: Path) -> None:
    given = {
        "compute": "int8",
        "normalise": False,
        "truncate": "tail",
        "prompts": {"query": "q: "},
        "limits": weft.embed.Limits(texts=9),
        "cache": "memory",
    }
    made = WeftEmbeddingFunction(str(tiny_folder), **given)
    again = WeftEmbeddingFunction.build_from_config(json.loads(json.dumps(made.get_config())))
    assert again.get_config() == made.get_config() and again.fingerprint == made.fingerprint
    assert again.embedder.truncate == "tail" and again.embedder.limits.texts == 9 and again.embedder.cache is not None
    with pytest.raises(weft.WeftError, match="cache is a MemoryCache, which a collection's configuration cannot keep"):
        WeftEmbeddingFunction(str(tiny_folder), cache=weft.embed.MemoryCache())


def test_a_collection_and_a_function_may_be_compared(tiny_folder: Path, tmp_path: Path) -> None:
    made = WeftEmbeddingFunction(str(tiny_folder), threads=1)
    client = chromadb.PersistentClient(str(tmp_path), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("notes", embedding_function=made)
    other = WeftEmbeddingFunction(str(tiny_folder), compute="int8", threads=1)
    opened = client.get_collection("notes", embedding_function=other)  # Chroma compares names, and both are "weft"
    assert fingerprint_of(opened) == made.fingerprint != other.fingerprint
    made.check(opened)
    with pytest.raises(weft.errors.FingerprintError, match="embed the documents again"):
        other.check(opened)
    with pytest.raises(ValueError, match="keeps the model"):
        opened.modify(configuration={"embedding_function": other})
    plain = client.create_collection("plain", embedding_function=None)
    with pytest.raises(weft.WeftError, match="'plain' was not made with"):
        made.check(plain)


def test_an_embedder_may_be_given_and_is_given_again(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    made = WeftEmbeddingFunction(embedder=tiny_embedder)
    client = chromadb.PersistentClient(str(tmp_path), chromadb.Settings(anonymized_telemetry=False))
    client.create_collection("notes", embedding_function=made).add(ids=["0"], documents=TEXTS[:1])
    opened = client.get_collection("notes", embedding_function=made)
    made.check(opened)
    assert opened.query(query_texts=["the cat"], n_results=1)["ids"] == [["0"]]
    with pytest.raises(ValueError, match=r"WeftEmbeddingFunction\(embedder=…\)"):
        client.get_collection("notes").query(query_texts=["the cat"], n_results=1)
