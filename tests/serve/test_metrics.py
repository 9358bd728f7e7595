"""Metrics forget what is no longer loaded, and have a bounded number of series whatever clients choose as names."""

import httpx
import pytest
import tiny_adapters
from idleness import wait_for
from tiny_chat import CONFIG

from weft.serve.work import metrics
from weft.serve.work.metrics import Metrics


@pytest.fixture
def client(serve, specs, tmp_path):
    """A client of a server that may load an adapter."""
    tiny_adapters.write_adapter(tmp_path / "loras" / "one", CONFIG, seed=1)
    running = serve(models=specs, lora_dir=tmp_path / "loras")
    with httpx.Client(base_url=running.url, timeout=60) as made:
        made.running = running
        yield made


def test_an_adapter_that_is_unloaded_is_forgotten_and_the_others_are_not(client):
    for number in range(3):
        name = f"adapter-{number}"
        loaded = {"lora_name": name, "lora_path": "one", "model": "tiny"}
        assert client.post("/v1/load_lora_adapter", json=loaded).status_code == 200
        for model in ("tiny", name):
            asked = {"model": model, "prompt": "a", "max_tokens": 2}
            assert client.post("/v1/completions", json=asked).status_code == 200
        assert f'model="{name}"' in client.get("/metrics").text
        assert client.post("/v1/unload_lora_adapter", json={"lora_name": name}).status_code == 200
    text = client.get("/metrics").text
    assert "adapter-" not in text and 'weft:request_prompt_tokens_count{model="tiny"} 3' in text


def test_what_nobody_reads_is_forgotten_too(client):
    """By the sweep, where nothing collects the metrics."""
    serving = client.running.app.serving
    loaded = {"lora_name": "mine", "lora_path": "one", "model": "tiny"}
    assert client.post("/v1/load_lora_adapter", json=loaded).status_code == 200
    assert client.post("/v1/completions", json={"model": "mine", "prompt": "a", "max_tokens": 2}).status_code == 200

    def known() -> bool:
        return (("model", "mine"),) in serving.metrics._histograms["request_prompt_tokens"]

    assert known()
    assert client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
    wait_for(lambda: not known())


def test_a_model_that_is_unloaded_is_forgotten(client):
    assert client.post("/v1/embeddings", json={"model": "bert", "input": "a"}).status_code == 200
    assert 'weft:te_request_count{model="bert"} 1' in client.get("/metrics").text
    serving = client.running.app.serving
    assert client.running.call(lambda: serving.models.unload(serving.models.entries["bert"]))
    text = client.get("/metrics").text
    assert 'weft:model_loaded{model="bert"} 0' in text and "te_request" not in text
    assert 'route="/v1/embeddings"' in text  # what belongs to no model stays


def test_a_metric_has_at_most_so_many_series(monkeypatch):
    monkeypatch.setattr(metrics, "MOST_SERIES", 5)
    made = Metrics()
    for number in range(20):
        made.count("te_request_failure", model="bert", err=f"code-{number}")
        made.observe("te_request_duration", 0.5, model=f"model-{number}")
    made.count("te_request_failure", model="bert", err="code-0")
    text = made.text({}, {})
    assert text.count("weft:te_request_failure{") == text.count("weft:te_request_duration_count{") == 6
    assert 'weft:te_request_failure{err="code-0",model="bert"} 2' in text
    assert 'weft:te_request_failure{err="(other)",model="(other)"} 15' in text
    assert 'weft:te_request_duration_count{model="(other)"} 15' in text
