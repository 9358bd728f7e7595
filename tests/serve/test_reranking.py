"""A reranker behind the rerank routes scores as the library does, alone and in a crowd, and does nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tiny_rerank import DOCUMENTS, QUERIES, write_cross, write_decoder

import weft
from weft.serve import BackgroundServer, ModelSpec, Settings


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rerank")
    reader = write_decoder(folder / "Qwen3-Reranker-tiny")
    return {"bert": model_files["bert"], "cross": write_cross(folder / "cross", "bert"), "reader": reader}


@pytest.fixture(scope="module")
def client(files: dict[str, Path]):
    specs = tuple(ModelSpec(name, str(path), {"threads": 1}) for name, path in files.items())
    with BackgroundServer(Settings(models=specs, port=0)) as server, httpx.Client(base_url=server.url) as made:
        made.timeout = httpx.Timeout(60)
        yield made


@pytest.mark.parametrize("name", ["cross", "reader"])
def test_scores_are_the_library_s(client, files, name):
    best = weft.Reranker(str(files[name])).rank(QUERIES[0], DOCUMENTS)
    body = {"model": name, "query": QUERIES[0], "documents": DOCUMENTS, "top_n": 3}
    found = client.post("/v1/rerank", json=body).json()
    assert [row["index"] for row in found["results"]] == [row.index for row in best[:3]]
    assert [row["relevance_score"] for row in found["results"]] == pytest.approx([row.score for row in best[:3]])
    tokens = weft.Reranker(str(files[name])).token_pairs([(QUERIES[0], text) for text in DOCUMENTS]).tokens
    assert found["usage"]["total_tokens"] == sum(map(len, tokens))


def test_a_reranker_goes_before_an_embedder_where_none_is_named(client, files):
    found = client.post("/rerank", json={"query": QUERIES[0], "texts": DOCUMENTS}).json()
    best = weft.Reranker(str(files["cross"])).rank(QUERIES[0], DOCUMENTS)
    assert [(row["index"], row["score"]) for row in found] == [(row.index, pytest.approx(row.score)) for row in best]
    near = client.post("/rerank", json={"query": QUERIES[0], "texts": DOCUMENTS[:3], "model": "bert"})
    assert near.status_code == 200 and near.json() != found


def test_a_crowd_has_the_scores_of_one_alone(client):
    bodies = [{"model": "cross", "query": text, "documents": DOCUMENTS} for text in [*QUERIES, *DOCUMENTS] * 3]
    alone = [client.post("/v1/rerank", json=body).json()["results"] for body in bodies[:6]]
    with ThreadPoolExecutor(6) as threads:
        crowd = list(threads.map(lambda body: client.post("/v1/rerank", json=body).json()["results"], bodies))
    assert crowd == alone * 3


def test_a_pair_that_is_too_long_is_an_error_or_cut_as_asked(client):
    body = {"model": "cross", "query": "cat", "texts": ["the cat sat " * 400]}
    refused = client.post("/rerank", json=body)
    assert refused.status_code == 400 and "the model takes 512" in refused.text
    assert client.post("/rerank", json={**body, "truncate": True}).status_code == 200
    long = {"model": "cross", "query": "cat", "documents": body["texts"], "truncate": True}
    assert client.post("/v1/rerank", json=long).json()["usage"]["truncated_tokens"] > 0


def test_a_reranker_is_asked_for_nothing_else(client):
    chat = {"model": "cross", "messages": [{"role": "user", "content": "hello"}]}
    for path, body in (("/v1/embeddings", {"model": "cross", "input": "a"}), ("/v1/chat/completions", chat)):
        answer = client.post(path, json=body)
        assert answer.status_code == 400 and "scores documents" in answer.text
    kinds = {row["id"]: row["kind"] for row in client.get("/v1/models").json()["data"]}
    assert kinds == {"bert": "embed", "cross": "rerank", "reader": "rerank"}
