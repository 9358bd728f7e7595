"""OpenAI's responses API, with the official client: items, streams that its own accumulator accepts, calls."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from weft.serve import BackgroundServer  # noqa: E402

WEATHER = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Rome"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def ai(server: BackgroundServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_a_text_is_answered_and_counted(ai):
    made = ai.responses.create(
        model="tiny", input="hi", instructions="Be brief.", max_output_tokens=10, extra_body={"seed": 1}
    )
    assert made.status in ("completed", "incomplete") and made.output[0].type == "message"
    assert made.usage.total_tokens == made.usage.input_tokens + made.usage.output_tokens
    if made.status == "incomplete":
        assert made.incomplete_details.reason == "max_output_tokens"


def test_a_stream_is_what_the_client_accumulates(ai):
    asked = {"model": "tiny", "input": "hi", "max_output_tokens": 3000, "extra_body": {"seed": 2}}
    whole = ai.responses.create(**asked)
    with ai.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    kinds = [event.type for event in events]
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete")
    numbers = [event.sequence_number for event in events if hasattr(event, "sequence_number")]
    assert numbers == sorted(numbers)
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "weather"}])
def test_a_forced_call_is_an_item_whole_and_streamed(ai, choice):
    asked = {"model": "tiny", "input": "hi", "tools": [WEATHER], "tool_choice": choice, "extra_body": {"seed": 3}}
    made = ai.responses.create(**asked)
    (call,) = made.output
    assert call.type == "function_call" and json.loads(call.arguments)["place"] in ("Oslo", "Rome")
    with ai.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.output[0].arguments == call.arguments


def test_a_call_and_its_result_are_part_of_the_conversation(ai):
    items = [
        {"role": "user", "content": "And now?"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"place": "Oslo"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "Rain"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks"}]},
    ]
    assert ai.responses.create(model="tiny", input=items, tools=[WEATHER], max_output_tokens=2).output


def test_a_schema_holds(ai):
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    made = ai.responses.create(model="tiny", input="hi", text=text, max_output_tokens=100)
    assert isinstance(json.loads(made.output_text)["a"], bool)


@pytest.mark.parametrize(
    "extra, param",
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": []}, "input"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
    ],
)
def test_what_would_need_memory_or_eyes_is_refused_by_name(ai, extra, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ai.responses.create(**{"model": "tiny", "input": "hi", **extra})
    assert caught.value.param == param
