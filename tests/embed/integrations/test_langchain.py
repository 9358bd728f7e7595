"""LangChain's own checks of an embedding class pass."""

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
