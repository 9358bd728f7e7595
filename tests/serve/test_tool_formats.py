"""Every API carries calls in the formats of the families: forced ones, their results, and reasoning in channels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from weft.serve import BackgroundServer, ModelSpec, Settings

RESULTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | items | list }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.name }} {{ m.tool_call_id }}){% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKS = {
    "tags": "<tool_call> <function= <parameter=",
    "named": "[TOOL_CALLS] [ARGS]",
    "channels": "<|channel|> <|message|>",
}
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>"]
ASK = {"role": "user", "content": "What is the weather in Oslo?"}
PARAMETERS = {
    "type": "object",
    "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["place", "days"],
}
FUNCTION = {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}
ENDS = {"262": 8}  # ends reasoning soon


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    from tiny_chat import write_chat_model

    folder = tmp_path_factory.mktemp("formats")
    specs = []
    for name, marks in MARKS.items():
        template = RESULTS if name == "named" else RESULTS.replace("{{ raise_exception('id') }}", "")
        path: Path = write_chat_model(folder / f"{name}.gguf", template=f"{template}{{# {marks} #}}", special=SPECIAL)
        specs.append(ModelSpec(name, str(path), {"threads": 1}))
    server = BackgroundServer(Settings(models=tuple(specs), port=0))
    with server as running, httpx.Client(base_url=running.url, timeout=60) as made:
        yield made


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return found


def events(response: httpx.Response) -> list[Any]:
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


def is_right(arguments: Any) -> bool:
    found = json.loads(arguments) if isinstance(arguments, str) else arguments
    return found["place"] in ("Oslo", "Rome") and isinstance(found["days"], int) and 1 <= found["days"] <= 7


@pytest.mark.parametrize("model", MARKS)
def test_chat_completions(caller: httpx.Client, model: str) -> None:
    body = {"model": model, "messages": [ASK], "tools": [{"type": "function", "function": FUNCTION}], "max_tokens": 400}
    body |= {"tool_choice": "required", "logit_bias": ENDS, "seed": 4}
    (choice,) = post(caller, "/v1/chat/completions", body).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and not choice["message"]["content"]
    assert call["function"]["name"] == "weather" and is_right(call["function"]["arguments"])
    deltas = [
        c["delta"] for e in events(post(caller, "/v1/chat/completions", {**body, "stream": True})) for c in e["choices"]
    ]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert parts[0]["function"]["name"] == "weather" and "id" in parts[0]
    assert "".join(part["function"]["arguments"] for part in parts) == call["function"]["arguments"] and len(parts) > 3
    result = {"role": "tool", "tool_call_id": call["id"], "content": "Rain."}
    asked = {"model": model, "messages": [ASK, choice["message"], result]}
    prompt = post(caller, "/apply-template", asked).json()["prompt"]
    assert f"[{call['id']} weather [('place'" in prompt and f"Rain.(weather {call['id']})" in prompt


@pytest.mark.parametrize("model", MARKS)
def test_messages(caller: httpx.Client, model: str) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    same = {"model": model, "tools": [tool], "max_tokens": 3500}  # no seed here, so room for a long reasoning
    forced = {**same, "messages": [ASK], "tool_choice": {"type": "any"}, "temperature": 1.0}
    content = post(caller, "/v1/messages", forced).json()["content"]
    assert content[-1]["type"] == "tool_use" and is_right(content[-1]["input"])
    found = events(post(caller, "/v1/messages", {**forced, "stream": True}))
    pieces = [
        e["delta"]["partial_json"] for e in found if e["type"] == "content_block_delta" and "partial_json" in e["delta"]
    ]
    assert is_right("".join(pieces)) and len(pieces) > 2
    result = {"type": "tool_result", "tool_use_id": content[-1]["id"], "content": "Rain."}
    messages = [ASK, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
    assert post(caller, "/v1/messages", {**same, "messages": messages, "max_tokens": 4}).json()["type"] == "message"


@pytest.mark.parametrize("model", MARKS)
def test_responses(caller: httpx.Client, model: str) -> None:
    same = {"model": model, "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 400, "seed": 2}
    output = post(caller, "/v1/responses", {**same, "input": [ASK], "tool_choice": "required"}).json()["output"]
    assert output[-1]["type"] == "function_call" and is_right(output[-1]["arguments"])
    given = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "Rain."}
    body = {**same, "input": [ASK, output[-1], given], "max_output_tokens": 4}
    assert post(caller, "/v1/responses", body).json()["status"] in ("completed", "incomplete")


@pytest.mark.parametrize("model", MARKS)
def test_ollama_s_chat(caller: httpx.Client, model: str) -> None:
    """Its API cannot force a call; results have the name of their tool and no id."""
    call = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "weather", "arguments": {"days": 1}}}],
    }
    messages = [ASK, call, {"role": "tool", "content": "Rain.", "tool_name": "weather"}]
    body = {
        "model": model,
        "messages": messages,
        "tools": [{"type": "function", "function": FUNCTION}],
        "stream": False,
    }
    found = post(caller, "/api/chat", {**body, "options": {"num_predict": 30, "seed": 3}}).json()
    assert found["done"] and "<|" not in found["message"]["content"]
    shown = post(caller, "/api/show", {"model": model}).json()["capabilities"]
    assert "tools" in shown and ("thinking" in shown) == (model == "channels")


def test_a_schema_that_cannot_be_enforced_is_said(caller: httpx.Client) -> None:
    dated = {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}}
    tools = [{"type": "function", "function": {"name": "when", "parameters": dated}}]
    body = {"model": "tags", "messages": [ASK], "tools": tools, "max_tokens": 2}
    (warning,) = post(caller, "/v1/chat/completions", body).json()["warnings"]
    assert "when" in warning and "schema" in warning
