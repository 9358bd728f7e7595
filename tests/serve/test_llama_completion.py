"""llama-server's own completion: its fields, stream, stop types and probabilities; filling in the middle, on its route
and on those of OpenAI and Ollama. Raw prompts read special tokens on all of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_chat import write_chat_model
from tiny_models import TOOL_TEMPLATE

import weft
from weft.serve import BackgroundServer, ModelSpec, Settings

GREEDY = {"temperature": 0, "n_predict": 8, "ignore_eos": True}
# of tools/server/server-task.cpp in llama.cpp, revision b21e4de: every field of a final result
FIELDS = {
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached"),
    "timings",
}
TIMINGS = {
    *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}


def complete(client: httpx.Client, prompt: Any = "abc", path: str = "/completion", **more: Any) -> Any:
    found = client.post(path, json={"prompt": prompt, **GREEDY, **more})
    assert found.status_code == 200, found.text
    return found.json()


def test_a_completion_has_llama_server_s_fields(client: httpx.Client) -> None:
    made = complete(client)
    assert set(made) == FIELDS and set(made["timings"]) == TIMINGS
    assert made["stop"] is True and made["stop_type"] == "limit" and made["stopping_word"] == ""
    assert made["tokens"] == [] and made["tokens_predicted"] == 8 and made["tokens_evaluated"] == 3
    assert made["prompt"] == "abc" and made["model"] == "tiny" and made["index"] == 0
    assert made["has_new_line"] == ("\n" in made["content"]) and made["truncated"] is False
    settings = made["generation_settings"]
    assert settings["temperature"] == 0 and settings["n_predict"] == 8 and settings["n_ctx"] == 4096
    openai = {"model": "tiny", "prompt": "abc", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    assert made["content"] == client.post("/v1/completions", json=openai).json()["choices"][0]["text"]
    assert complete(client, path="/completions")["content"] == made["content"]


def test_a_stream_is_events_without_an_end_mark(client: httpx.Client) -> None:
    whole = complete(client, return_tokens=True)
    found = client.post("/completion", json={"prompt": "abc", **GREEDY, "stream": True})
    assert "[DONE]" not in found.text and found.headers["content-type"].startswith("text/event-stream")
    chunks = [json.loads(line.removeprefix("data: ")) for line in found.text.splitlines() if line]
    *parts, last = chunks
    wanted = {"index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"}
    assert all(set(part) == wanted and part["stop"] is False for part in parts)
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    assert set(last) == FIELDS and last["stop"] is True and last["content"] == "" and last["tokens"] == []
    assert last["tokens_predicted"] == 8 and last["stop_type"] == "limit"


def test_the_three_ways_to_stop(client: httpx.Client) -> None:
    word = complete(client, logit_bias=[[65, 100]], stop=["AAA"])
    assert word["stop_type"] == "word" and word["stopping_word"] == "AAA" and word["content"] == ""
    end = complete(client, logit_bias={"257": 100}, ignore_eos=False)
    assert end["stop_type"] == "eos" and end["content"] == "" and end["tokens_predicted"] <= 1
    assert complete(client, logit_bias=[["A", 100]])["content"] == "A" * 8
    assert "A" not in complete(client, logit_bias=[[65, False], [66, 100]])["content"]


def test_probabilities_come_with_their_tokens(client: httpx.Client) -> None:
    made = complete(client, n_probs=3, return_tokens=True)
    entries = made["completion_probabilities"]
    assert [entry["id"] for entry in entries] == made["tokens"] and len(entries) == 8
    for entry in entries:
        assert set(entry) == {"id", "token", "bytes", "logprob", "top_logprobs"} and len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["id"] == entry["id"]  # greedy
        assert set(entry["top_logprobs"][0]) == {"id", "token", "bytes", "logprob"}
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"] and entry["logprob"] <= 0
    text = client.post("/completion", json={"prompt": "abc", **GREEDY, "n_probs": 3, "stream": True}).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]
    streamed = [entry for chunk in chunks for entry in chunk.get("completion_probabilities", ())]
    assert [entry["logprob"] for entry in streamed] == [entry["logprob"] for entry in entries]


def test_prompts_in_every_shape(client: httpx.Client) -> None:
    text = complete(client)["content"]
    assert complete(client, [97, 98, 99])["content"] == text
    assert complete(client, [97, "b", 99])["content"] == text
    several = complete(client, ["abc", [97, "bc"], "abd"])
    assert [one["index"] for one in several] == [0, 1, 2]
    assert several[0]["content"] == several[1]["content"] == text != several[2]["content"]
    assert [one["content"] for one in complete(client, n_cmpl=2)] == [text, text]


def test_only_the_fields_that_are_asked_for(client: httpx.Client) -> None:
    made = complete(client, response_fields=["content", "generation_settings/n_predict", "absent"])
    assert set(made) == {"content", "generation_settings/n_predict"} and made["generation_settings/n_predict"] == 8


def test_a_prompt_in_the_cache_is_counted_and_can_be_computed_again(client: httpx.Client) -> None:
    prompt = "the cache " * 20
    complete(client, prompt)
    assert complete(client, prompt)["tokens_cached"] > 100 and complete(client, prompt)["timings"]["cache_n"] > 100
    assert complete(client, prompt, cache_prompt=False)["tokens_cached"] == 0


SPECIAL = "<|im_start|>user\nhi<|im_end|>\n"  # 9 ids: two are special tokens, as the chat template writes them


def test_raw_prompts_read_special_tokens_on_every_route_and_chats_do_not(client: httpx.Client) -> None:
    def tokens(path: str, **body: Any) -> int:
        made = client.post(path, json={"model": "tiny", **body}).json()
        return (
            made["usage"]["prompt_tokens"]
            if "usage" in made
            else made.get("tokens_evaluated", made.get("prompt_eval_count"))
        )

    assert tokens("/v1/completions", prompt=SPECIAL, max_tokens=1) == 10
    assert tokens("/v1/completions", prompt=SPECIAL, max_tokens=1, parse_special=False) == len(SPECIAL)
    assert tokens("/api/generate", prompt=SPECIAL, raw=True, stream=False, options={"num_predict": 1}) == 10
    assert tokens("/completion", prompt=SPECIAL, n_predict=1) == 10
    assert tokens("/completion", prompt=SPECIAL, n_predict=1, parse_special=False) == len(SPECIAL)
    inside = tokens("/v1/chat/completions", messages=[{"role": "user", "content": SPECIAL}], max_tokens=1)
    assert inside > len(SPECIAL)
    assert tokens("/api/generate", prompt=SPECIAL, stream=False, options={"num_predict": 1}) == inside


def test_a_chat_written_as_a_raw_prompt_is_the_chat(client: httpx.Client) -> None:
    prompt = client.post("/apply-template", json={"messages": [{"role": "user", "content": "hi"}]}).json()["prompt"]
    same = {"model": "tiny", "temperature": 0, "max_tokens": 8}
    chat = client.post("/v1/chat/completions", json={**same, "messages": [{"role": "user", "content": "hi"}]}).json()
    raw = client.post("/v1/completions", json={**same, "prompt": prompt}).json()
    assert raw["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    assert raw["choices"][0]["text"] == chat["choices"][0]["message"]["content"]


@pytest.fixture(scope="module")
def filling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, weft.Model]]:
    """A server of a model that can fill in the middle, and the same model in the library."""
    ids = {"pre": 1, "suf": 2, "mid": 3, "pad": 257}  # bytes serve as the first three: the model has 258 ids
    stated = {f"tokenizer__ggml__fim_{name}_token_id": id for name, id in ids.items()}
    path: Path = write_chat_model(tmp_path_factory.mktemp("fim") / "fill.gguf", template=TOOL_TEMPLATE, **stated)
    specs = (ModelSpec("fill", str(path), {"threads": 1}),)
    with BackgroundServer(Settings(models=specs, port=0)) as running, httpx.Client(base_url=running.url) as client:
        yield client, weft.load(str(path), threads=1)


def test_the_middle_is_filled_in_on_three_routes_as_the_library_does(filling: tuple[httpx.Client, weft.Model]) -> None:
    client, model = filling
    wanted = model.generate("def f(", suffix=")", max_tokens=8).text
    openai = {"model": "fill", "prompt": "def f(", "suffix": ")", "max_tokens": 8, "temperature": 0}
    made = client.post("/v1/completions", json=openai).json()
    assert made["choices"][0]["text"] == wanted and made["usage"]["prompt_tokens"] == 10
    options = {"num_predict": 8, "temperature": 0}
    body = {"model": "fill", "prompt": "def f(", "suffix": ")", "options": options, "stream": False}
    assert client.post("/api/generate", json=body).json()["response"] == wanted
    lines = client.post("/api/generate", json={**body, "stream": True}).text.splitlines()
    assert "".join(json.loads(line)["response"] for line in lines) == wanted
    native = {"input_prefix": "def f(", "input_suffix": ")", "n_predict": 8, "temperature": 0}
    found = client.post("/infill", json=native).json()
    assert found["content"] == wanted and found["tokens_evaluated"] == 10
    begun = client.post("/infill", json={**native, "input_prefix": "def ", "prompt": "f("}).json()
    assert begun["content"] == wanted
    for empty in ({**openai, "suffix": ""}, {**openai, "suffix": None}):
        assert client.post("/v1/completions", json=empty).json()["usage"]["prompt_tokens"] == 6


def test_other_files_come_before_the_prompt(filling: tuple[httpx.Client, weft.Model]) -> None:
    client, _ = filling
    extra = [{"filename": "a.py", "text": "a = 1"}, {"text": "b"}]
    body = {"input_prefix": "c", "input_suffix": "d", "input_extra": extra, "n_predict": 1}
    assert client.post("/infill", json=body).json()["prompt"] == "a = 1\n\nb\n\n\u0001c\u0002d\u0003"


def test_a_suffix_cannot_be_echoed(filling: tuple[httpx.Client, weft.Model]) -> None:
    client, _ = filling
    body = {"model": "fill", "prompt": "a", "suffix": "b", "echo": True}
    found = client.post("/v1/completions", json=body)
    assert found.status_code == 400 and found.json()["error"]["param"] == "echo"
