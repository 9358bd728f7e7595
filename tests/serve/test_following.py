"""A server follows an alias of the registry: no request fails, and each reply is bitwise that of its version.

The loop is that of a user: train an adapter, add it, promote it in the running server, evaluate it there, roll back.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from soaking import times
from tiny_chat import write_chat_model
from tiny_st import write_st_folder

from weft.errors import NotFoundError
from weft.registry import Registry
from weft.serve import BackgroundServer, ModelSpec, Settings
from weft.weights.safetensors import open_safetensors, write_safetensors

CLIENTS = 8


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def train(base: Path, folder: Path, seed: int) -> tuple[Path, float]:
    """An adapter after two steps, and its loss."""
    from weft.train import lora

    rows = folder.with_suffix(".jsonl")
    text = [{"text": f"row {i} of run {seed}: {'abc'[i % 3] * 8}"} for i in range(6)]
    rows.write_text("".join(json.dumps(row) + "\n" for row in text))
    run = lora(str(base), rows, output=folder, steps=2, rank=2, rate=0.05, seed=seed, batch_tokens=64, threads=1)
    return folder, float([step.loss for step in run][-1])


def write_version(folder: Path, seed: int = 0) -> Path:
    """An embedder whose weights depend on the seed."""
    write_st_folder(folder)
    rng = np.random.default_rng(seed)
    read = open_safetensors(folder / "model.safetensors").tensors
    tensors = {name: view.numpy() * np.float32(1 + 0.1 * seed * rng.normal()) for name, view in read.items()}
    write_safetensors(folder / "model.safetensors", tensors, {})
    return folder


class Clients:
    """Requests without a pause, and each reply with the version that its header names."""

    def __init__(self, url: str, path: str, body: dict[str, Any], read: Any) -> None:
        self._asked = (url, path, body, read)
        self.replies: list[tuple[str, Any]] = []
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]

    def _work(self) -> None:
        url, path, body, read = self._asked
        with httpx.Client(base_url=url, timeout=120) as client:
            while not self._stop.is_set():
                try:
                    answer = client.post(path, json=body)
                    if answer.status_code == 200:
                        self.replies.append((answer.headers["x-weft-version"], read(answer)))
                    else:
                        self.failures.append(f"{answer.status_code} {answer.text[:200]}")
                except Exception as error:
                    self.failures.append(repr(error))

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def served(folder: Path, source: str, **settings: Any) -> BackgroundServer:
    spec = ModelSpec("support", source, {"threads": 1}, preload=True)
    return BackgroundServer(Settings(models=(spec,), port=0, registry=folder, **settings))


def post(server: BackgroundServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{server.url}{path}", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_train_load_evaluate_roll_back_under_clients(registry, tmp_path):
    """Done-when 5: 200 cycles in a soak run, a few in the suite."""
    import weft

    cycles = times(200, 3)
    base = write_chat_model(tmp_path / "tiny.gguf")
    registry.add("support", train(base, tmp_path / "first", 1)[0], "1.0.0", kind="adapter", base=str(base),
                 evaluations={"loss": 1.0})  # fmt: skip
    registry.promote("support@1.0.0")
    body = {"model": "support", "prompt": "say it", "max_tokens": 6, "logprobs": 1, "temperature": 0}
    with served(registry.folder, "registry:support@production") as server:
        read = lambda answer: answer.json()["choices"][0]["logprobs"]["token_logprobs"]  # noqa: E731
        with Clients(server.url, "/v1/completions", body, read) as clients:
            for i in range(1, cycles + 1):
                version = f"1.{i}.0"
                adapter, loss = train(base, tmp_path / f"run-{i}", i + 1)
                registry.add("support", adapter, version, kind="adapter", base=str(base), parents=["support@1.0.0"],
                             evaluations={"loss": loss})  # fmt: skip
                moved = post(server, "/v1/registry/support/promote", {"version": version})
                assert moved["version"] == version and moved["served"][0]["version"] == version
                measured = post(server, "/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"]
                metrics = {"logprob": float(np.mean(measured))}
                post(server, "/v1/registry/support/evaluate", {"version": version, "metrics": metrics})
                assert post(server, "/v1/registry/support/rollback", {})["version"] == "1.0.0"
    assert clients.failures == []
    seen = {version for version, _ in clients.replies}
    assert "support@1.0.0" in seen and len(seen) >= 2
    expected = {}
    for version in seen:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("WEFT_REGISTRY", str(registry.folder))
            model = weft.load(f"registry:{version}", threads=1)
        made = model.generate("say it", max_tokens=6, logprobs=1)
        expected[version] = [one.logprob for one in made.logprobs]
    for version, logprobs in clients.replies:
        assert logprobs == expected[version], version
    print(f"{cycles} cycles, {len(clients.replies)} replies of {len(seen)} versions")


def test_an_embedder_is_swapped_by_another_process_changing_the_registry(registry, tmp_path):
    """Here the test is the other process: the server has to look at the registry by itself."""
    import weft

    for i in range(2):
        folder = write_version(tmp_path / f"bert{i}", i)
        registry.add("support", folder, f"1.{i}.0", evaluations={"m": i})
    registry.promote("support@1.0.0")
    body = {"model": "support", "input": ["a cat", "a dog"]}
    with served(registry.folder, "registry:support") as server:
        read = lambda answer: [row["embedding"] for row in answer.json()["data"]]  # noqa: E731
        with Clients(server.url, "/v1/embeddings", body, read) as clients:
            registry.promote("support@1.1.0")
            for _ in range(600):
                if httpx.get(f"{server.url}/v1/registry").json()["data"][0]["served"][0]["version"] == "1.1.0":
                    break
                threading.Event().wait(0.05)
            post(server, "/v1/embeddings", body)
    assert clients.failures == []
    assert {version for version, _ in clients.replies} == {"support@1.0.0", "support@1.1.0"}
    for i in range(2):
        vectors = weft.Embedder(str(tmp_path / f"bert{i}"), threads=1).encode(body["input"]).tolist()
        assert all(found == vectors for version, found in clients.replies if version == f"support@1.{i}.0")


def test_a_version_that_does_not_load_changes_nothing(registry, tmp_path):
    registry.add("support", write_st_folder(tmp_path / "bert"), "1.0.0", evaluations={"m": 1})
    broken = write_st_folder(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not a model")
    registry.add("support", broken, "1.1.0", evaluations={"m": 1})
    registry.promote("support@1.0.0")
    with served(registry.folder, "registry:support@production") as server:
        answer = httpx.post(f"{server.url}/v1/registry/support/promote", json={"version": "1.1.0"}, timeout=60)
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "not_swapped"
        found = httpx.get(f"{server.url}/v1/registry/support").json()
        assert found["aliases"]["production"] == "1.1.0" and found["served"][0]["version"] == "1.0.0"
        assert found["served"][0]["error"]
        vectors = httpx.post(f"{server.url}/v1/embeddings", json={"model": "support", "input": "a"}, timeout=60)
        assert vectors.status_code == 200 and vectors.headers["x-weft-version"] == "support@1.0.0"
        post(server, "/v1/registry/support/rollback", {})
        assert httpx.get(f"{server.url}/v1/registry/support").json()["served"][0]["error"] == ""


def test_a_pinned_version_does_not_move(registry, tmp_path):
    for i in range(2):
        registry.add("support", write_version(tmp_path / f"b{i}", i), f"1.{i}.0", evaluations={"m": 1})
    registry.promote("support@1.0.0")
    with served(registry.folder, "registry:support@1.0.0") as server:
        post(server, "/v1/registry/support/promote", {"version": "1.1.0"})
        answer = httpx.post(f"{server.url}/v1/embeddings", json={"model": "support", "input": "a"}, timeout=60)
        assert answer.headers["x-weft-version"] == "support@1.0.0"


def test_a_missing_version_is_said_at_the_start(registry):
    with pytest.raises(NotFoundError), served(registry.folder, "registry:support"):
        pass


def test_routes_without_a_registry_and_with_wrong_requests(registry, tmp_path, client):
    for path in ("/v1/registry", "/v1/registry/support"):
        assert client.get(path).status_code == 403
    registry.add("support", write_st_folder(tmp_path / "bert"), "1.0.0", evaluations={"m": 1})
    registry.add("support", write_version(tmp_path / "other", 1), "1.1.0")
    registry.promote("support@1.0.0")
    with served(registry.folder, "registry:support", keys=("secret",)) as server:
        assert httpx.get(f"{server.url}/v1/registry").status_code == 401
        with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer secret"}, timeout=60) as mine:
            row = mine.get("/v1/registry").json()["data"][0]
            assert row["versions"] == ["1.0.0", "1.1.0"] and row["aliases"] == {"production": "1.0.0"}
            assert row["served"][0]["model"] == "support"
            ask = lambda path, body: mine.post(f"/v1/registry/{path}", json=body).status_code  # noqa: E731
            assert mine.get("/v1/registry/nobody").status_code == 404
            assert ask("support/promote", {"version": "9.9.9"}) == 404
            assert ask("support/promote", {"version": "1.0"}) == 400
            assert ask("support/promote", {"version": "1.1.0", "alias": "Not An Alias"}) == 400
            assert ask("support/promote", {"version": "1.1.0"}) == 409  # nothing is known about it
            assert ask("support/promote", {}) == 400
            assert ask("support/rollback", {}) == 409
            assert ask("support/evaluate", {"version": "1.1.0", "metrics": {}}) == 400
            assert ask("support/evaluate", {"version": "1.1.0", "metrics": {"m": 0.5}, "data": "held out"}) == 200
            found = mine.get("/v1/registry/support").json()
            assert found["versions"][1]["evaluations"][0]["value"] == 0.5
            assert found["versions"][1]["state"] == "validated" and found["events"][0]["action"] == "state"
