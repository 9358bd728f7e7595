"""A whole loop of tools, with a model whose template knows them and one whose template does not: offered, called, the
result given back, answered in text. In the second case the answer says that the generic prompt was used."""

import json
from typing import Any

import httpx
import pytest

from weft.text.prompts.generic_tools import needs_generic_tools, with_generic_tools

ASK = {"role": "user", "content": "What is the weather in Oslo?"}
PARAMETERS = {"type": "object", "properties": {"place": {"enum": ["Oslo", "Rome"]}}, "required": ["place"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}
RESULT = "Rain, 7 degrees."


def post(client: httpx.Client, path: str, body: dict[str, Any]) -> httpx.Response:
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return found


def events(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def chat(client: httpx.Client, model: str, stream: bool, messages: list[Any], **more: Any) -> tuple[Any, str, Any]:
    """The message of the answer, its finish reason, and the response."""
    body = {"model": model, "messages": messages, "max_tokens": 160, "seed": 1, "tools": [TOOL], **more}
    found = post(client, "/v1/chat/completions", {**body, "stream": stream})
    if not stream:
        (choice,) = found.json()["choices"]
        return choice["message"], choice["finish_reason"], found
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    reason = ""
    for chunk in events(found):
        for choice in chunk["choices"]:
            message["content"] += choice["delta"].get("content") or ""
            reason = choice["finish_reason"] or reason
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"] = [{**call, "function": {"name": call["function"]["name"], "arguments": ""}}]
                message["tool_calls"][0]["function"]["arguments"] += call["function"]["arguments"]
    return message, reason, found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model, generic", [("tiny", None), ("plain", "generic")])
def test_a_loop_in_chat_completions(client: httpx.Client, model: str, generic: str | None, stream: bool) -> None:
    call, reason, found = chat(client, model, stream, [ASK], tool_choice="required")
    assert reason == "tool_calls" and found.headers.get("x-weft-tools") == generic
    (made,) = call["tool_calls"]
    assert json.loads(made["function"]["arguments"])["place"] in ("Oslo", "Rome")
    result = {"role": "tool", "tool_call_id": made["id"], "content": RESULT}
    last, reason, found = chat(client, model, stream, [ASK, call, result], logit_bias={"65": 100}, max_tokens=5)
    assert last["content"] == "AAAAA" and reason == "length" and found.headers.get("x-weft-tools") == generic
    first = events(found)[0] if stream else found.json()
    said = [warning for warning in first.get("warnings", ()) if warning.startswith("tools:")]
    assert bool(said) == bool(generic)


@pytest.mark.parametrize("model, generic", [("tiny", None), ("plain", "generic")])
def test_a_loop_in_ollama_s_api(client: httpx.Client, model: str, generic: str | None) -> None:
    """Ollama's API cannot force a call, so the first one is written by the client."""
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}
    messages = [ASK, call, {"role": "tool", "content": RESULT, "tool_name": "weather"}]
    for stream in (False, True):
        body = {"model": model, "messages": messages, "tools": [TOOL], "options": {"num_predict": 4}, "stream": stream}
        found = post(client, "/api/chat", body)
        last = json.loads(found.text.splitlines()[-1])
        assert last["done"] and found.headers.get("x-weft-tools") == generic


@pytest.mark.parametrize("model, generic", [("tiny", None), ("plain", "generic")])
def test_a_loop_in_anthropic_s_api(client: httpx.Client, model: str, generic: str | None) -> None:
    tool = {"name": "weather", "input_schema": PARAMETERS}
    same = {"model": model, "max_tokens": 160, "tools": [tool]}
    found = post(client, "/v1/messages", {**same, "messages": [ASK], "tool_choice": {"type": "any"}})
    (block,) = found.json()["content"]
    assert block["type"] == "tool_use" and found.headers.get("x-weft-tools") == generic
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT}
    messages = [ASK, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
    for stream in (False, True):
        found = post(client, "/v1/messages", {**same, "messages": messages, "max_tokens": 4, "stream": stream})
        kinds = [one["type"] for one in events(found)] if stream else [found.json()["type"]]
        assert kinds[-1] in ("message", "message_stop") and found.headers.get("x-weft-tools") == generic


def test_a_loop_in_the_responses_api(client: httpx.Client) -> None:
    tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
    same = {"model": "plain", "tools": [tool], "max_output_tokens": 160, "seed": 1}
    found = post(client, "/v1/responses", {**same, "input": [ASK], "tool_choice": "required"})
    (call,) = found.json()["output"]
    given = {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}
    found = post(client, "/v1/responses", {**same, "input": [ASK, call, given], "max_output_tokens": 4})
    assert found.json()["output"][0]["type"] == "message" and found.headers["x-weft-tools"] == "generic"


def test_the_model_reads_the_tools_the_call_and_its_result(client: httpx.Client) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"place": "Oslo"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": RESULT},
        {"role": "user", "content": "And?"},
    ]
    body = {"model": "plain", "messages": messages, "tools": [TOOL]}
    prompt = post(client, "/apply-template", body).json()["prompt"]
    system, question, called, result, _ = prompt.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n") and '"name": "weather"' in system and "<tool_call>" in system
    assert question.startswith("user\nWhat")
    assert called == (
        'assistant\n<tool_call>{"name": "weather", "arguments": {"place": "Oslo"}}</tool_call><|im_end|>\n'
    )
    assert result == f"user\nThe tool weather returned:\n{RESULT}\nAnd?<|im_end|>\n"


def test_what_the_model_is_asked_to_write_is_read_as_a_call(client: httpx.Client) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"place": "Rome"}}</tool_call>'
    body = {"model": "plain", "messages": [ASK], "tools": [TOOL], "max_tokens": 200}
    found = post(client, "/v1/chat/completions", {**body, "tool_choice": "auto", "guided_choice": None})
    assert found.headers["x-weft-tools"] == "generic"
    from weft.text.reply import ReplyReader

    reader = ReplyReader("{{ messages }}", tools=[TOOL])
    reader.add(f"I look it up. {call}")
    reader.finish()
    assert reader.text == "I look it up." and reader.tool_calls[0].arguments == '{"place": "Rome"}'


def test_a_template_that_knows_tools_keeps_its_own_way() -> None:
    calls = [{"role": "tool", "content": "x"}]
    assert not needs_generic_tools("<tool_call>", calls, [TOOL])
    assert needs_generic_tools("{{ messages }}", calls, None) and not needs_generic_tools("{{ messages }}", [ASK], None)
    assert not needs_generic_tools("{{ message.role == 'tool' }}", calls, None)  # in a format that weft cannot read
    assert needs_generic_tools("{{ message.role == 'tool' }}", calls, [TOOL])


def test_a_template_without_a_system_message_is_told_of_tools_by_the_user(tmp_path: Any) -> None:
    from tiny_chat import TEMPLATE, write_chat_model

    import weft

    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TEMPLATE
    model = weft.load(str(write_chat_model(tmp_path / "m.gguf", template=refusing)), threads=1)
    text = model.tokenizer.decode(model.chat_ids([ASK], tools=[TOOL]), skip_special=False)
    assert text.startswith("<|im_start|>user\nYou can use tools.") and ASK["content"] in text
    with pytest.raises(weft.WeftError, match="no system"):
        model.chat_ids([{"role": "system", "content": "mine"}, ASK], tools=[TOOL])


def test_contents_of_several_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "one"}]
    messages = [{"role": "system", "content": parts}, ASK, {"role": "tool", "content": parts}]
    made = with_generic_tools(messages, [TOOL])
    assert [message["role"] for message in made] == ["system", "user"]
    assert made[0]["content"][0] == parts[0] and "weather" in made[0]["content"][1]["text"]
    assert made[1]["content"][-1] == parts[0]
