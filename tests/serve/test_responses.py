"""OpenAI's responses API, with the official client: items, streams that its own accumulator accepts, calls."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

openai = pytest.importorskip("openai")

from weft.serve import BackgroundServer, Limits  # noqa: E402
from weft.serve.responses.store import Stored, StoredResponses  # noqa: E402

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
        ({"background": True, "store": False}, "background"),
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


def test_a_response_goes_on_from_an_earlier_one(ai):
    asked = {"model": "tiny", "max_output_tokens": 8, "temperature": 0}
    first = ai.responses.create(input="hi", instructions="Be brief.", **asked)
    second = ai.responses.create(input="And you?", previous_response_id=first.id, **asked)
    third = ai.responses.create(input=[{"role": "user", "content": "Why?"}], previous_response_id=second.id, **asked)
    said = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And you?"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "Why?"},
    ]
    assert second.output_text == ai.responses.create(input=said[:3], **asked).output_text
    whole = ai.responses.create(input=said, **asked)  # instructions are those of one response
    assert third.output_text == whole.output_text and third.usage.input_tokens == whole.usage.input_tokens
    assert third.previous_response_id == second.id and third.store is True


def test_a_stored_response_is_fetched_listed_and_deleted(ai):
    asked = {"model": "tiny", "max_output_tokens": 4, "metadata": {"a": "b"}}
    first = ai.responses.create(input="hi", **asked)
    second = list(ai.responses.create(input="more", previous_response_id=first.id, stream=True, **asked))[-1].response
    for made in (first, second):
        assert ai.responses.retrieve(made.id).to_dict() == ai.responses.retrieve(made.id).to_dict()
        assert ai.responses.retrieve(made.id).output_text == made.output_text
    pages = ai.responses.input_items.list(second.id, order="asc", limit=2)
    texts = [item.content[0].text for item in pages]
    assert texts == ["hi", first.output_text, "more"]
    assert [item.content[0].text for item in ai.responses.input_items.list(second.id)] == texts[::-1]
    with pytest.raises(openai.BadRequestError, match="background"):
        ai.responses.retrieve(first.id, stream=True)
    ai.responses.delete(first.id)
    for gone in (first.id, "resp_absent", ai.responses.create(input="x", store=False, **asked).id):
        with pytest.raises(openai.NotFoundError):
            ai.responses.retrieve(gone)
        with pytest.raises(openai.NotFoundError):
            ai.responses.delete(gone)
        with pytest.raises(openai.BadRequestError) as caught:
            ai.responses.create(input="x", previous_response_id=gone, **asked)
        assert caught.value.code == "previous_response_not_found"
    assert ai.responses.create(input="x", previous_response_id=second.id, **asked).output  # it holds what it needs


def wait_for(ai, id):
    while (made := ai.responses.retrieve(id)).status == "in_progress":
        time.sleep(0.01)
    return made


def test_a_response_in_the_background_is_fetched_later_and_its_events_rejoined(ai):
    asked = {"model": "tiny", "input": "hi", "max_output_tokens": 300, "extra_body": {"seed": 2}}
    whole = ai.responses.create(**asked)
    begun = ai.responses.create(background=True, **asked)
    assert begun.status == "in_progress" and begun.background
    assert wait_for(ai, begun.id).output_text == whole.output_text
    with ai.responses.create(background=True, stream=True, **asked) as stream:
        first = [next(stream) for _ in range(6)]
    id, last = first[0].response.id, first[-1].sequence_number
    rest = list(ai.responses.retrieve(id, stream=True, starting_after=last))
    assert [event.sequence_number for event in first + rest] == list(range(len(first + rest)))
    deltas = [event.delta for event in first + rest if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    assert rest[-1].response.status in ("completed", "incomplete") and wait_for(ai, id).output_text == whole.output_text


def test_a_response_in_the_background_is_cancelled_or_deleted(ai):
    asked = {"model": "tiny", "input": "hi", "background": True, "max_output_tokens": 3000}
    schema = {"format": {"type": "json_schema", "name": "x", "schema": {"type": "string", "minLength": 2900}}}
    begun = ai.responses.create(text=schema, **asked)
    with pytest.raises(openai.BadRequestError, match="in_progress"):
        ai.responses.create(model="tiny", input="x", previous_response_id=begun.id)
    assert ai.responses.cancel(begun.id).status == "cancelled"
    assert ai.responses.cancel(begun.id).status == "cancelled" == ai.responses.retrieve(begun.id).status
    begun = ai.responses.create(text=schema, **asked)
    ai.responses.delete(begun.id)
    with pytest.raises(openai.NotFoundError):
        ai.responses.retrieve(begun.id)
    plain = ai.responses.create(model="tiny", input="x", max_output_tokens=2)
    with pytest.raises(openai.BadRequestError, match="background"):
        ai.responses.cancel(plain.id)


def test_a_key_sees_only_its_own_responses(serve):
    url = serve(keys=("one", "two")).url
    one, two = (openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) for key in ("one", "two"))
    asked = {"model": "tiny", "input": "hi", "max_output_tokens": 2}
    made = one.responses.create(**asked)
    assert one.responses.retrieve(made.id).id == made.id
    for use in (two.responses.retrieve, two.responses.delete, two.responses.cancel, two.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            use(made.id)
    with pytest.raises(openai.BadRequestError, match="not stored"):
        two.responses.create(previous_response_id=made.id, **asked)


def test_stored_responses_stay_within_their_number_and_bytes():
    def response(number: int, size: int = 100) -> Stored:
        return Stored("", {"id": f"r{number}", "text": "x" * size}, [])

    store = StoredResponses(Limits(responses=3, responses_bytes=1000))
    for number in range(4):
        store.put(response(number))
        store.get("r0", "")  # the most recently used one stays
    assert [store.get(f"r{n}", "") is not None for n in range(4)] == [True, False, True, True]
    store.put(response(4, 800))
    assert len(store) == 2 and store.bytes <= 1000
    store.put(response(5, 5000))  # too large: not stored, and the others stay
    assert len(store) == 2 and store.get("r5", "") is None
