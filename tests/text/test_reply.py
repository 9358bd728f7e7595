"""An answer is taken apart into reasoning, text and tool calls, however it is cut."""

import random

import pytest

from weft.text.reply import ReplyReader, ToolCall

TEMPLATE = "{% if tools %}<tool_call>{% endif %}<think></think>"
TOOLS = [{"type": "function", "function": {"name": "weather"}}, {"name": "clock"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Par\\u00eds"}}\n</tool_call>'
ANSWER = f"<think>\nI should look.\n</think>\n\nOne moment. {CALL}"


def read(pieces: list[str], **options: object) -> tuple[ReplyReader, str, str, list]:
    reader = ReplyReader(TEMPLATE, tools=TOOLS, **options)  # type: ignore[arg-type]
    said = [reader.add(piece) for piece in pieces] + [reader.finish()]
    events = [event for one in said for event in one.events]
    return reader, "".join(one.text for one in said), "".join(one.reasoning for one in said), events


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_do_not_depend_on_the_cut(seed: int) -> None:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(len(ANSWER)), rng.randint(0, 30)))
    pieces = [ANSWER[a:b] for a, b in zip([0, *cuts], [*cuts, len(ANSWER)])]
    reader, text, reasoning, events = read(pieces)
    assert (text.strip(), reasoning) == ("One moment.", "I should look.")
    (call,) = reader.tool_calls
    assert (call.name, call.arguments) == ("weather", '{"city": "Par\\u00eds"}')
    assert (reader.text, reader.reasoning) == (text, reasoning) and len(events) >= 3


def test_the_prompt_may_have_opened_the_reasoning() -> None:
    reader, text, reasoning, _ = read(["Hm.", "</think>", "Yes."], inside=True)
    assert (text, reasoning, reader.tool_calls) == ("Yes.", "Hm.", ())


def test_what_is_no_call_of_a_known_tool_stays_text() -> None:
    other = CALL.replace("weather", "rocket")
    assert read([other])[1] == other
    plain = ReplyReader(TEMPLATE)
    assert plain.add(CALL).text + plain.finish().text == CALL and plain.tool_calls == ()
    bare = ReplyReader("{{ messages }}", tools=TOOLS)
    assert bare.add("<think>x").text == "<think>x"
    assert read([CALL])[0].tool_calls == (ToolCall("call00000", "weather", '{"city": "Par\\u00eds"}'),)
