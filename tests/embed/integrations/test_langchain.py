"""LangChain's own checks of an embedding class pass."""

import asyncio
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import weft

pytest.importorskip("langchain_tests", reason="LangChain is not installed; pip install langchain-core langchain-tests")
pytest.importorskip("pytest_asyncio", reason="pytest-asyncio is not installed, which LangChain's checks need")
from langchain_core.embeddings import Embeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from langchain_tests.unit_tests import EmbeddingsUnitTests

from weft.integrations.langchain import WeftEmbeddings


class Ours:
    folder: str = ""

    @pytest.fixture(autouse=True)
    def _model(self, tiny_folder: Path) -> None:
        type(self).folder = str(tiny_folder)

    @property
    def embeddings_class(self) -> type[Embeddings]:
        return WeftEmbeddings

    @property
    def embedding_model_params(self) -> dict:
        return {"model": self.folder, "threads": 1}


class TestUnit(Ours, EmbeddingsUnitTests):
    """What LangChain asks of every class."""


@pytest.mark.asyncio
class TestIntegration(Ours, EmbeddingsIntegrationTests):
    """What LangChain asks of every model."""


def test_vectors_are_the_librarys_and_long_texts_are_embedded_whole(tiny_folder: Path) -> None:
    made, library = WeftEmbeddings(str(tiny_folder)), weft.Embedder(str(tiny_folder), truncate="chunk")
    assert np.allclose(made.embed_query("a cat"), library.encode_query("a cat"))
    texts = ["the cat", "one two " * 90]
    assert np.allclose(made.embed_documents(texts), library.encode_document(texts))
    assert made.embed_documents([]) == []
    with pytest.raises(weft.WeftError, match="give a model"):
        WeftEmbeddings()
    assert WeftEmbeddings(embedder=library).embed_query("a cat") == made.embed_query("a cat")


def test_a_query_is_one_string_and_documents_are_several(tiny_embedder: weft.Embedder) -> None:
    made = WeftEmbeddings(embedder=tiny_embedder)
    for call, given, word in (
        (made.embed_query, None, "a query is a string: got NoneType"),
        (made.embed_query, ["a"], "a query is a string: got list"),
        (made.embed_documents, "abc", "a list of strings: got one string"),
        (made.embed_documents, None, "None"),
        (made.embed_documents, ["a", 5], "int"),
    ):
        with pytest.raises(weft.errors.InputError, match=word):
            call(given)
    with pytest.raises(weft.errors.InputError, match="got one string"):
        asyncio.run(made.aembed_documents("abc"))  # type: ignore[arg-type]


def test_options_and_embedders_that_are_none_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(weft.WeftError, match="no option is called 'normalize'; there are pooling, normalise"):
        WeftEmbeddings(str(tiny_folder), normalize=True)
    with pytest.raises(weft.WeftError, match="embedder is str"):
        WeftEmbeddings(embedder="all-MiniLM-L6-v2")  # type: ignore[arg-type]


def test_another_process_gets_the_same_model_or_an_error(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_folder.parent)
    made = WeftEmbeddings(tiny_folder.name, compute="int8", threads=1)
    kept = pickle.dumps(made)
    monkeypatch.chdir("/")
    again = pickle.loads(kept)
    assert again.embedder.info["compute"] == "int8" and again.embed_query("a cat") == made.embed_query("a cat")
    for copied in (copy.copy(made), copy.deepcopy(made)):
        assert copied is not made and copied.embedder is made.embedder
    with pytest.raises(weft.errors.FingerprintError, match="embed the documents again"):
        again.__setstate__({**made.__getstate__(), "options": {}})
    given = WeftEmbeddings(embedder=made.embedder)
    assert copy.deepcopy(given).embedder is made.embedder
    with pytest.raises(weft.errors.InputError, match="give a model and its options"):
        pickle.dumps(given)
