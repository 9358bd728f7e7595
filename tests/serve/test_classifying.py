"""Classifiers behind /predict and /v1/classify, pairs behind /v1/score, vectors of tokens: as in the library."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import numpy as np
import pytest
from tiny_rerank import DOCUMENTS, PAIRS, write_cross

import weft
from weft.rerank import TextClassifier
from weft.serve import BackgroundServer, ModelSpec, Settings

TEXTS = ["the cat sat", "a dog", "one two three"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model_files: dict[str, Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("classify")
    three = write_cross(folder / "three", "bert-three")
    several = write_cross(folder / "several", "bert-three")
    config = json.loads((several / "config.json").read_text())
    (several / "config.json").write_text(json.dumps({**config, "problem_type": "multi_label_classification"}))
    cross = write_cross(folder / "cross", "bert")
    return {
        "three": three,
        "several": several,
        "cross": cross,
        "bert": model_files["bert"],
        "tiny": model_files["tiny"],
    }


@pytest.fixture(scope="module")
def client(files: dict[str, Path]):
    specs = tuple(ModelSpec(name, str(path), {"threads": 1}) for name, path in files.items())
    with BackgroundServer(Settings(models=specs, port=0)) as server, httpx.Client(base_url=server.url) as made:
        made.timeout = httpx.Timeout(60)
        yield made


def ordered(scores: dict[str, float]) -> list[dict[str, object]]:
    rows = sorted(scores.items(), key=lambda row: -row[1])
    return [{"label": label, "score": score} for label, score in rows]


def test_the_kinds_of_models_are_listed(client):
    kinds = {card["id"]: card["kind"] for card in client.get("/v1/models").json()["data"]}
    assert kinds == {"three": "classify", "several": "classify", "cross": "rerank", "bert": "embed", "tiny": "generate"}
    found = client.get("/info?model=three").json()["model_type"]["classifier"]
    assert found["id2label"] == {"0": "against", "1": "for", "2": "neither"} and found["label2id"]["for"] == 1
    assert client.post("/api/show", json={"model": "three"}).json()["capabilities"] == ["classify"]


def test_predict_is_tei_s(client, files):
    wanted = TextClassifier(str(files["three"])).classify([TEXTS[0], PAIRS[0]])
    one = client.post("/predict", json={"inputs": TEXTS[0]})
    assert one.json() == ordered(wanted[0].scores) and int(one.headers["x-compute-tokens"]) > 0
    assert client.post("/predict", json={"inputs": [TEXTS[0]], "model": "three"}).json() == one.json()
    assert client.post("/predict", json={"inputs": list(PAIRS[0])}).json() == ordered(wanted[1].scores)
    batch = client.post("/predict", json={"inputs": [[TEXTS[0]], list(PAIRS[0])]}).json()
    assert batch == [ordered(row.scores) for row in wanted]
    raw = client.post("/predict", json={"inputs": TEXTS[0], "raw_scores": True}).json()
    logits = {row["label"]: row["score"] for row in raw}
    total = sum(np.exp(list(logits.values())))
    assert {label: pytest.approx(np.exp(x) / total) for label, x in logits.items()} == wanted[0].scores
    refused = client.post("/predict", json={"inputs": TEXTS})
    assert refused.status_code == 400 and "write [[" in refused.json()["error"]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classify_is_vllm_s(client, files, path):
    wanted = TextClassifier(str(files["three"])).classify(TEXTS)
    found = client.post(path, json={"model": "three", "input": TEXTS}).json()
    assert found["object"] == "list" and found["model"] == "three" and found["usage"]["total_tokens"] > 0
    for index, (row, one) in enumerate(zip(found["data"], wanted)):
        assert row == {"index": index, "label": one.label, "probs": list(one.scores.values()), "num_classes": 3}
    several = client.post(path, json={"model": "several", "input": TEXTS[0]}).json()["data"][0]["probs"]
    logits = client.post(path, json={"model": "three", "input": TEXTS[0], "use_activation": False}).json()
    sigmoid = 1 / (1 + np.exp(-np.array(logits["data"][0]["probs"])))
    assert several == pytest.approx(sigmoid.tolist())


def test_a_cross_encoder_of_one_label_classifies_too(client):
    pair = PAIRS[1]
    (row,) = client.post("/predict", json={"model": "cross", "inputs": list(pair)}).json()
    (ranked,) = client.post("/rerank", json={"model": "cross", "query": pair[0], "texts": [pair[1]]}).json()
    assert row == {"label": "LABEL_0", "score": ranked["score"]}
    data = client.post("/v1/classify", json={"model": "cross", "input": "a"}).json()["data"]
    assert data[0]["num_classes"] == 1 and 0 < data[0]["probs"][0] < 1


def test_a_crowd_has_the_labels_of_one_alone(client):
    bodies = [{"model": name, "inputs": text} for text in [*TEXTS, *DOCUMENTS] for name in ("three", "several")]
    alone = [client.post("/predict", json=body).json() for body in bodies]
    with ThreadPoolExecutor(6) as threads:
        crowd = list(threads.map(lambda body: client.post("/predict", json=body).json(), bodies * 2))
    assert crowd == alone * 2


def test_what_is_too_long_or_of_another_kind_is_refused(client):
    long = "the cat sat " * 400
    refused = client.post("/v1/classify", json={"model": "three", "input": ["a", long]})
    assert refused.status_code == 400 and "input: text 1 has" in refused.text and "truncate: true" in refused.text
    cut = client.post("/v1/classify", json={"model": "three", "input": long, "truncate_prompt_tokens": -1}).json()
    assert cut["usage"]["truncated_tokens"] > 0
    for model in ("bert", "tiny"):
        answer = client.post("/v1/classify", json={"model": model, "input": "a"})
        assert answer.status_code == 400 and "cannot classify" in answer.text
    answer = client.post("/v1/rerank", json={"model": "three", "query": "a", "documents": ["b"]})
    assert answer.status_code == 400 and "classifies texts and cannot rerank" in answer.text


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_pairs_are_scored_by_a_cross_encoder(client, files, path):
    reranker = weft.Reranker(str(files["cross"]))
    queries, documents = [list(side) for side in zip(*PAIRS)]
    found = client.post(path, json={"model": "cross", "text_1": queries, "text_2": documents}).json()
    assert found["object"] == "list" and [row["index"] for row in found["data"]] == list(range(len(PAIRS)))
    assert [row["score"] for row in found["data"]] == reranker.scores(PAIRS).tolist()
    one = client.post(path, json={"text_1": queries[0], "text_2": DOCUMENTS}).json()["data"]  # the first reranker
    assert [row["score"] for row in one] == reranker.scores(queries[0], DOCUMENTS).tolist()
    same = client.post(path, json={"model": "cross", "queries": queries[0], "documents": DOCUMENTS}).json()["data"]
    assert same == one
    single = client.post(path, json={"model": "cross", "text_1": queries[0], "text_2": DOCUMENTS[0]}).json()
    assert [row["object"] for row in single["data"]] == ["score"]
    raw = client.post(path, json={"text_1": "a", "text_2": "b", "activation": False, "model": "cross"}).json()
    sigmoid = 1 / (1 + np.exp(-raw["data"][0]["score"]))
    assert sigmoid == pytest.approx(reranker.scores([("a", "b")])[0])


def test_pairs_are_scored_by_the_cosine_of_an_embedding_model(client, files):
    vectors = weft.Embedder(str(files["bert"])).encode([*TEXTS, "more"])
    found = client.post("/v1/score", json={"model": "bert", "text_1": TEXTS, "text_2": [*TEXTS[1:], "more"]}).json()
    cosines = [float(a @ b) for a, b in pairwise(vectors)]
    assert [row["score"] for row in found["data"]] == pytest.approx(cosines, abs=1e-6)


@pytest.mark.parametrize(
    "body, named",
    [
        ({"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
        ({"text_1": "a"}, "text_2"),
        ({"text_1": "a", "queries": "b", "text_2": "c"}, "text_1"),
        ({"text_1": "a", "text_2": "b", "model": "tiny"}, "model"),
        ({"text_1": "a", "text_2": "b", "model": "three"}, "model"),
    ],
)
def test_pairs_that_do_not_match_are_refused(client, body, named):
    found = client.post("/v1/score", json={"model": "cross", **body})
    assert found.status_code == 400 and found.json()["error"]["param"] == named


def test_a_vector_of_every_token(client, files):
    embedder = weft.Embedder(str(files["bert"]))
    ids = embedder.token_ids(TEXTS).ids
    found = client.post("/embed_all", json={"inputs": TEXTS})
    assert int(found.headers["x-compute-tokens"]) == sum(map(len, ids))
    for row, one in zip(found.json(), ids):
        assert np.array_equal(np.array(row, np.float32), embedder.hidden_states(one.tolist()))
    one = client.post("/embed_all", json={"inputs": TEXTS[0]}).json()
    assert one == found.json()[:1] == client.post("/embed_all", json={"inputs": [ids[0].tolist()]}).json()
    long = client.post("/embed_all", json={"inputs": "the cat " * 100, "truncate": True})
    assert len(long.json()[0]) == 48 and long.headers["x-truncated-tokens"] == "254"
    assert client.post("/embed_all", json={"inputs": "the cat " * 100}).status_code == 400
    assert client.post("/embed_all", json={"inputs": "a", "model": "three"}).status_code == 400
