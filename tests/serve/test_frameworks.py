"""LangChain's and LlamaIndex's own classes, for OpenAI's API and for TEI's, run against a live server."""

import asyncio

import numpy as np
import pytest

from weft.embed import Embedder

TEXTS = ["the cat sat", "a dog"]


@pytest.fixture(scope="module")
def vectors(model_files):
    return Embedder(str(model_files["bert"]), threads=1).encode(TEXTS)


def test_langchain_chats_and_embeds_through_openai(server, vectors):
    langchain = pytest.importorskip("langchain_openai")
    pydantic = pytest.importorskip("pydantic")
    same = {"base_url": f"{server.url}/v1", "api_key": "none"}
    made = langchain.OpenAIEmbeddings(model="bert", check_embedding_ctx_length=False, **same)
    assert np.array_equal(np.array(made.embed_documents(TEXTS), np.float32), vectors)
    assert np.array_equal(np.array(made.embed_query(TEXTS[1]), np.float32), vectors[1])
    chat = langchain.ChatOpenAI(model="tiny", max_tokens=12, temperature=0, **same)
    assert "".join(part.text for part in chat.stream("hi")) == chat.invoke("hi").text
    Colour = pydantic.create_model("Colour", red=(bool, ...))
    found = langchain.ChatOpenAI(model="tiny", max_tokens=100, **same).with_structured_output(Colour).invoke("hi")
    assert isinstance(found.red, bool)


def test_langchain_embeds_through_tei(server, vectors):
    """Its class for endpoints takes no address any more, so it is given the hub's client of one."""
    langchain = pytest.importorskip("langchain_huggingface")
    hub = pytest.importorskip("huggingface_hub")
    made = langchain.HuggingFaceEndpointEmbeddings(model="bert", huggingfacehub_api_token="none")
    made.client = hub.InferenceClient(model=server.url)
    made.async_client = hub.AsyncInferenceClient(model=server.url)
    assert np.array_equal(np.array(made.embed_documents(TEXTS), np.float32), vectors)
    assert np.array_equal(np.array(asyncio.run(made.aembed_query(TEXTS[1])), np.float32), vectors[1])


def test_llama_index_embeds_through_openai(server, vectors):
    module = pytest.importorskip("llama_index.embeddings.openai_like")
    made = module.OpenAILikeEmbedding(model_name="bert", api_base=f"{server.url}/v1", api_key="none")
    assert np.array_equal(np.array(made.get_text_embedding_batch(TEXTS), np.float32), vectors)


def test_llama_index_embeds_through_tei(server, vectors):
    module = pytest.importorskip("llama_index.embeddings.text_embeddings_inference")
    made = module.TextEmbeddingsInference(model_name="bert", base_url=server.url)
    assert np.array_equal(np.array(made.get_text_embedding_batch(TEXTS), np.float32), vectors)
    assert np.array_equal(np.array(made.get_text_embedding(TEXTS[0]), np.float32), vectors[0])
