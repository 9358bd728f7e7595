"""TEI's and llama-server's routes, reranking in three bodies, adapters by name, and the document of all routes."""

import asyncio
import json
import math
import re
import shutil
from base64 import b64encode
from hashlib import sha256

import httpx
import numpy as np
import pytest
import tiny_adapters
from tiny_chat import CONFIG

from weft.embed import Embedder
from weft.serve import ModelSpec
from weft.serve.http.faults import Fault
from weft.serve.models.pool import Entry

TEXTS = ["the cat sat", "a dog", "one two three"]


@pytest.fixture(scope="module")
def embedder(model_files):
    return Embedder(str(model_files["bert"]), threads=1)


def test_tei_embeds_texts_and_ids(client, embedder):
    found = client.post("/embed", json={"inputs": TEXTS})
    assert np.array_equal(np.array(found.json(), np.float32), embedder.encode(TEXTS))
    assert int(found.headers["x-compute-tokens"]) > 6
    assert found.headers["weft-fingerprint"] == embedder.info["fingerprint"]
    cut = client.post("/embed", json={"inputs": TEXTS, "dimensions": 5})
    assert cut.status_code == 400 and "not trained for shorter vectors" in cut.json()["error"]
    assert len(client.post("/embed", json={"inputs": "a", "normalize": True}).json()) == 1
    assert len(client.post("/embed", json={"inputs": [[3, 4], [5]]}).json()) == 2
    query = client.post("/embed", json={"inputs": "a", "prompt_name": "query"}).json()[0]
    assert np.array_equal(np.array(query, np.float32), embedder.encode_query("a"))
    for bad, named in (({"prompt_name": "none"}, "prompt_name"), ({"normalize": False}, "normalize")):
        answer = client.post("/embed", json={"inputs": "a", **bad})
        assert answer.status_code == 400 and named in answer.json()["error"] and "error_type" in answer.json()


def test_tei_cuts_only_when_asked_and_says_so(client, embedder):
    long = "the cat " * 100
    assert client.post("/embed", json={"inputs": long}).status_code == 400
    for direction, kept in ((None, "head"), ("Left", "tail")):
        body = {"inputs": long, "truncate": True, "truncation_direction": direction}
        found = client.post("/embed", json=body)
        assert found.headers["x-truncated-tokens"] == "254"
        assert np.array_equal(np.array(found.json()[0], np.float32), embedder.encode(long, truncate=kept))


def test_tei_tells_how_vectors_are_made(client):
    found = client.get("/info").json()
    assert found["model_id"] == "bert" and found["max_input_length"] == 48 and found["model_type"]["embedding"]
    assert found["prompts"] == {"query": "query: ", "document": "passage: the "} and found["auto_truncate"] is False


def test_similarity_is_the_models_own(client, embedder):
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}}
    vectors = embedder.encode(TEXTS)
    assert client.post("/similarity", json=body).json() == pytest.approx(
        embedder.similarity(vectors[:1], vectors[1:])[0].tolist()
    )


def test_reranking_in_the_three_bodies(client, embedder):
    wanted = embedder.similarity(embedder.encode_query(["cat"]), embedder.encode_document(TEXTS))[0]
    order = [int(i) for i in np.argsort(-wanted)]
    tei = client.post("/rerank", json={"query": "cat", "texts": TEXTS, "return_text": True}).json()
    assert [entry["index"] for entry in tei] == order and tei[0]["text"] == TEXTS[order[0]]
    assert [entry["score"] for entry in tei] == pytest.approx([float(wanted[i]) for i in order])
    jina = {"query": "cat", "documents": [*TEXTS[:2], {"text": TEXTS[2]}], "top_n": 2, "return_documents": True}
    for path in ("/v1/rerank", "/v2/rerank", "/rerank"):
        found = client.post(path, json={"model": "bert", **jina}).json()
        assert [entry["index"] for entry in found["results"]] == order[:2]
        assert found["results"][0]["document"]["text"] == TEXTS[order[0]] and found["usage"]["total_tokens"] > 0
    assert client.post("/rerank", json={"query": "a"}).status_code == 400
    assert client.post("/v1/rerank", json={"query": "a", "documents": TEXTS, "model": "tiny"}).status_code == 400


def test_texts_to_tokens_and_back(client):
    tokens = client.post("/tokenize", json={"content": "héllo"}).json()["tokens"]
    assert client.post("/detokenize", json={"tokens": tokens}).json() == {"content": "héllo"}
    pieces = client.post("/tokenize", json={"content": "hé", "with_pieces": True}).json()["tokens"]
    assert pieces[0] == {"id": 104, "piece": "h"} and pieces[1]["piece"] == [0xC3]
    tei = client.post("/tokenize", json={"inputs": "a cat"}).json()[0]
    assert [token["text"] for token in tei] == ["[CLS]", "a", "c", "at", "[SEP]"]
    assert [token["special"] for token in tei] == [True, False, False, False, True] and tei[3]["start"] == 3
    assert client.post("/detokenize", json={"tokens": [258]}).status_code == 400
    assert client.post("/tokenize", json={}).status_code == 400


def test_a_template_is_shown_as_it_would_be_read(client):
    messages = [{"role": "user", "content": "hi"}]
    found = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert found == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert client.get("/props").json()["default_generation_settings"]["n_ctx"] == 4096


@pytest.fixture
def with_adapters(serve, specs, tmp_path):
    """A server of one generator that may load two adapters; a third folder lies outside."""
    for name, seed in (("one", 1), ("two", 2)):
        tiny_adapters.write_adapter(tmp_path / "loras" / name, CONFIG, seed=seed)
    outside = tiny_adapters.write_adapter(tmp_path / "outside", CONFIG, seed=3)
    (tmp_path / "loras" / "link").symlink_to(outside)
    return serve(models=specs[:1], lora_dir=tmp_path / "loras")


def test_adapters_are_loaded_by_name_chosen_by_model_replaced_and_let_go(with_adapters):
    with httpx.Client(base_url=with_adapters.url, timeout=30) as client:

        def text(model: str) -> str:
            body = {"model": model, "prompt": "abc", "max_tokens": 12, "temperature": 0}
            return client.post("/v1/completions", json=body).json()["choices"][0]["text"]

        base = text("tiny")
        made = client.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": "one"}).json()
        assert made["status"] == "success" and made["model"] == "tiny"
        first = text("mine")
        assert first != base and text("tiny") == base
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert cards["mine"]["parent"] == "tiny"
        assert client.post("/v1/load_lora_adapter", json={"lora_name": "mine", "lora_path": "two"}).status_code == 400
        wrong = {"lora_name": "mine", "lora_path": "two", "load_inplace": True, "expected_generation": 99}
        assert client.post("/v1/load_lora_adapter", json=wrong).status_code == 409
        right = {**wrong, "expected_generation": made["adapter_generation"]}
        assert (
            client.post("/v1/load_lora_adapter", json=right).json()["adapter_generation"] > made["adapter_generation"]
        )
        assert text("mine") not in (base, first)
        listed = client.get("/v1/lora_adapters").json()
        assert [entry["lora_name"] for entry in listed["adapters"]] == ["mine"] and set(listed["available"]) >= {
            "one",
            "two",
        }
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
        assert client.post("/v1/completions", json={"model": "mine", "prompt": "a"}).status_code == 404


def test_a_broken_adapter_is_a_mistake_in_the_request_and_the_log_says_why(with_adapters, caplog):
    folder = with_adapters.settings.lora_dir
    whole = (folder / "one" / "adapter_model.safetensors").read_bytes()
    for name in ("short", "unreadable", "other", "empty"):
        shutil.copytree(folder / "one", folder / name)
    (folder / "short" / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "unreadable" / "adapter_config.json").write_text("{")
    config = json.loads((folder / "other" / "adapter_config.json").read_text())
    (folder / "other" / "adapter_config.json").write_text(json.dumps({**config, "r": 3}))
    (folder / "empty" / "adapter_model.safetensors").unlink()
    reasons = {
        "short": "adapter_model.safetensors",
        "unreadable": "JSON",
        "other": "rank",
        "empty": "has no adapter_model",
    }
    with caplog.at_level("WARNING", "weft.serve"), httpx.Client(base_url=with_adapters.url, timeout=30) as client:
        for name, reason in reasons.items():
            found = client.post("/v1/load_lora_adapter", json={"lora_name": name})
            error = found.json()["error"]
            assert found.status_code == 400 and error["code"] == "adapter_not_loaded", found.text
            assert reason in error["message"] and str(folder) not in error["message"]
            (logged,) = (r for r in caplog.records if getattr(r, "adapter", "") == name)
            assert reason in logged.error
        assert client.get("/v1/lora_adapters").json()["adapters"] == []


def test_no_adapter_takes_the_name_of_a_model_nor_a_model_that_of_an_adapter(with_adapters):
    models = with_adapters.app.serving.models
    with httpx.Client(base_url=with_adapters.url, timeout=30) as client:
        for name in ("tiny", "tiny:latest"):  # Ollama's clients mean the model by either
            found = client.post("/v1/load_lora_adapter", json={"lora_name": name, "lora_path": "one"})
            assert found.status_code == 409 and found.json()["error"]["code"] == "name_taken", found.text
        assert client.post("/v1/load_lora_adapter", json={"lora_name": "one"}).status_code == 200
        entry = next(iter(models))
        for name in ("one", "one:latest"):
            with pytest.raises(Fault) as caught:
                models.add(Entry(ModelSpec(name, "x"), entry.outline))
            assert caught.value.status == 409 and list(models.entries) == ["tiny"]

    async def twice():
        folder = with_adapters.settings.lora_dir
        loads = [models.load_adapter(entry, "two", folder / "two") for _ in range(2)]
        return await asyncio.gather(*loads, return_exceptions=True)

    found = with_adapters.call(twice)
    assert sorted(getattr(one, "status", 200) for one in found) == [200, 409]


def test_models_are_described_loaded_and_unloaded_by_name(serve, model_files):
    running = serve()
    with httpx.Client(base_url=running.url, timeout=30) as client:

        def models():
            return {model["name"]: model for model in client.get("/weft/live").json()["models"]}

        found = models()
        assert {model["kind"] for model in found.values()} == {"generate", "embed"}
        tiny, bert = found["tiny"], found["bert"]
        assert not tiny["loaded"] and tiny["memory_bytes"] == 0 < tiny["bytes"]
        assert tiny["file_bytes"] == model_files["tiny"].stat().st_size and tiny["context"] == 4096
        assert (tiny["format"], tiny["quantisation"], bert["quantisation"]) == ("gguf", "F32", "F32")
        assert tiny["parameters"] == weight_count(model_files["tiny"])
        loaded = client.post("/models/load", json={"model": "tiny"}).json()["model"]
        assert loaded["loaded"] and loaded["memory_bytes"] == loaded["bytes"] and models()["tiny"] == loaded
        assert client.post("/models/unload", json={"model": "tiny"}).json()["success"]
        assert not models()["tiny"]["loaded"]
        assert client.post("/models/load", json={"model": "none"}).status_code == 404
        entry = running.app.serving.models.entries["tiny"]
        client.post("/models/load", json={"model": "tiny"})
        entry.leases += 1
        assert client.post("/models/unload", json={"model": "tiny"}).status_code == 409
        entry.leases -= 1


def weight_count(path):
    from weft.weights import open_gguf

    with open_gguf(path) as opened:
        return sum(math.prod(tensor.shape) for tensor in opened.tensors.values())


@pytest.mark.parametrize(
    "path",
    ["../outside", "/etc", "..", ".", "one/../../outside", "link", "absent", "one\x00", "C:\\x", "a/b", "%2e%2e", ""],
)
def test_no_name_of_an_adapter_leads_out_of_the_folder(with_adapters, path):
    found = httpx.post(f"{with_adapters.url}/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": path})
    assert found.status_code in (400, 404), found.text


def test_adapters_are_off_without_a_folder(client):
    assert client.post("/v1/load_lora_adapter", json={"lora_name": "x"}).status_code == 403


@pytest.mark.parametrize(
    "method, path, instead",
    [
        ("POST", "/v1/audio/transcriptions", "text"),
        ("POST", "/v1/images/generations", "text"),
        ("GET", "/v1/files", "weft embed"),
        ("DELETE", "/v1/files/file-1", "weft embed"),
        ("POST", "/v1/batches", "at the same time"),
        ("POST", "/v1/moderations", "/v1/classify"),
        ("POST", "/v1/assistants", "previous_response_id"),
        ("POST", "/v1/threads/t/runs", "previous_response_id"),
        ("POST", "/v1/fine_tuning/jobs", "/v1/load_lora_adapter"),
    ],
)
def test_what_weft_does_not_have_is_refused_by_name_with_what_it_has(client, method, path, instead):
    found = client.request(method, path, **({"json": {}} if method == "POST" else {}))
    error = found.json()["error"]
    assert found.status_code == 404 and error["code"] == "not_supported" and error["type"] == "not_found_error"
    assert error["message"].startswith("weft has no ") and instead in error["message"]


def test_a_path_of_nobody_is_not_refused_by_name(client):
    for path in ("/v1/filesystem", "/v1/audi", "/v1/messages/none"):
        assert client.get(path).json().get("error", {}).get("code") != "not_supported"
    batches = client.post("/v1/messages/batches", json={}).json()
    assert batches["type"] == "error" and "at the same time" in batches["error"]["message"]


def test_the_document_describes_every_route(client, server):
    document = client.get("/openapi.json").json()
    operations = [(path, method) for path, methods in document["paths"].items() for method in methods]
    assert len(operations) == len(server.app.routes)
    body = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    chat = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert chat["properties"]["messages"]["maxItems"] == 2048 and "additionalProperties" in chat

    def references(value):
        if isinstance(value, dict):
            yield from (v for k, v in value.items() if k == "$ref")
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    missing = {r for r in references(document) if r.rsplit("/", 1)[1] not in document["components"]["schemas"]}
    assert not missing
    assert math.isclose(float(document["openapi"][:3]), 3.1)


def test_the_reference_is_one_page_that_loads_nothing_from_elsewhere(client):
    found = client.get("/docs")
    assert found.status_code == 200 and found.headers["content-type"] == "text/html; charset=utf-8"
    policy = found.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "connect-src 'self'" in policy and "unsafe" not in policy
    for tag, source in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", found.text, re.DOTALL)
        assert f"{source} 'sha256-{b64encode(sha256(inside.encode()).digest()).decode()}'" in policy
    assert not re.findall(r"https?://|src=|@import|\burl\(", found.text)
    document = client.get("/openapi.json").json()
    tags = [operation["tags"][0] for methods in document["paths"].values() for operation in methods.values()]
    assert {tag["name"] for tag in document["tags"]} == set(tags) >= {"OpenAI", "Ollama", "TEI", "Server"}


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "index.html/..", "a.py", "x", ".hidden.js", "%00.js"])
def test_the_page_has_no_other_files(client, name):
    assert client.get(f"/page/{name}").status_code in (401, 404)
