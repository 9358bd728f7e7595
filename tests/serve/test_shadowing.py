"""A candidate in shadow of live requests: replies stay those of the version in production, and the verdict is right."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from test_following import served, train, write_version
from tiny_chat import write_chat_model

from weft.registry import Registry
from weft.serve.versions.shadowing import difference
from weft.weights.safetensors import open_safetensors, write_safetensors

EMBED = ("/v1/embeddings", {"model": "support", "input": ["a cat", "a dog"]})
SAY = ("/v1/completions", {"model": "support", "prompt": "say it", "max_tokens": 6, "temperature": 0.9, "seed": 3})


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def judged(
    registry: Registry, asked: tuple[str, dict[str, Any]], candidate: str = "1.1.0", **limits: Any
) -> dict[str, Any]:
    """The run of a candidate beside 1.0.0, after it has ended; every reply must be that of 1.0.0."""
    registry.promote("support@1.0.0", force=True)
    server = served(registry.folder, "registry:support@production")
    with server, httpx.Client(base_url=server.url, timeout=60) as client:
        body = {"candidate": candidate, "share": 1.0, "samples": 4, "max_slower_ms": 1e6, **limits}
        assert client.post("/v1/registry/support/shadow", json=body).status_code == 200
        before = None
        for _ in range(2000):
            answer = client.post(asked[0], json=asked[1])
            assert answer.status_code == 200 and answer.headers["x-weft-version"] == "support@1.0.0"
            found = {**answer.json(), "id": "", "created": 0, "timings": {}}
            before = before or found
            assert found == before
            shown: dict[str, Any] = client.get("/v1/registry/support").json()["shadow"]
            if shown["verdict"] != "running":
                break
            time.sleep(0.02)
        promoted = client.post("/v1/registry/support/promote", json={"version": candidate}).status_code
    assert promoted == (200 if shown["verdict"] == "passed" else 409)
    return shown


def with_weights(folder: Path, change: Any) -> Path:
    path = folder / "model.safetensors"
    tensors = {name: change(view.numpy().copy()) for name, view in open_safetensors(path).tensors.items()}
    write_safetensors(path, tensors, {})
    return folder


def test_a_candidate_that_is_nearly_the_same_passes(registry, tmp_path):
    registry.add("support", write_version(tmp_path / "one"), "1.0.0")
    other = with_weights(write_version(tmp_path / "two"), lambda values: values * np.float32(1.001))
    registry.add("support", other, "1.1.0")
    found = judged(registry, EMBED)
    assert found["verdict"] == "passed" and found["counts"]["samples"] == 4 and found["counts"]["errors"] == 0
    assert found["measures"]["agreement"] == 1.0 and 0 < found["measures"]["largest_difference"] < 0.01
    assert found["measures"]["candidate_ms"] > 0


def broken_file(folder: Path) -> Path:
    write_version(folder)
    (folder / "model.safetensors").write_bytes(b"nothing")
    return folder


BROKEN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "NaN": (lambda f: with_weights(write_version(f), lambda v: v * np.float32("nan")), {}, "not finite"),
    "does not load": (broken_file, {}, "1 of 1 samples failed"),
    "too slow": (write_version, {"timeout_s": 0.001}, "samples failed"),
    "too different": (
        lambda f: with_weights(write_version(f), lambda v: v[::-1].copy() if v.ndim == 2 else v),
        {"max_difference": 0.001},
        "agreement",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_candidate_fails(case, registry, tmp_path, monkeypatch):
    make, limits, reason = BROKEN[case]
    if case == "too slow":  # a version that always takes longer than the limit, while the baseline does not
        from weft.serve.versions import shadowing

        timed = shadowing.Shadowing._timed

        async def slow(self: Any, run: Any, entry: Any, sample: Any) -> Any:
            if entry.version == "1.1.0":
                raise TimeoutError
            return await timed(self, run, entry, sample)

        monkeypatch.setattr(shadowing.Shadowing, "_timed", slow)
        limits = {}
    registry.add("support", write_version(tmp_path / "one"), "1.0.0")
    registry.add("support", make(tmp_path / "two"), "1.1.0", evaluations={"m": 1})
    found = judged(registry, EMBED, **limits)
    assert found["verdict"] == "failed" and reason in found["reason"]
    assert registry.get("support").version == "1.0.0"


def test_generators_are_compared_by_what_they_think_of_the_tokens(registry, tmp_path):
    base = write_chat_model(tmp_path / "tiny.gguf")
    options = {"kind": "adapter", "base": str(base)}
    adapter, _ = train(base, tmp_path / "first", 1)
    registry.add("support", adapter, "1.0.0", **options)
    registry.add("support", train(base, tmp_path / "second", 2)[0], "1.1.0", **options)
    found = judged(registry, SAY, max_difference=1e-9, min_agreement=0.0)
    assert found["verdict"] == "failed" and found["measures"]["mean_difference"] > 1e-9
    (adapter / "note.txt").write_text("the same weights under another digest")
    registry.add("support", adapter, "1.2.0", **options)
    found = judged(registry, SAY, "1.2.0", max_difference=0.0, min_agreement=1.0)
    assert found["verdict"] == "passed", found
    assert found["measures"]["agreement"] == 1.0 and found["measures"]["largest_difference"] == 0.0


def test_differences():
    none = np.empty(0)
    same, nan = np.eye(2, dtype=np.float32), np.array([[1, np.nan], [0, 1]], np.float32)
    assert difference((none, same), (none, 3 * same), True, 0.1) == (1.0, 0.0)
    assert difference((none, same), (none, same[::-1]), True, 0.1) == (0.0, 1.0)
    assert difference((none, same), (none, nan), True, 0.1) is None
    chosen = np.array([1, 2, 3, 4])
    assert difference((chosen, chosen * 1.0), (np.array([1, 2, 3, 5]), chosen + 0.5), False, 0.1) == (0.75, 0.5)
