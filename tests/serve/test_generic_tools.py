"""Tools for a model whose template has none, tried on the one in the catalogue, SmolLM2: what it reads and does.

A model of 135 million weights does not call a tool of its own accord, whatever the wording of the prompt (five were
tried); asked to, it calls the right one with the right arguments, and answers from the result.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from weft.text.chat import render
from weft.text.prompts.generic_tools import with_generic_tools

TEMPLATE = Path(__file__).resolve().parents[1] / "golden" / "text" / "templates" / "smollm2.jinja"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
PAIR = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "get_weather", "description": "The weather of a city.", "parameters": CITY},
    },
    {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": PAIR}},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "rain", "temperature": 7}'},
]
PROMPT = """<|im_start|>system
You can use tools. Each line describes one of them as JSON:
{"name": "get_weather", "description": "The weather of a city.", "parameters": {"type": "object", "properties": \
{"city": {"type": "string"}}, "required": ["city"]}}
{"name": "add", "description": "Add two numbers.", "parameters": {"type": "object", "properties": \
{"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}

To use a tool, answer with its name and arguments in this form, and nothing else:
<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>
You are then given the result. Answer the user in plain words as soon as you know enough.<|im_end|>
<|im_start|>user
What is the weather in Paris?<|im_end|>
<|im_start|>assistant
<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call><|im_end|>
<|im_start|>user
The tool get_weather returned:
{"sky": "rain", "temperature": 7}<|im_end|>
<|im_start|>assistant
"""


def test_what_the_model_reads() -> None:
    template = TEMPLATE.read_text(encoding="utf-8")
    assert render(template, with_generic_tools(TALK, TOOLS), bos_token="<|im_start|>", eos_token="<|im_end|>") == PROMPT


def test_a_page_of_another_origin_sees_that_the_prompt_is_generic(serve: Any) -> None:
    """Every header that an answer of weft's own may have is exposed to scripts."""
    running = serve(allowed_origins=("http://there.example",))
    headers = {"Origin": "http://there.example"}
    body = {"model": "plain", "messages": TALK[:1], "tools": TOOLS, "max_tokens": 1}
    found = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    exposed = {name.strip() for name in found.headers["access-control-expose-headers"].split(",")}
    assert found.headers["x-weft-tools"] == "generic" and "x-weft-tools" in exposed
    package = Path(__file__).resolve().parents[2] / "weft" / "serve"
    named = {
        name for path in package.rglob("*.py") for name in re.findall(r'b"(x-weft-[a-z]+)"', path.read_text("utf-8"))
    }
    assert named - {"x-weft-rejoin"} <= exposed  # which requests have


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Iterator[httpx.Client]:
    from weft.serve import BackgroundServer, ModelSpec, Settings

    server = BackgroundServer(Settings(models=(ModelSpec("smol", str(smollm2), {"threads": 2}),), port=0))
    with server as running, httpx.Client(base_url=running.url, timeout=120) as made:
        yield made


def asked(client: httpx.Client, messages: list[Any], **more: Any) -> dict[str, Any]:
    body = {"model": "smol", "messages": messages, "tools": TOOLS, "temperature": 0, "max_tokens": 60, **more}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 200 and found.headers["x-weft-tools"] == "generic", found.text
    message: dict[str, Any] = found.json()["choices"][0]["message"]
    return message


@pytest.mark.weights
@pytest.mark.parametrize(
    "question, name, arguments",
    [
        ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
        ("Add 12 and 30.", "add", {"a": 12, "b": 30}),
        ("What is 17 plus 4?", "add", {"a": 17, "b": 4}),
    ],
)
def test_a_forced_call_is_the_right_one(smol: httpx.Client, question: str, name: str, arguments: dict) -> None:
    (call,) = asked(smol, [{"role": "user", "content": question}], tool_choice="required")["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, arguments)


@pytest.mark.weights
def test_the_answer_is_made_of_the_result(smol: httpx.Client) -> None:
    said = smol.post("/apply-template", json={"model": "smol", "messages": TALK, "tools": TOOLS}).json()["prompt"]
    assert said == PROMPT
    answer = asked(smol, TALK)
    assert "rain" in answer["content"] and "7" in answer["content"] and not answer.get("tool_calls")
    plain = asked(smol, [{"role": "user", "content": "Who wrote Hamlet?"}])
    assert "Shakespeare" in plain["content"]
