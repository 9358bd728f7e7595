"""A response format holds the final channel of a model that writes in channels; what it reasons before is free."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tiny
from soaking import times

import weft
from weft.errors import GrammarError
from weft.generate.grammar import Grammar, Matcher, Vocabulary
from weft.generate.tools.hold import hold_answer
from weft.serve import BackgroundServer, ModelSpec, Settings

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "cli"))
from tiny_chat import write_chat_model  # noqa: E402

TEMPLATE = (
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
    "<|message|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
SPECIAL = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>"]
GPT_OSS = {**tiny.CONFIGS["gpt_oss"], "rope_scaling": None}
ASK = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"place": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["place", "days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("channels")
    return write_chat_model(folder / "gpt-oss.gguf", template=TEMPLATE, special=SPECIAL, model=GPT_OSS)


@pytest.fixture(scope="module")
def model(path: Path) -> weft.Model:
    return weft.load(str(path), threads=1)


def started(model: weft.Model, grammar: Grammar) -> Matcher:
    vocabulary = Vocabulary(model.tokenizer, model.decoder.vocab_size, sorted(model.decoder.eos_ids))
    return hold_answer(grammar, model.chat_template, model.tokenizer).compile(vocabulary).start()


def allows(model: weft.Model, state: Matcher, text: str) -> bool:
    """Whether the whole text can be generated and end there."""
    state = state.fork()
    try:
        for token in model.tokenizer.encode(text, add_special=False, parse_special=True):
            state.advance(token)
    except GrammarError:
        return False
    return state.accepting


RIGHT, WRONG = '{"place": "Oslo", "days": 3}', '{"place": "Paris"}'
GRAMMARS = {
    "schema": (Grammar.json_schema(SCHEMA), RIGHT, WRONG),
    "object": (Grammar.json_object(), WRONG, "[1]"),
    "regex": (Grammar.regex("[0-9]{3}"), "123", "12"),
    "choices": (Grammar.choices(["yes", "no"]), "no", "maybe"),
    "lark": (Grammar.lark('start: "a" B\nB: /b+/'), "abb", "a"),
    "gbnf": (Grammar.gbnf('root ::= "x" [0-9]'), "x7", "x"),
}
HEAD, THOUGHT = (
    "<|channel|>final<|message|>",
    '<|channel|>analysis<|message|>{"a": 1, "a": <b>} hm<|end|><|start|>assistant',
)


@pytest.mark.parametrize("kind", GRAMMARS)
def test_the_final_channel_is_held_and_reasoning_is_free(model: weft.Model, kind: str) -> None:
    grammar, right, wrong = GRAMMARS[kind]
    state = started(model, grammar)
    for before in ("", THOUGHT, THOUGHT * 2):
        assert allows(model, state, f"{before}{HEAD}{right}")
        assert not allows(model, state, f"{before}{HEAD}{wrong}")
        assert not allows(model, state, f"{before}{right}")
    assert not allows(model, state, THOUGHT) and not allows(model, state, "<|channel|>analysis<|message|>hm")
    assert not allows(model, state, f"<|channel|>commentary to=functions.f<|message|>{right}")


def test_keys_of_the_final_channel_do_not_repeat(model: weft.Model) -> None:
    state = started(model, Grammar.json_schema({"type": "object", "additionalProperties": {"type": "integer"}}))
    assert allows(model, state, THOUGHT + HEAD + '{"a": 1, "b": 2}')
    for token in model.tokenizer.encode(THOUGHT + HEAD + '{"a": 1, "a', add_special=False, parse_special=True):
        state.advance(token)
    quote = model.tokenizer.id('"')
    assert quote is not None and not int(state.mask()[quote // 32]) >> quote % 32 & 1  # it would complete the key again


@pytest.mark.soak
def test_answers_of_the_model_satisfy_the_schema_after_any_reasoning(model: weft.Model) -> None:
    rng, thought = random.Random(1), 0
    for seed in range(times(200, 6)):
        ends = {model.tokenizer.id("<|end|>"): 8.0 * rng.random(), model.tokenizer.id("<|message|>"): 8.0}
        how = {"temperature": 1.0, "top_p": 1.0, "seed": seed, "max_tokens": 1500, "logit_bias": ends}
        found = model.chat(ASK, grammar=Grammar.json_schema(SCHEMA), **how)
        assert found.finish_reason == "stop"
        value = json.loads(found.text)
        assert value["place"] in ("Oslo", "Rome") and 1 <= value["days"] <= 7 and len(value) == 2
        thought += bool(found.reasoning)
        streamed = "".join(piece.text for piece in model.chat_stream(ASK, grammar=Grammar.json_schema(SCHEMA), **how))
        assert streamed == found.text
    assert thought > 0


def test_a_text_that_goes_on_is_in_its_channel_already(model: weft.Model) -> None:
    begun = [*ASK, {"role": "assistant", "content": "Answer: "}]
    how = {"seed": 1, "max_tokens": 20, "grammar": Grammar.choices(["yes", "no"])}
    found = model.chat(begun, variables={"continue_final_message": True}, **how)
    assert found.text in ("yes", "no")


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[httpx.Client]:
    settings = Settings(models=(ModelSpec("gpt-oss", str(path), {"threads": 1}),), port=0)
    with BackgroundServer(settings) as running, httpx.Client(base_url=running.url, timeout=60) as made:
        yield made


def test_every_api_holds_the_final_channel(client: httpx.Client) -> None:
    """The seed is of answers that end: a model of random weights may reason for long."""

    def asked(path: str, body: dict[str, Any]) -> Any:
        found = client.post(path, json={"model": "gpt-oss", **body})
        assert found.status_code == 200, found.text
        return found.json()

    sampling = {"temperature": 1, "top_p": 1, "seed": 3}
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA, "strict": True}}
    made = asked("/v1/chat/completions", {**sampling, "messages": ASK, "max_tokens": 3000, "response_format": form})
    texts = [made["choices"][0]["message"]["content"]]
    flat = {"format": {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}}
    made = asked("/v1/responses", {**sampling, "input": "hi", "max_output_tokens": 3000, "text": flat})
    texts += [part["text"] for item in made["output"] if item["type"] == "message" for part in item["content"]]
    options = {**sampling, "top_k": 0, "num_predict": 3000}
    made = asked("/api/chat", {"messages": ASK, "format": SCHEMA, "options": options, "stream": False})
    texts.append(made["message"]["content"])
    assert len(texts) == 3 and all(json.loads(text)["place"] in ("Oslo", "Rome") for text in texts)
