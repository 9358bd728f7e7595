"""Calls that transformers renders with the families' own templates come back the same, at every cut of the text."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from soaking import times

from weft.text.calls.events import Arguments, CallEnded, CallStarted, Event, Text, Thought
from weft.text.calls.formats import formats_of
from weft.text.calls.history import fitted
from weft.text.calls.parser import ToolParser
from weft.text.calls.values import types_of, value_of
from weft.text.reasoning import opened_by
from weft.text.reply import ReplyReader

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden/text/tool_calls.json").read_text(encoding="utf-8"))
TOOLS, TEMPLATES = GOLDEN["tools"], GOLDEN["templates"]
ENDS = ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|call|>")  # stop tokens, which are not in the text of an answer
FORMS = {
    "qwen2.5": "hermes",
    "qwen3": "hermes",
    "hermes3": "hermes",
    "qwen3-coder": "qwen_xml",
    "qwen3.5": "qwen_xml",
    "llama3.1": "llama3",
    "llama3.2": "llama3",
    "mistral-nemo": "mistral",
    "mistral-small-3.2": "mistral_named",
    "ministral-3": "mistral_named",
    "gpt-oss": "harmony",
}


def joined(events: list[Event]) -> list[Event]:
    """The events, with texts, thoughts and arguments that follow each other joined."""
    found: list[Event] = []
    for event in events:
        last = found[-1] if found else None
        if isinstance(event, Text | Thought) and type(event) is type(last):
            found[-1] = type(event)(last.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments):
            found[-1] = Arguments(event.index, last.text + event.text)
        else:
            found.append(event)
    return found


def read(template: str, pieces: list[str], inside: bool = False) -> tuple[list[Event], ReplyReader]:
    reader = ReplyReader(template, tools=TOOLS, inside=inside)
    events = [event for piece in pieces for event in reader.add(piece).parts]
    return joined([*events, *reader.finish().parts]), reader


def test_a_template_s_marks_decide_its_format() -> None:
    assert set(TEMPLATES) == set(FORMS)
    for name, form in FORMS.items():
        found = formats_of("\n".join(TEMPLATES[name]["marks"]))
        assert found.tools == form, name
        assert found.reasons == (name in ("qwen3", "qwen3.5", "ministral-3", "gpt-oss")), name
    assert formats_of("<tool_call>{name}<arg_key>k</arg_key>").tools is None  # GLM's own way
    assert formats_of("<function=f>{}</function>").tools is None
    assert formats_of("{{ messages }}").tools is None


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMS)
def test_rendered_calls_come_back_at_every_cut(name: str) -> None:
    kept = TEMPLATES[name]
    template, inside = "\n".join(kept["marks"]), opened_by(kept["prompt_ends"])
    for number, case in enumerate(kept["cases"]):
        text = case["answer"]
        for end in ENDS:
            text = text.removesuffix(end)
        whole, reader = read(template, [text], inside)
        found = [[call.name, json.loads(call.arguments)] for call in reader.tool_calls]
        assert found == case["calls"] and not reader.text and not reader.reasoning, text
        assert all(event.complete for event in whole if isinstance(event, CallEnded))
        for place in range(times(1, 1 + number % 7), len(text), times(1, 7)):
            assert read(template, [text[:place], text[place:]], inside)[0] == whole, text[:place]
        assert read(template, list(text), inside)[0] == whole


def started(index: int, name: str, arguments: str, complete: bool = True) -> list[Event]:
    return [CallStarted(index, f"call{index:05d}", name), Arguments(index, arguments), CallEnded(index, complete)]


HEAD = "<tool_call>\n<function=note_it>\n"
TAIL = "</function>\n</tool_call>"
XML: list[tuple[str, list[Event]]] = [
    ("Hello <tool_call> you", [Text("Hello <tool_call> you")]),
    ("<tool_call>\n<function=now>\n</function>\n</tool_call>", started(0, "now", "{}")),
    (f"Hm.\n\n{HEAD}<parameter=count>\n3\n</parameter>\n{TAIL}", [Text("Hm."), *started(0, "note_it", '{"count": 3}')]),
    (f"{HEAD}<parameter=text>3</parameter>{TAIL} Done.", [*started(0, "note_it", '{"text": "3"}'), Text(" Done.")]),
    ("<function=now></function>", started(0, "now", "{}")),  # without the outer tag
    (f"{HEAD}<parameter=on>\ntrue\n</parameter>\n<parameter=on>\nfalse\n</parameter>\n{TAIL}",
     started(0, "note_it", '{"on": true}')),
    (f"{HEAD}<parameter=new>\n[1]\n</parameter>\n{TAIL}", started(0, "note_it", '{"new": [1]}')),
    (f"{HEAD}<parameter=tags>\n['a', \"b\"]\n</parameter>\n{TAIL}", started(0, "note_it", '{"tags": ["a", "b"]}')),
    (f"{HEAD}<parameter=text>\nhalf", started(0, "note_it", '{"text": "half', complete=False)),
    (f"{HEAD}oops", [*started(0, "note_it", "{", complete=False), Text("oops")]),
    ("<tool_call>\n<function=rocket>\n</function>", [Text("<tool_call>\n<function=rocket>\n</function>")]),
    ('<tool_call>{"name": "now"}</tool_call>', [Text('<tool_call>{"name": "now"}</tool_call>')]),
    ("a <func b <function=now", [Text("a <func b <function=now")]),
    (
        f"{HEAD}<parameter=text>\na\n</parameter>\n{TAIL}\n<tool_call>\n<function=now>\n{TAIL}",
        [*started(0, "note_it", '{"text": "a"}'), *started(1, "now", "{}")],
    ),
]  # fmt: skip
CALL = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}"
HARMONY: list[tuple[str, list[Event]]] = [
    ("<|channel|>final<|message|>Hello.", [Text("Hello.")]),
    (
        "<|channel|>analysis<|message|>Hm, < or <|?<|end|><|start|>assistant<|channel|>final<|message|>Yes. \n",
        [Thought("Hm, < or <|?"), Text("Yes. \n")],
    ),
    (
        f"<|channel|>analysis<|message|>Look.<|end|><|start|>assistant{CALL}<|call|>",
        [Thought("Look."), *started(0, "now", "{}")],
    ),
    (CALL, started(0, "now", "{}")),
    ("<|channel|>analysis to=functions.now<|message|> {} ", started(0, "now", "{}")),
    (" to=functions.now<|channel|>commentary json<|message|>{}<|call|>", started(0, "now", "{}")),
    ("<|channel|>commentary to=functions.now<|message|><|call|>", started(0, "now", "{}")),
    (
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
        [Text("I look."), *started(0, "now", "{}")],
    ),
    (
        "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
        [Text("One.\n\nTwo.")],
    ),
    (
        "<|channel|>commentary to=functions.rocket<|message|>{}",
        [Text("<|channel|>commentary to=functions.rocket<|message|>{}")],
    ),
    ("<|channel|>commentary to=python<|message|>1", [Text("<|channel|>commentary to=python<|message|>1")]),
    (
        '<|channel|>commentary to=functions.now<|message|>{"a": oops}',
        [*started(0, "now", '{"a": ', False), Text("oops}")],
    ),
    ("plain", [Text("plain")]),
    ('{"json": 1}', [Text('{"json": 1}')]),
    ("<|channel|>fin", []),  # cut off in a header
    (f"{CALL}<|call|><|start|>assistant{CALL}", [*started(0, "now", "{}"), *started(1, "now", "{}")]),
]


def parsed(form: Any, pieces: list[str]) -> list[Event]:
    functions = [tool["function"] for tool in TOOLS]
    schemas = {function["name"]: function["parameters"] for function in functions}
    parser = ToolParser(form, names=schemas, schemas=schemas)
    return joined([event for piece in pieces for event in parser.add(piece)] + parser.finish())


@pytest.mark.parametrize("form, cases", [("qwen_xml", XML), ("harmony", HARMONY)])
def test_tags_and_channels_at_every_cut(form: str, cases: list[tuple[str, list[Event]]]) -> None:
    for text, events in cases:
        assert parsed(form, [text]) == events, text
        assert parsed(form, list(text)) == events, text
        for place in range(1, len(text)):
            assert parsed(form, [text[:place], text[place:]]) == events, text[:place]


def test_the_name_comes_first_and_strings_as_they_are_written() -> None:
    parser = ToolParser("qwen_xml", schemas={"f": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}})
    assert parser.add("<tool_call>\n<function=f>\n") == [CallStarted(0, "call00000", "f"), Arguments(0, "{")]
    assert parser.add("<parameter=s>\nPar") == [Arguments(0, '"s": "Par')]
    assert parser.add('"is\n') == [Arguments(0, '\\"is')]
    assert parser.add("</parameter>\n<parameter=n>\n1") == [Arguments(0, '", "n": ')]
    assert parser.add("2\n</parameter>\n<") == []
    assert parser.add("/function>") == [Arguments(0, "12}"), CallEnded(0, True)]
    parser = ToolParser("harmony")
    assert parser.add("<|channel|>analysis<|message|>Let me") == [Thought("Let me")]
    assert parser.add("<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{") == [
        CallStarted(0, "call00000", "f"),
        Arguments(0, "{"),
    ]
    assert parser.add('"a": 1}') == [Arguments(0, '"a": 1}'), CallEnded(0, True)]


def turn(*ids: str | None, **more: Any) -> dict[str, Any]:
    calls = [
        {"function": {"name": f"f{n}", "arguments": "{}"}, **({"id": id} if id else {})} for n, id in enumerate(ids)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def result(content: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def test_calls_and_results_are_fitted_to_the_template() -> None:
    plain = [{"role": "user", "content": "hi"}]
    assert fitted(plain, "mistral") == plain
    first, second = turn("toolu_abc"), result("r", tool_call_id="toolu_abc")
    made = fitted([first, second], "mistral_named")
    id = made[0]["tool_calls"][0]["id"]
    assert len(id) == 9 and id.isalnum() and made[1] == {**second, "tool_call_id": id, "name": "f0"}
    assert made[0]["tool_calls"][0]["function"]["arguments"] == {}
    assert fitted([turn("abcdefghi")], "mistral")[0]["tool_calls"][0]["id"] == "abcdefghi"
    assert fitted([first, second], "hermes")[1]["tool_call_id"] == "toolu_abc"
    # as Ollama's clients write them: by name, in any order, or without either
    made = fitted([turn(None, None), result("b", name="f1"), result("a")], "qwen_xml")
    ids = [call["id"] for call in made[0]["tool_calls"]]
    assert [(one["tool_call_id"], one["name"]) for one in made[1:]] == [(ids[1], "f1"), (ids[0], "f0")]


def test_templates_of_one_call_get_them_one_by_one() -> None:
    results = [result("b", tool_call_id="2"), result("a", tool_call_id="1")]
    made = fitted([turn("1", "2", content="I look."), *results, {"role": "user", "content": "and?"}], "llama3")
    assert [message["role"] for message in made] == ["assistant", "tool", "assistant", "tool", "user"]
    assert [message["content"] for message in made] == ["I look.", "a", "", "b", "and?"]
    assert all(len(message["tool_calls"]) == 1 for message in made[0:3:2])
    both = turn("1", content="I look.", reasoning_content="Hm.")
    (made_one,) = fitted([both], "harmony")
    assert made_one["content"] == "" and made_one["thinking"] == "Hm.\n\nI look."
    assert fitted([both], "llama3")[0]["content"] == "I look."


VALUES = [
    ("12", {"type": "string"}, "12"),
    ("true", {"type": "string"}, "true"),
    ("null", {"type": "string"}, "null"),
    ("12", {"enum": ["12", "13"]}, "12"),
    ("12", {"const": "12"}, "12"),
    ("12", {"type": "integer"}, 12),
    (" 12\n", {"type": "integer"}, 12),
    ("12.0", {"type": "integer"}, 12),
    ("12", {"type": "number"}, 12),
    ("1e3", {"type": "number"}, 1000.0),
    ("True", {"type": "boolean"}, True),
    ("false", {"type": "boolean"}, False),
    ("None", {"type": ["integer", "null"]}, None),
    ('{"a": [1, true]}', {"type": "object"}, {"a": [1, True]}),
    ("{'a': [1, True]}", {"type": "object"}, {"a": [1, True]}),
    ("[1, 2]", {"type": "array"}, [1, 2]),
    ("[1, 2]", {"type": "string"}, "[1, 2]"),
    ("5", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, 5),
    ("five", {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "five"),
    ("5", {"type": ["string", "null"]}, "5"),
    ("5", True, 5),
    ("five", True, "five"),
    ("5", {"$ref": "#/$defs/s"}, "5"),
    ("5", {"allOf": [{"$ref": "#/$defs/s"}]}, "5"),
    ("5", {"$ref": "#/$defs/loop"}, 5),
    ("NaN", {"type": "number"}, "NaN"),
    ("oops", {"type": "integer"}, "oops"),  # nothing better is known: the caller sees what was written
    ("12", {"enum": [12, 13]}, 12),
]


@pytest.mark.parametrize("text, schema, value", VALUES)
def test_the_schema_gives_a_value_its_type(text: str, schema: Any, value: Any) -> None:
    root = {"$defs": {"s": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}}}
    found = value_of(text, schema, root)
    assert found == value and type(found) is type(value)


def test_the_types_of_a_schema() -> None:
    assert types_of({"type": "string"}, None) == {"string"}
    assert types_of({"oneOf": [{"type": "null"}, {"enum": ["a"]}]}, None) == {"null", "string"}
    assert types_of({"enum": [1]}, None) == {"integer", "number"}
    assert len(types_of({}, None)) == 7


XML_PARTS = [
    "<tool_call>",
    "</tool_call>",
    "<function=",
    "note_it>",
    "now>",
    "</function>",
    "<parameter=",
    "text>",
    "count>",
    "</parameter>",
    "1",
    "a",
    "<",
    ">",
]
HARMONY_PARTS = [
    "<|start|>",
    "assistant",
    "<|channel|>",
    "analysis",
    "final",
    "commentary",
    "<|message|>",
    "{",
    "}",
    "<|end|>",
    "<|call|>",
    "<|",
    "a",
]


def random_texts(parts: list[str], seed: int) -> Iterator[tuple[str, random.Random]]:
    rng = random.Random(seed)
    for _ in range(times(20_000, 150)):
        yield "".join(rng.choice(parts) for _ in range(rng.randint(1, 16))), rng


@pytest.mark.soak
@pytest.mark.parametrize(
    "form, parts",
    [("qwen_xml", [*XML_PARTS, "\n", " "]), ("harmony", [*HARMONY_PARTS, " to=functions.now", " to=x", " ", '"k": 1'])],
)
def test_random_texts_do_not_depend_on_cuts(form: str, parts: list[str]) -> None:
    for text, rng in random_texts(parts, 7):
        events = parsed(form, [text])
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        assert parsed(form, pieces) == events == parsed(form, list(text)), text
        for event in events:
            if isinstance(event, Arguments) and CallEnded(event.index, True) in events:
                assert isinstance(json.loads(event.text), dict), text
        if form == "qwen_xml" and not any(isinstance(event, CallStarted) for event in events):
            assert "".join(event.text for event in events if isinstance(event, Text)) == text
