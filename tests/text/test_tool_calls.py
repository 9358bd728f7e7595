"""Tool calls and reasoning come out of a text the same way however it is cut, and nothing of it is lost."""

import json
import random
from pathlib import Path

import pytest
from soaking import times

from weft.text.calls.events import Arguments, CallEnded, CallStarted, Event, Text, ToolFormat
from weft.text.calls.formats import formats_of
from weft.text.calls.parser import ToolParser
from weft.text.json_text import JsonFollower
from weft.text.reasoning import ReasoningSplit, Split, opened_by

TEMPLATES = Path(__file__).resolve().parents[1] / "golden" / "text" / "templates"


def parsed(form: ToolFormat, pieces: list[str], **options: object) -> list[Event]:
    """The events of all pieces, texts and arguments that follow each other joined."""
    parser = ToolParser(form, **options)  # type: ignore[arg-type]
    joined: list[Event] = []
    for event in [event for piece in pieces for event in parser.add(piece)] + parser.finish():
        last = joined[-1] if joined else None
        if isinstance(event, Text) and isinstance(last, Text):
            joined[-1] = Text(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments):
            joined[-1] = Arguments(event.index, last.text + event.text)
        else:
            joined.append(event)
    return joined


def call(index: int, name: str, arguments: str, id: str | None = None, complete: bool = True) -> list[Event]:
    started = CallStarted(index, id or f"call{index:05d}", name)
    return [started, Arguments(index, arguments), CallEnded(index, complete)]


CASES: list[tuple[ToolFormat, str, list[Event]]] = [
    ("hermes", "Hello.", [Text("Hello.")]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', call(0, "f", '{"a": 1}')),
    (
        "hermes",
        'Wait.\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>\n<tool_call>{"name":"g","arguments":{"s":"}<"}}</tool_call>\n',
        [Text("Wait."), *call(0, "f", "{}"), *call(1, "g", '{"s":"}<"}')],
    ),
    ("hermes", '<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>', call(0, "f", '{"a": [1, {}]}')),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call(0, "f", '{"a": 1}')),
    ("hermes", '<tool_call>{"name": "f"}</tool_call> Done.', [*call(0, "f", "{}"), Text(" Done.")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', call(0, "f", "{}")),
    ("hermes", '<tool_call>{"id": "x1", "name": "f", "arguments": {}}', call(0, "f", "{}", "x1")),
    ("hermes", "<tool_call>not JSON</tool_call>", [Text("<tool_call>not JSON</tool_call>")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": 3}</tool_call>',
        [Text('<tool_call>{"name": "f", "arguments": 3}</tool_call>')],
    ),
    ("hermes", '<tool_call>{"nome": 1}</tool_call>', [Text('<tool_call>{"nome": 1}</tool_call>')]),
    ("hermes", '<tool_call>{"name": "f"', [Text('<tool_call>{"name": "f"')]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', call(0, "f", '{"a": ', complete=False)),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": oops}}',
        [*call(0, "f", '{"a": ', complete=False), Text("oops}}")],
    ),
    (
        "hermes",
        '<tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>',
        [Text("<tool_call>"), *call(0, "f", "{}")],
    ),
    ("hermes", "a < b <tool_ <tool_call", [Text("a < b <tool_ <tool_call")]),
    ("hermes", "  spaces  \n", [Text("  spaces  \n")]),
    ("llama3", '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', call(0, "f", '{"a": 1}')),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}', call(0, "f", '{"a": 1}')),
    (
        "llama3",
        ' {"type": "function", "name": "f", "parameters": {}}; {"name": "g", "parameters": {}}',
        [*call(0, "f", "{}"), *call(1, "g", "{}")],
    ),
    ("llama3", '{"answer": 42}', [Text('{"answer": 42}')]),
    ("llama3", 'Use {"name": "f", "parameters": {}}', [Text('Use {"name": "f", "parameters": {}}')]),
    ("llama3", "<|python_tag|>print(1)", [Text("<|python_tag|>print(1)")]),
    ("llama3", '{"name": "f", "parameters": {}}; and', [*call(0, "f", "{}"), Text("; and")]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]', call(0, "f", '{"a": 1}')),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "123456789"}, {"name": "g", "arguments": {}}]',
        [*call(0, "f", "{}"), *call(1, "g", "{}")],
    ),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', call(0, "f", '{"a": 1}')),
    (
        "mistral",
        '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}',
        [*call(0, "f", '{"a": 1}', "abcdefghi"), *call(1, "g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS] nothing of the kind", [Text("[TOOL_CALLS] nothing of the kind")]),
    ("mistral", "[TOOL_CALLS][1, 2]", [Text("[TOOL_CALLS][1, 2]")]),
    ("mistral", "a [list] [TOOL", [Text("a [list] [TOOL")]),
]


@pytest.mark.parametrize("form, text, events", CASES)
def test_calls_are_found_however_the_text_is_cut(form, text, events):
    assert parsed(form, [text]) == events
    assert parsed(form, list(text)) == events
    rng = random.Random(3)
    for _ in range(30):
        assert parsed(form, cut(text, rng)) == events


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)])]


MARKS = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "name", "null", "1", " ", "\n"]
CALLS = ['"name"', '"arguments"', '"f"', '{"name":"f","arguments":{', '{"name": "g", "parameters": {}}']
PARTS = [*MARKS, *CALLS, *'[]{},;:"\\']


@pytest.mark.soak
@pytest.mark.parametrize("form", ["hermes", "llama3", "mistral"])
def test_random_texts_lose_nothing_and_do_not_depend_on_cuts(form):
    rng = random.Random(11)
    for _ in range(times(15_000, 300)):
        text = "".join(rng.choice(PARTS) for _ in range(rng.randint(1, 14)))
        events = parsed(form, [text])
        assert parsed(form, cut(text, rng)) == events == parsed(form, list(text)), text
        said = "".join(event.text for event in events if isinstance(event, Text | Arguments))
        if not any(isinstance(event, CallStarted) for event in events):
            assert said == text
        for event in events:
            if isinstance(event, Arguments) and CallEnded(event.index, True) in events:
                assert isinstance(json.loads(event.text), dict)
            assert not isinstance(event, Arguments) or event.text in text or event.text == "{}"


def test_arguments_come_while_they_are_written():
    parser = ToolParser("hermes")
    assert parser.add('<tool_call>{"name": "f", "arguments": {"city": "Par') == [
        CallStarted(0, "call00000", "f"),
        Arguments(0, '{"city": "Par'),
    ]
    assert parser.add('is"}') == [Arguments(0, 'is"}')]


def test_a_tool_that_there_is_not_is_text():
    text = '{"name": "Bob", "parameters": {"age": 3}}'
    assert parsed("llama3", [text], names=["f"]) == [Text(text)]
    assert parsed("llama3", [text], names=["Bob"]) == call(0, "Bob", '{"age": 3}')


def test_long_texts_take_time_in_proportion():
    for text in ["<tool_call>" * 4_000, '<tool_call>{"a":"' * 3_000, " " * 50_000, "[" * 50_000, '{"a":' * 10_000]:
        for form in ("hermes", "llama3", "mistral"):
            events = parsed(form, [text])
            assert "".join(event.text for event in events if isinstance(event, Text)) == text


@pytest.mark.parametrize("text", ['{"a": [1, -2.5e+3, true, {"b": "\\u00e9\\n"}], "c": null}', "[[], {}]", "{}"])
def test_json_is_followed_to_its_end(text):
    follower = JsonFollower()
    assert all(follower.take(character) for character in text) and follower.ended
    assert not follower.take(" ")


@pytest.mark.parametrize(
    "text", ["{a", '{"a" 1', '{"a": 01,', '{"a": tru}', "[1,]", "{,", '{"a": "\\x', '{"a": "\n', "1", "[1}", "[" * 65]
)
def test_what_is_not_json_is_noticed(text):  # fmt: skip
    follower = JsonFollower()
    assert not all(follower.take(character) for character in text)


def test_json_is_what_the_json_module_says():
    rng = random.Random(5)
    for _ in range(3_000):
        parts = [*'{}[]":,1.-eE0 ', "true", '"a"', '"a":']
        text = '{"a":' + "".join(rng.choice(parts) for _ in range(rng.randint(1, 6)))
        follower, size = JsonFollower(), 0
        while size < len(text) and follower.take(text[size]):
            size += 1
        is_json = follower.ended and not text[size:].strip()
        try:
            json.loads(text)
        except ValueError:
            assert not is_json, text
        else:
            assert is_json, text


REASONING = [
    ("<think>\nHm.\n</think>\n\nYes.\n", False, "Hm.", "Yes.\n"),
    ("\n<think>a</think>b", False, "a", "b"),
    ("Hm. So\n</think>\nYes.", True, "Hm. So", "Yes."),
    ("<think>\n\n</think>\n\nYes.", False, "", "Yes."),
    ("Yes, <think> is a tag.</think>", False, "", "Yes, <think> is a tag.</think>"),
    ("<think>never ends  ", False, "never ends", ""),
    ("<thin", False, "", "<thin"),
    ("<think>a < b </thin c</think>d</think>", False, "a < b </thin c", "d</think>"),
    ("  ", False, "", "  "),
]


@pytest.mark.parametrize("text, inside, reasoning, answer", REASONING)
def test_reasoning_is_told_from_the_answer_however_the_text_is_cut(text, inside, reasoning, answer):
    rng = random.Random(7)
    for pieces in [[text], list(text), *(cut(text, rng) for _ in range(30))]:
        split = ReasoningSplit(inside=inside)
        parts = [*(split.add(piece) for piece in pieces), split.finish()]
        whole = Split("".join(part.reasoning for part in parts), "".join(part.answer for part in parts))
        assert whole == Split(reasoning, answer)


def test_a_prompt_may_open_the_reasoning():
    assert opened_by("<|im_start|>assistant\n<think>\n")
    assert not opened_by("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    "name, tools, reasoning",
    [
        ("qwen2.5", "hermes", None),
        ("qwen3", "hermes", ("<think>", "</think>")),
        ("llama3.2", "llama3", None),
        ("mistral", "mistral", None),
        ("mistral-nemo", "mistral", None),
        ("gemma3", None, None),
        ("tinyllama", None, None),
    ],
)
def test_a_template_says_what_its_model_writes(name, tools, reasoning):
    formats = formats_of((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"))
    assert (formats.tools, formats.reasoning) == (tools, reasoning)
