"""A reranker behind the rerank routes scores as the library does, alone and in a crowd, and does nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from tiny_rerank import DOCUMENTS, QUERIES, write_cross, write_decoder

import weft
from weft.errors import InputError
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.serve.models.outline import outline_of
from weft.serve.settings import read_toml

CROSSES = {"cross": "bert", "plain": "bert-identity"}  # one through a sigmoid, one that gives logits


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rerank")
    reader = write_decoder(folder / "Qwen3-Reranker-tiny")
    crosses = {name: write_cross(folder / name, kind) for name, kind in CROSSES.items()}
    return {"bert": model_files["bert"], **crosses, "reader": reader}


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
    assert refused.status_code == 400 and "the query with text 0 has" in refused.text
    assert "the model takes 512; shorten it or give truncate: true" in refused.text
    assert client.post("/rerank", json={**body, "truncate": True}).status_code == 200
    long = {"model": "cross", "query": "cat", "documents": body["texts"], "truncate": True}
    assert client.post("/v1/rerank", json=long).json()["usage"]["truncated_tokens"] > 0


def test_a_reranker_is_asked_for_nothing_else(client):
    chat = {"model": "cross", "messages": [{"role": "user", "content": "hello"}]}
    for path, body in (("/v1/embeddings", {"model": "cross", "input": "a"}), ("/v1/chat/completions", chat)):
        answer = client.post(path, json=body)
        assert answer.status_code == 400 and "scores documents" in answer.text
    kinds = {row["id"]: row["kind"] for row in client.get("/v1/models").json()["data"]}
    assert kinds == {"bert": "embed", "cross": "rerank", "plain": "rerank", "reader": "rerank"}


def scores_of(answer):
    """The scores of TEI's answer, in the order of the texts."""
    assert answer.status_code == 200, answer.text
    return [row["score"] for row in sorted(answer.json(), key=lambda row: row["index"])]


@pytest.mark.parametrize("name", CROSSES)
def test_raw_scores_are_logits_and_others_go_through_a_sigmoid(client, files, name):
    body = {"model": name, "query": QUERIES[0], "texts": DOCUMENTS}
    logits = np.array(weft.Reranker(str(files["plain"])).scores(QUERIES[0], DOCUMENTS), np.float64)
    sigmoid = 1 / (1 + np.exp(-logits))
    assert scores_of(client.post("/rerank", json={**body, "raw_scores": True})) == pytest.approx(logits)
    assert scores_of(client.post("/rerank", json={**body, "raw_scores": False})) == pytest.approx(sigmoid)
    own = sigmoid if name == "cross" else logits
    assert scores_of(client.post("/rerank", json=body)) == pytest.approx(own)


def test_raw_and_other_scores_share_steps(client):
    bodies = [{"model": "cross", "query": "cat", "texts": DOCUMENTS, "raw_scores": raw} for raw in (True, False, None)]
    alone = [scores_of(client.post("/rerank", json=body)) for body in bodies]
    with ThreadPoolExecutor(6) as threads:
        crowd = list(threads.map(lambda body: scores_of(client.post("/rerank", json=body)), bodies * 4))
    assert crowd == alone * 4 and alone[0] != alone[1] == alone[2]


@pytest.mark.parametrize("name", ["reader", "bert"])
def test_only_a_classifier_has_raw_scores(client, name):
    body = {"model": name, "query": "cat", "texts": DOCUMENTS[:2]}
    refused = client.post("/rerank", json={**body, "raw_scores": True})
    assert refused.status_code == 400 and "raw_scores" in refused.json()["error"]
    assert client.post("/rerank", json={**body, "raw_scores": False}).json() == client.post("/rerank", json=body).json()


def test_the_library_gives_logits_and_either_activation(files):
    cross, reader = (weft.Reranker(str(files[name])) for name in ("cross", "reader"))
    pairs = cross.token_pairs([(QUERIES[0], text) for text in DOCUMENTS])
    raw = cross.raw_scores(pairs)
    assert np.array_equal(cross.activated(raw, "identity"), raw)
    assert np.array_equal(cross.activated(raw), cross.score_tokens(pairs))
    assert np.array_equal(weft.Reranker(str(files["plain"])).activated(raw, "sigmoid"), cross.score_tokens(pairs))
    with pytest.raises(InputError, match="softmax"):
        cross.activated(raw, "softmax")
    with pytest.raises(InputError, match="activation can only be set for a cross-encoder"):
        reader.activated(raw, "identity")


@pytest.mark.parametrize("name", ["cross", "reader", "bert"])
def test_documents_are_cut_to_the_tokens_that_are_asked_for(client, name):
    body = {"model": name, "query": "cat"}
    long, short = "the quick brown fox jumps over the lazy dog", "the quick brown"
    whole = client.post("/v1/rerank", json={**body, "documents": [short, "a"]}).json()
    asked = {**body, "documents": [long, "a"], "return_documents": True}
    plain = {"model": name, "inputs": [long, short], "add_special_tokens": False}
    counts = [len(row) for row in client.post("/tokenize", json=plain).json()]
    cut = client.post("/v1/rerank", json={**asked, "max_tokens_per_doc": counts[1]}).json()
    assert [row["relevance_score"] for row in cut["results"]] == [row["relevance_score"] for row in whole["results"]]
    assert cut["usage"]["truncated_tokens"] == counts[0] - counts[1]
    assert long in [row["document"]["text"] for row in cut["results"]]
    enough = client.post("/v1/rerank", json={**asked, "max_tokens_per_doc": 1000}).json()
    assert "truncated_tokens" not in enough["usage"]
    assert client.post("/v1/rerank", json={**asked, "max_tokens_per_doc": 0}).status_code == 400


def test_the_end_of_a_document_is_kept_where_that_is_asked_for(client):
    body = {"model": "cross", "query": "cat", "truncate": True, "truncation_direction": "Left"}
    tokens = client.post("/tokenize", json={"model": "cross", "inputs": "dog", "add_special_tokens": False}).json()[0]
    last = client.post("/rerank", json={**body, "texts": ["dog"]})
    long = client.post("/rerank", json={**body, "texts": ["é the quick dog"], "max_tokens_per_doc": len(tokens)})
    assert scores_of(long) == scores_of(last) and int(long.headers["x-truncated-tokens"]) >= 3


@pytest.mark.parametrize("name", ["cross", "bert"])
def test_the_fields_of_one_body_are_honoured_in_the_other(client, name):
    body, texts = {"model": name, "query": QUERIES[0], "top_n": 2}, DOCUMENTS[:3]
    tei = client.post("/rerank", json={**body, "texts": texts, "return_documents": True})
    jina = client.post("/v1/rerank", json={**body, "documents": texts, "return_text": True}).json()
    assert [row["index"] for row in tei.json()] == [row["index"] for row in jina["results"]]
    assert [row["text"] for row in tei.json()] == [row["document"]["text"] for row in jina["results"]]
    assert len(tei.json()) == 2 and int(tei.headers["x-compute-tokens"]) == jina["usage"]["total_tokens"]


def test_info_of_a_reranker_is_tei_s(client, serve, files):
    found = client.get("/info?model=cross").json()
    assert found["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}
    assert (found["model_id"], found["max_input_length"], found["method"]) == ("cross", 512, "classifier")
    assert client.get("/info?model=reader").json()["model_type"]["reranker"]["id2label"] == {}
    assert "embedding" in client.get("/info").json()["model_type"]
    alone = serve(models=(ModelSpec("cross", str(files["cross"]), {"threads": 1}),))
    assert httpx.get(f"{alone.url}/info", timeout=30).json()["model_id"] == "cross"


def test_info_of_a_generator_says_what_it_is(server):
    answer = httpx.get(f"{server.url}/info?model=tiny", timeout=30)
    assert answer.status_code == 400 and "generates text" in answer.json()["error"]


def test_a_label_and_an_instruction_come_from_the_server_s_file(serve, files, tmp_path):
    three = write_cross(tmp_path / "three", "bert-three")
    file = tmp_path / "models.toml"
    file.write_text(
        f'[models.three]\nsource = "{three}"\nlabel = "for"\n'
        f'[models.reader]\nsource = "{files["reader"]}"\ninstruction = "Find cats"\n'
    )
    running = serve(models=read_toml(file)["models"])
    library = {
        "three": weft.Reranker(str(three), label="for"),
        "reader": weft.Reranker(str(files["reader"]), instruction="Find cats"),
    }
    for name, reranker in library.items():
        body = {"model": name, "query": "cat", "texts": DOCUMENTS}
        found = scores_of(httpx.post(f"{running.url}/rerank", json=body, timeout=30))
        assert found == pytest.approx(reranker.scores("cat", DOCUMENTS).tolist())


def test_a_label_that_is_missing_or_of_no_use_is_told_with_its_place(files, tmp_path):
    three = write_cross(tmp_path / "three", "bert-three")
    with pytest.raises(
        InputError, match=r"\[models.three in the --config file\] label must be one of .*against, for, neither"
    ):
        outline_of(ModelSpec("three", str(three), {"label": "perhaps"}))
    assert outline_of(ModelSpec("three", str(three))).kind == "classify"
    for name, option in (("reader", "label"), ("cross", "instruction"), ("bert", "label"), ("cross", "dimensions")):
        with pytest.raises(InputError, match=option):
            outline_of(ModelSpec(name, str(files[name]), {option: "x"}))
