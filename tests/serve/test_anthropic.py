"""The official anthropic client gets what it expects: blocks, streams, tools, counts, its own errors."""

from collections.abc import Iterator
from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")

from weft.serve import BackgroundServer  # noqa: E402

USER = [{"role": "user", "content": "Say something."}]
GREEDY = {"extra_body": {"temperature": 0}}
WEATHER = {
    "name": "weather",
    "description": "The weather of a place.",
    "input_schema": {
        "type": "object",
        "properties": {"place": {"enum": ["Oslo", "Rome"]}},
        "required": ["place"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def claude(server: BackgroundServer) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_a_message_is_answered_and_counted(claude):
    made = claude.messages.create(model="tiny", max_tokens=8, messages=USER, system="Be brief.", **GREEDY)
    assert made.type == "message" and made.role == "assistant" and made.content[0].type == "text"
    assert made.stop_reason in ("max_tokens", "end_turn")
    counted = claude.messages.count_tokens(model="tiny", messages=USER, system="Be brief.")
    assert counted.input_tokens == made.usage.input_tokens + made.usage.cache_read_input_tokens


def test_a_stream_accumulates_to_the_whole(claude):
    asked = {"model": "tiny", "max_tokens": 30, "messages": USER, **GREEDY}
    whole = claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_is_named(claude):
    first = claude.messages.create(model="tiny", max_tokens=30, messages=USER, **GREEDY).content[0].text
    stop = next(character for character in first if character.isascii() and character.isprintable())
    made = claude.messages.create(
        model="tiny", max_tokens=30, messages=USER, **GREEDY, stop_sequences=["\0never", stop]
    )
    assert made.stop_reason == "stop_sequence" and made.stop_sequence == stop
    assert made.content[0].text == first[: first.index(stop)]


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_forced_tool_is_used_whole_and_streamed(claude, choice):
    asked = {"model": "tiny", "max_tokens": 200, "messages": USER, "tools": [WEATHER], "tool_choice": choice}
    made = claude.messages.create(**asked, **GREEDY)
    (block,) = made.content
    assert made.stop_reason == "tool_use" and block.type == "tool_use" and block.input["place"] in ("Oslo", "Rome")
    with claude.messages.stream(**asked, **GREEDY) as stream:
        final = stream.get_final_message()
    assert final.content[0].input == block.input


def test_results_of_tools_and_prefilled_answers(claude):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "And?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {"place": "Oslo"}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Rain"}]},
                {"type": "text", "text": "So?"},
            ],
        },
        {"role": "assistant", "content": "It is"},
    ]
    made = claude.messages.create(model="tiny", max_tokens=3, messages=messages, tools=[WEATHER])
    # sampled: it may end before the limit
    assert made.usage.output_tokens == 3 or (made.usage.output_tokens < 3 and made.stop_reason == "end_turn")


def test_errors_have_anthropics_shape(claude, server):
    image = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
    for kind, asked in (
        (anthropic.NotFoundError, {"model": "absent", "messages": USER, "max_tokens": 1}),
        (anthropic.BadRequestError, {"model": "tiny", "messages": USER, "max_tokens": 0}),
        (
            anthropic.BadRequestError,
            {"model": "tiny", "messages": [{"role": "user", "content": [image]}], "max_tokens": 1},
        ),
        (anthropic.BadRequestError, {"model": "tiny", "messages": USER, "max_tokens": 1, "extra_body": {"nope": 1}}),
        (
            anthropic.BadRequestError,
            {"model": "tiny", "messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 1},
        ),
    ):
        with pytest.raises(kind) as caught:
            claude.messages.create(**asked)
        assert caught.value.body["type"] == "error" and caught.value.body["error"]["message"]
