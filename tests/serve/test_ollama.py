"""The official ollama client gets what it expects: lines of JSON, tools, embeddings, lists, keep_alive."""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny_adapters
from tiny_chat import CONFIG, write_chat_model

ollama = pytest.importorskip("ollama")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "weights" / "sources"))

from hub_server import Hub, serving  # noqa: E402

from weft.serve import BackgroundServer, ModelSpec  # noqa: E402
from weft.serve.models.digest import digest_of  # noqa: E402
from weft.serve.ollama.listing import short_number  # noqa: E402

USER = [{"role": "user", "content": "Say something."}]
GREEDY = {"temperature": 0, "num_predict": 20}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def llama(server: BackgroundServer) -> Any:
    return ollama.Client(host=server.url, timeout=60)


def test_a_chat_whole_and_streamed_under_either_name(llama):
    whole = llama.chat(model="tiny:latest", messages=USER, options=GREEDY)
    assert whole.done and whole.eval_count <= 20 and whole.prompt_eval_count > 10 and whole.total_duration > 0
    parts = list(llama.chat(model="tiny", messages=USER, options=GREEDY, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason in ("stop", "length")


def test_generate_through_the_template_and_raw(llama):
    made = llama.generate(model="tiny", prompt="abc", system="Be brief.", options=GREEDY)
    raw = llama.generate(model="tiny", prompt="abc", raw=True, options=GREEDY)
    assert made.response != raw.response and raw.prompt_eval_count == 3
    streamed = list(llama.generate(model="tiny", prompt="abc", raw=True, options=GREEDY, stream=True))
    assert "".join(part.response for part in streamed) == raw.response and streamed[-1].done


def test_formats_and_stops(llama):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    made = llama.chat(model="tiny", messages=USER, format=schema, options={"num_predict": 100})
    assert isinstance(json.loads(made.message.content)["a"], bool)
    raw = llama.generate(model="tiny", prompt="abc", raw=True, options=GREEDY).response
    stop = next(character for character in raw if character.isascii() and character.isprintable())
    cut = llama.generate(model="tiny", prompt="abc", raw=True, options={**GREEDY, "stop": [stop]})
    assert cut.response == raw[: raw.index(stop)] and cut.done_reason == "stop"


def test_tools_and_their_results_are_part_of_a_chat(llama):
    messages = [
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},
        {"role": "tool", "content": "Rain", "tool_name": "weather"},
    ]
    assert llama.chat(model="tiny", messages=messages, tools=[WEATHER], options={"num_predict": 3}).done
    assert llama.chat(model="plain", messages=messages, tools=[WEATHER], options={"num_predict": 3}).done


def test_embeddings_are_those_of_the_model(llama, server):
    found = llama.embed(model="bert", input=["a cat", "a dog"])
    from weft import Embedder

    source = server.app.serving.models.entries["bert"].spec.source
    assert np.array_equal(
        np.array(found.embeddings, np.float32), Embedder(source, threads=1).encode(["a cat", "a dog"])
    )
    with pytest.raises(ollama.ResponseError, match="not trained for shorter vectors"):
        llama.embed(model="bert", input="a", dimensions=4)
    assert len(llama.embeddings(model="bert", prompt="a").embedding) == 24
    long = "the cat " * 100
    with pytest.raises(ollama.ResponseError, match="48"):
        llama.embed(model="bert", input=long)
    cut = llama._request_raw("POST", "/api/embed", json={"model": "bert", "input": long, "truncate": True}).json()
    assert cut["truncated_tokens"] == 254


def test_lists_show_and_version(llama):
    assert {model.model for model in llama.list().models} == {"tiny", "plain", "bert"}
    shown = llama.show("tiny")
    assert "completion" in shown.capabilities and "tools" in shown.capabilities and "im_start" in shown.template
    assert llama.show("bert").capabilities == ["embedding"]
    assert "tiny" in {model.model for model in llama.ps().models}
    assert llama._request_raw("GET", "/api/version").json()["version"]


def test_lists_say_how_a_model_is_stored_and_what_may_be_done_with_it(serve, model_files, tmp_path):
    licensed = shutil.copytree(model_files["bert"], tmp_path / "bert")
    (licensed / "README.md").write_text("---\ntags:\n- x\nlicense: apache-2.0\n---\nlicense: other\n")
    tiny_adapters.write_adapter(tmp_path / "loras" / "mine", CONFIG, seed=1)
    chat = write_chat_model(tmp_path / "chat.gguf", **{"general.license": "mit", "general.file_type": 15})
    specs = (ModelSpec("chat", str(chat), {"threads": 1}), ModelSpec("bert", str(licensed), {"threads": 1}))
    running = serve(models=specs, lora_dir=tmp_path / "loras")
    httpx.post(f"{running.url}/v1/load_lora_adapter", json={"lora_name": "mine", "model": "chat"}).raise_for_status()
    client = ollama.Client(host=running.url, timeout=30)
    found = {model.model: model for model in client.list().models}
    assert list(found) == ["chat", "mine", "bert"]
    chats = found["chat"].details
    assert (chats.format, chats.family, chats.families) == ("gguf", "llama", ["llama"])
    assert (chats.quantization_level, found["bert"].details.quantization_level) == ("Q4_K_M", "F32")
    assert found["mine"].details.parent_model == "chat" and found["chat"].size == chat.stat().st_size
    shown = client.show("chat")
    assert shown.license == "mit" and client.show("bert").license == "apache-2.0"
    info = shown.modelinfo
    assert short_number(info["general.parameter_count"]) == chats.parameter_size
    assert info["llama.context_length"] == 4096 and info["llama.block_count"] == CONFIG["num_hidden_layers"]
    raw = client._request_raw("POST", "/api/show", json={"model": "chat"}).json()
    assert raw["adapters"] == ["mine"] and "ADAPTER mine" in client.show("mine").modelfile
    card = next(one for one in httpx.get(f"{running.url}/v1/models").json()["data"] if one["id"] == "chat")
    assert (card["licence"], card["quantisation"], card["file_bytes"]) == ("mit", "Q4_K_M", chat.stat().st_size)
    assert card["parameters"] == info["general.parameter_count"]


def test_numbers_of_parameters_are_short():
    counts = {0: "0", 999: "999", 1000: "1.00K", 22_713_216: "22.7M", 134_515_008: "135M", 99_960_000: "100M"}
    assert {count: short_number(count) for count in counts} == counts
    assert short_number(1_235_814_400) == "1.24B" and short_number(70_553_706_496) == "70.6B"


def test_digests_tell_models_apart_by_what_they_are_not_by_their_names(llama, model_files, tmp_path):
    found = {model.model: model.digest for model in llama.list().models}
    assert len(set(found.values())) == 3 and all(re.fullmatch("[0-9a-f]{64}", digest) for digest in found.values())
    copy = tmp_path / "another-name.gguf"
    copy.write_bytes(model_files["tiny"].read_bytes())
    assert digest_of(copy) == found["tiny"]
    for place in (0, copy.stat().st_size // 2, copy.stat().st_size - 1):  # a small file is read from end to end
        changed = bytearray(model_files["tiny"].read_bytes())
        changed[place] ^= 1
        copy.write_bytes(changed)
        assert digest_of(copy) != found["tiny"]
    assert digest_of(model_files["bert"]) == found["bert"]
    large = tmp_path / "large.gguf"
    with large.open("wb") as opened:
        opened.truncate(1 << 36)
    assert len(digest_of(large)) == 64  # in no time: 64 GiB of nothing


def test_keep_alive_lets_a_model_go(serve):
    running = serve()
    llama = ollama.Client(host=running.url)
    assert llama.generate(model="tiny", prompt="").done_reason == "load"
    assert [model.model for model in llama.ps().models] == ["tiny"]
    assert llama.generate(model="tiny", prompt="", keep_alive=0).done_reason == "unload"
    assert llama.ps().models == []
    llama.generate(model="tiny", prompt="a", keep_alive="1h", options={"num_predict": 1})
    assert running.app.serving.models.entries["tiny"].keep_alive_s == 3600


def test_pulling_is_off_unless_allowed_and_takes_no_paths(serve, llama):
    assert llama.pull("tiny").status == "success"
    with pytest.raises(ollama.ResponseError) as caught:
        llama.pull("other")
    assert caught.value.status_code == 403
    allowed = ollama.Client(host=serve(allow_pull=True).url)
    for bad in ("../x", "/etc/passwd", "a/../b", "a/b/c", "--help", "x y"):
        with pytest.raises(ollama.ResponseError) as caught:
            allowed.pull(bad)
        assert caught.value.status_code == 400, bad


@pytest.fixture
def hub(model_files, tmp_path, monkeypatch):
    """A hub with one embedding model, and an empty cache."""
    files = {p.relative_to(model_files["bert"]).as_posix(): p for p in model_files["bert"].rglob("*") if p.is_file()}
    made = Hub("org/tiny-bert", {name: path.read_bytes() for name, path in files.items()}, ("model.safetensors",))
    for name in ("WEFT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "weft"))
    monkeypatch.setenv("no_proxy", "*")
    with serving(made):
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        yield made


def test_a_pull_tells_its_progress_and_the_model_is_served(serve, hub):
    running = serve(allow_pull=True)
    client = ollama.Client(host=running.url, timeout=60)
    parts = list(client.pull(hub.repo, stream=True))
    assert parts[0].status == "pulling manifest" and parts[-1].status == "success"
    sizes = {part.digest: (part.completed, part.total) for part in parts if part.digest}
    weights = hub.files["model.safetensors"]
    assert sizes["model.safetensors"] == (len(weights), len(weights))
    assert all(part.status == f"pulling {part.digest}" for part in parts if part.digest)
    assert hub.repo in {model.model for model in client.list().models}
    assert len(client.embed(model=hub.repo, input="a").embeddings[0]) == 24
    seen = len(hub.seen)
    assert client.pull(hub.repo).status == "success" and len(hub.seen) == seen  # it is here


def test_a_pull_that_fails_says_why(serve, hub, caplog):
    running = serve(allow_pull=True)
    client = ollama.Client(host=running.url, timeout=60)
    with pytest.raises(ollama.ResponseError, match="org/absent") as caught:
        client.pull("org/absent")
    assert caught.value.status_code == 404 and "there is no repository" in caught.value.error
    with pytest.raises(ollama.ResponseError, match="no such model"):
        list(client.pull("no-such-thing", stream=True))
    config = json.loads(hub.files["config.json"])
    hub.files["config.json"] = json.dumps({**config, "model_type": "mystery"}).encode()
    with caplog.at_level("ERROR", "weft.serve"), pytest.raises(ollama.ResponseError, match="mystery"):
        client.pull(hub.repo)
    assert any("mystery" in getattr(record, "error", "") for record in caplog.records)
    assert hub.repo not in {model.model for model in client.list().models}


def test_errors_have_ollamas_shape(llama, client):
    with pytest.raises(ollama.ResponseError) as caught:
        llama.chat(model="absent", messages=USER)
    assert caught.value.status_code == 404
    found = client.post("/api/chat", json={"model": "tiny", "messages": USER, "options": {"mirostat": 2}})
    assert found.status_code == 400 and "mirostat" in found.json()["error"]
    found = client.post(
        "/api/chat", json={"model": "tiny", "messages": [{"role": "user", "content": "", "images": ["x"]}]}
    )
    assert found.status_code == 400 and "images" in found.json()["error"]
