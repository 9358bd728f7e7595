"""LlamaIndex takes the class as its own kind, in every form of call and in an index."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import weft

pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed; pip install llama-index-core")
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding

from weft.integrations.llama_index import WeftEmbedding

TEXTS = ["the cat sat", "one two three", "the quick brown fox"]


def test_every_form_of_call_gives_the_librarys_vectors(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    made = WeftEmbedding(str(tiny_folder), embed_batch_size=2)
    assert isinstance(made, BaseEmbedding) and made.class_name() == "WeftEmbedding"
    documents, query = tiny_embedder.encode_document(TEXTS), tiny_embedder.encode_query("a cat")
    assert np.allclose(made.get_text_embedding_batch(TEXTS), documents)
    assert np.allclose(made.get_text_embedding(TEXTS[0]), documents[0])
    assert np.allclose(made.get_query_embedding("a cat"), query)
    assert np.allclose(asyncio.run(made.aget_query_embedding("a cat")), query)
    assert np.allclose(asyncio.run(made.aget_text_embedding_batch(TEXTS)), documents)
    assert made.to_dict()["model_name"] == str(tiny_folder)


def test_an_index_finds_what_is_near(tiny_folder: Path, tiny_embedder: weft.Embedder) -> None:
    index = VectorStoreIndex.from_documents(
        [Document(text=text) for text in TEXTS], embed_model=WeftEmbedding(str(tiny_folder))
    )
    found = index.as_retriever(similarity_top_k=3).retrieve("one two three")
    wanted = [TEXTS[r.index] for r in tiny_embedder.rank("one two three", TEXTS)]
    assert [node.text for node in found] == wanted
