"""Grammars hold calls to the model's format and to the tools' schemas, forced and where a model may call."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from soaking import times

import weft
from weft.errors import GrammarError, InputError
from weft.generate.grammar import Matcher, Vocabulary
from weft.generate.tools.hold import hold
from weft.text.calls.events import Arguments, CallEnded, CallStarted

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))
GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden/text/tool_calls.json").read_text(encoding="utf-8"))
TOOLS, TEMPLATES = GOLDEN["tools"], GOLDEN["templates"]
ENDS = ("<|im_end|>\n", "<|eot_id|>", "</s>", "<|call|>")
MARKS = {
    "hermes": ["<tool_call>"],
    "qwen_xml": ["<tool_call>", "<function=", "<parameter="],
    "llama3": ["<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]"],
    "mistral_named": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    "harmony": ["<|channel|>", "<|message|>"],
}
SPECIAL = [
    *("<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>"),
]


def loaded(folder: Path, form: str, special: list[str]) -> weft.Model:
    from tiny_chat import TEMPLATE, write_chat_model

    template = f"{TEMPLATE}{{# {' '.join(MARKS[form])} #}}"
    return weft.load(str(write_chat_model(folder / f"{form}.gguf", template=template, special=special)), threads=1)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, weft.Model]:
    folder = tmp_path_factory.mktemp("callers")
    return {form: loaded(folder, form, SPECIAL) for form in MARKS}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> weft.Model:
    """A model in whose vocabulary no mark is a token."""
    return loaded(tmp_path_factory.mktemp("plain"), "hermes", [])


def matcher(model: weft.Model, template: str, tools: list[Any], choice: str, **more: Any) -> Matcher:
    held = hold(tools, template, model.tokenizer, choice=choice, **more)
    assert held.grammar is not None and not held.loose
    vocabulary = Vocabulary(model.tokenizer, model.decoder.vocab_size, sorted(model.decoder.eos_ids))
    return held.grammar.compile(vocabulary).start()


def allows(model: weft.Model, state: Matcher, text: str) -> bool:
    """Whether the whole text can be generated and end there."""
    state = state.fork()
    try:
        for token in model.tokenizer.encode(text, add_special=False, parse_special=True):
            state.advance(token)
    except GrammarError:
        return False
    return state.accepting


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("as_tokens", [True, False])
def test_what_templates_write_is_allowed(
    models: dict[str, weft.Model], plain: weft.Model, name: str, as_tokens: bool
) -> None:
    if name == "gpt-oss" and not as_tokens:
        pytest.skip("harmony needs its tokens")
    model, template = models["hermes"] if as_tokens else plain, "\n".join(TEMPLATES[name]["marks"])
    states = {choice: matcher(model, template, TOOLS, choice) for choice in ("auto", "required")}
    for case in TEMPLATES[name]["cases"]:
        text = case["answer"].split("</think>\n\n")[-1]
        for end in ENDS:
            text = text.removesuffix(end)
        if "</parameter>" in str(case["calls"]) and "<function=" in text:
            continue  # read, but not written: a value that ends is plain
        assert allows(model, states["auto"], text), text
        assert len(case["calls"]) > 1 or allows(model, states["required"], text), text
        said = "<|channel|>final<|message|>Hello." if name == "gpt-oss" else "Hello {there}: 1 < 2."
        assert allows(model, states["auto"], said) and not allows(model, states["required"], said)


NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ONE = [{"type": "function", "function": {"name": "f", "parameters": NUMBER}}]
CALLS = {
    "hermes": '<tool_call>\n{"name": "NAME", "arguments": {"n": VALUE}}\n</tool_call>',
    "qwen_xml": "<tool_call>\n<function=NAME>\n<parameter=n>\nVALUE\n</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "NAME", "parameters": {"n": VALUE}}',
    "mistral": '[TOOL_CALLS][{"name": "NAME", "arguments": {"n": VALUE}}]',
    "mistral_named": '[TOOL_CALLS]NAME[ARGS]{"n": VALUE}',
    "harmony": '<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{"n": VALUE}',
}


@pytest.mark.parametrize("form", MARKS)
def test_other_names_and_other_types_are_not_allowed(models: dict[str, weft.Model], form: str) -> None:
    model = models[form]
    for choice in ("auto", "required"):
        state = matcher(model, model.chat_template, ONE, choice)
        written = CALLS[form].replace("NAME", "f").replace("VALUE", "12")
        assert allows(model, state, written)
        assert not allows(model, state, written.replace("12", '"12"'))
        assert not allows(model, state, written.replace("12", ""))
        other = CALLS[form].replace("NAME", "g").replace("VALUE", "12")
        assert allows(model, state, other) == (form == "llama3" and choice == "auto")  # a text like any other


def test_several_calls_and_text_between_them(models: dict[str, weft.Model]) -> None:
    for form in ("hermes", "qwen_xml", "mistral_named"):
        model, call = models[form], CALLS[form].replace("NAME", "f").replace("VALUE", "1")
        state = matcher(model, model.chat_template, ONE, "auto")
        assert allows(model, state, f"First {call}\n{call} done.")
        alone = matcher(model, model.chat_template, ONE, "auto", parallel=False)
        assert allows(model, alone, f"First {call}") and not allows(model, alone, f"{call}\n{call}")
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    state = matcher(models["harmony"], models["harmony"].chat_template, ONE, "auto")
    for text in (
        f"{thought}<|channel|>final<|message|>Yes.",
        thought + CALLS["harmony"].replace("NAME", "f").replace("VALUE", "1"),
    ):
        assert allows(models["harmony"], state, text)
    tagged = "<|python_tag|>" + CALLS["llama3"].replace("NAME", "f").replace("VALUE", "1")
    for choice in ("auto", "required"):
        assert allows(models["llama3"], matcher(models["llama3"], models["llama3"].chat_template, ONE, choice), tagged)


def test_what_cannot_be_enforced(models: dict[str, weft.Model]) -> None:
    """A call that may come is left free, and its tool is named; a forced one takes another form, or is refused."""
    model = models["qwen_xml"]
    dated = {"type": "object", "properties": {"d": {"type": "string", "format": "date"}}, "required": ["d"]}
    tools = [{"type": "function", "function": {"name": "dated", "parameters": dated}}, ONE[0]]
    held = hold(tools, model.chat_template, model.tokenizer)
    assert held.form == "qwen_xml" and held.grammar is not None and held.loose == ("dated",)
    forced = hold(tools[:1], model.chat_template, model.tokenizer, choice="required")
    assert forced.form == "llama3" and forced.grammar is not None
    wrong = [{"type": "function", "function": {"name": "f", "parameters": {"type": "nothing"}}}]
    for form in MARKS:
        caller = models[form]
        assert hold(wrong, caller.chat_template, caller.tokenizer).loose == ("f",)
        with pytest.raises(weft.WeftError):
            hold(wrong, caller.chat_template, caller.tokenizer, choice="required")
    with pytest.raises(InputError, match="not among the tools"):
        hold(ONE, model.chat_template, model.tokenizer, choice="named", named="g")


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    kinds = ["string", "enum", "integer", "number", "boolean", "null", "pattern"] + ["array", "object"] * (depth < 2)
    kind = rng.choice(kinds)
    if kind == "string":
        return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)}
    if kind == "pattern":
        return {
            "type": "string",
            "pattern": rng.choice(["^[a-c]{1,4}$", "^(?:x|yy)z$", "^[0-9]{3}-[A-F]+$"]),
            "maxLength": 20,
        }
    if kind == "enum":
        return {"enum": rng.sample(["1", "true", "a b", "ü\"'", "null"], rng.randint(1, 4))}
    if kind in ("integer", "number"):
        return {"type": kind, "minimum": rng.randint(-50, 0), "maximum": rng.randint(1, 999)}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "maxItems": rng.randint(0, 3)}
    return random_object(rng, depth + 1) if kind == "object" else {"type": kind}


def random_object(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    names = rng.sample(["alpha", "b", "c_1", "Delta", "é"], rng.randint(0, 3))
    required = [name for name in names if rng.random() < 0.6]
    return {"type": "object", "properties": {name: random_schema(rng, depth) for name in names}, "required": required}


def random_tools(rng: random.Random) -> list[dict[str, Any]]:
    names = rng.sample(["look", "look_up", "f", "note-it"], rng.randint(1, 3))
    return [{"type": "function", "function": {"name": name, "parameters": random_object(rng)}} for name in names]


def check(tools: list[dict[str, Any]], name: str, arguments: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}[name]
    jsonschema.validate(json.loads(arguments), schema)


ASK = [{"role": "user", "content": "hi"}]


@pytest.mark.soak
@pytest.mark.parametrize("form", MARKS)
def test_generated_calls_satisfy_random_schemas(models: dict[str, weft.Model], form: str) -> None:
    """A model of random weights writes calls of random tools: forced ones, every one of which is valid."""
    model, rng = models[form], random.Random(form)
    ends = {model.tokenizer.id(mark): 8.0 for mark in ("<|end|>", "<|message|>")}
    for seed in range(times(200, 5)):
        tools = random_tools(rng)
        how = {"temperature": 1.0, "top_p": 1.0, "seed": seed, "max_tokens": 1500, "logit_bias": ends}
        found = model.chat(ASK, tools=tools, tool_choice="required", **how)
        assert found.finish_reason == "stop" and len(found.tool_calls) == 1 and not found.text, found
        check(tools, found.tool_calls[0].name, found.tool_calls[0].arguments)


def opening(model: weft.Model, form: str) -> Iterator[int]:
    """Tokens that begin a call, and those that end one."""
    for mark in {"harmony": ["<|channel|>", "<|end|>"], "llama3": ["<|python_tag|>"]}.get(form, ["[TOOL_CALLS]"]):
        token = model.tokenizer.id(mark)
        assert token is not None
        yield token


@pytest.mark.soak
@pytest.mark.parametrize("form", [form for form in MARKS if form not in ("hermes", "qwen_xml")])
def test_calls_that_a_model_chooses_to_make_satisfy_their_schemas(models: dict[str, weft.Model], form: str) -> None:
    model, rng = models[form], random.Random(form)
    calls = 0
    for seed in range(times(100, 6)):
        tools = random_tools(rng)
        bias = {**dict.fromkeys(opening(model, form), 9.0), **{eos: 3.0 for eos in model.decoder.eos_ids}}
        how = {"temperature": 1.0, "top_p": 1.0, "seed": seed, "max_tokens": 400, "logit_bias": bias}
        open_call: dict[int, list[str]] = {}
        for piece in model.chat_stream(ASK, tools=tools, **how):
            for event in piece.events:
                if isinstance(event, CallStarted):
                    open_call[event.index] = [event.name]
                elif isinstance(event, Arguments):
                    open_call[event.index].append(event.text)
                elif isinstance(event, CallEnded) and event.complete:
                    name, *arguments = open_call[event.index]
                    check(tools, name, "".join(arguments))
                    calls += 1
    assert calls >= times(20, 2)


def test_tool_choice_in_python(models: dict[str, weft.Model]) -> None:
    model = models["hermes"]
    tools = [*ONE, {"type": "function", "function": {"name": "g"}}]
    found = model.chat(ASK, tools=tools, tool_choice="g", seed=1, max_tokens=200)
    assert [call.name for call in found.tool_calls] == ["g"] and found.tool_calls[0].arguments == "{}"
    with pytest.raises(InputError, match="not among the tools"):
        model.chat(ASK, tools=tools, tool_choice="h")
    with pytest.raises(InputError, match="needs tools"):
        model.chat(ASK, tool_choice="required")
    assert not model.chat(ASK, tools=tools, tool_choice="none", max_tokens=1).tool_calls
