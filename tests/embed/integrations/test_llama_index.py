"""LlamaIndex takes the class as its own kind, in every form of call and in an index."""

import asyncio
import copy
import pickle
from pathlib import Path

import numpy as np
import pytest

import weft

pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed; pip install llama-index-core")
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.schema import TextNode

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


def test_keywords_are_the_embedders_or_llama_indexs_and_no_others(tiny_folder: Path) -> None:
    made = WeftEmbedding(str(tiny_folder), compute="int8", truncate="head", embed_batch_size=7, options={"threads": 1})
    assert made._embedder.info["compute"] == "int8" and made._embedder.truncate == "head"
    assert made.options == {"threads": 1, "compute": "int8", "truncate": "head"} and made.embed_batch_size == 7
    with pytest.raises(weft.WeftError, match="there is no option 'nonsense'; the options are pooling"):
        WeftEmbedding(str(tiny_folder), nonsense=3)


def test_another_process_gets_the_same_model_or_an_error(tiny_folder: Path) -> None:
    made = WeftEmbedding(str(tiny_folder), compute="int8", truncate="head", threads=1)
    for again in (pickle.loads(pickle.dumps(made)), WeftEmbedding.from_dict(made.to_dict())):
        assert again._embedder.info["compute"] == "int8" and again._embedder.truncate == "head"
        assert again.fingerprint == made.fingerprint and again.get_query_embedding("a") == made.get_query_embedding("a")
    with pytest.raises(weft.errors.FingerprintError, match="embed the documents again"):
        WeftEmbedding.from_dict({**made.to_dict(), "options": {}})
    state = made.__getstate__()
    state["__dict__"]["options"] = {}
    with pytest.raises(weft.errors.FingerprintError):
        made.__setstate__(state)  # LlamaIndex's own would go on with what it has
    given = WeftEmbedding(embedder=made._embedder)
    with pytest.raises(weft.WeftError, match="give model_name and its options"):
        pickle.dumps(given)
    with pytest.raises(weft.WeftError, match="cannot be pickled"):
        pickle.dumps(WeftEmbedding(str(tiny_folder), cache=weft.embed.MemoryCache()))


def test_copies_share_the_model(tiny_folder: Path) -> None:
    made = WeftEmbedding(str(tiny_folder), threads=1, cache=weft.embed.MemoryCache())
    for copied in (made.model_copy(deep=True), copy.deepcopy(made), copy.copy(made)):
        assert copied is not made and copied._embedder is made._embedder and copied.options == made.options
        assert copied.get_query_embedding("a cat") == made.get_query_embedding("a cat")
    assert made.model_copy(deep=True).options is not made.options


def test_a_pipelines_cache_tells_models_apart(tiny_folder: Path) -> None:
    pipeline = IngestionPipeline(transformations=[])
    found = []
    for compute in ("f32", "int8"):
        embedder = weft.Embedder(str(tiny_folder), compute=compute, threads=1)
        pipeline.transformations = [WeftEmbedding(embedder=embedder)]
        found.append(pipeline.run(nodes=[TextNode(text=TEXTS[0], id_="one")])[0].embedding)
        assert found[-1] == embedder.encode_document(TEXTS[0]).tolist()
    assert found[0] != found[1]
