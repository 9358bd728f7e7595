"""A forced call has the keys that its tool names and no others, unless the tool opens its objects; no key repeats."""

import json
import re
from typing import Any

import httpx
import pytest

from weft.generate.tools.schemas import closed_schema

USER = [{"role": "user", "content": "hi"}]
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}


def forced(client: httpx.Client, parameters: dict[str, Any], seed: int, **more: Any) -> tuple[str, str]:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {"model": "tiny", "messages": USER, "tools": [tool], "tool_choice": "required", "max_tokens": 300, **more}
    found = client.post("/v1/chat/completions", json={**body, "seed": seed, "temperature": 1.0, "top_p": 1.0})
    assert found.status_code == 200, found.text
    (choice,) = found.json()["choices"]
    return choice["message"]["tool_calls"][0]["function"]["arguments"], choice["finish_reason"]


def pairs(text: str) -> Any:
    """The value, with an error for a key that repeats."""

    def no_repeats(found: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(found)) == len(found), found
        return dict(found)

    return json.loads(text, object_pairs_hook=no_repeats)


@pytest.mark.parametrize(
    "parameters, keys",
    [
        ({"type": "object", "properties": {"a": NUMBER}, "required": ["a"]}, {"a"}),
        ({"properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}, {"a", "b"}),
        ({"type": "object"}, set()),
        ({"type": "object", "properties": {}}, set()),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/inner"}},
                "required": ["a"],
                "$defs": {"inner": {"type": "object", "properties": {"x": NUMBER}, "required": ["x"]}},
            },
            {"a"},
        ),
        (
            {
                "allOf": [
                    {"type": "object", "properties": {"a": NUMBER}, "required": ["a"]},
                    {"type": "object", "properties": {"b": NUMBER}, "required": ["b"]},
                ]
            },
            {"a", "b"},
        ),
    ],
)
def test_a_call_has_no_key_that_the_tool_does_not_name(
    client: httpx.Client, parameters: dict[str, Any], keys: set[str]
) -> None:
    for seed in range(4):
        arguments, reason = forced(client, parameters, seed)
        found = pairs(arguments)
        assert reason == "tool_calls" and set(found) == keys, found
        assert "a" not in found or not isinstance(found["a"], dict) or set(found["a"]) == {"x"}


def test_an_object_that_the_tool_opens_stays_open_and_repeats_no_key(client: httpx.Client) -> None:
    free = {"type": "object", "additionalProperties": NUMBER}
    parameters = {"type": "object", "properties": {"map": free}, "required": ["map"]}
    few = {str(ord(character)): 14 for character in 'a",'}  # keys of few letters, all of them a
    found = []
    for seed in range(6):
        arguments, _ = forced(client, parameters, seed, logit_bias=few, max_tokens=160)
        found.append(re.findall(r'"([^"]*)": ?\d', arguments))
        assert len(set(found[-1])) == len(found[-1]), arguments
    assert max(map(len, found)) >= 4


CLOSED = {"additionalProperties": False}


@pytest.mark.parametrize(
    "given, made",
    [
        ({"properties": {"a": {}}}, {"properties": {"a": {}}, **CLOSED}),
        ({"properties": {}, "additionalProperties": True}, {"properties": {}, "additionalProperties": True}),
        (
            {"properties": {"a": {"type": "object"}}},  # a free object inside
            {"properties": {"a": {"type": "object"}}, **CLOSED},
        ),
        (
            {"properties": {"a": {"items": {"properties": {}}}}},
            {"properties": {"a": {"items": {"properties": {}, **CLOSED}}}, **CLOSED},
        ),
        (
            {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            {"anyOf": [{"properties": {"a": {}}, **CLOSED}, {"properties": {"b": {}}, **CLOSED}]},
        ),
        (
            {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]},
            {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}], "unevaluatedProperties": False},
        ),
        (
            {"allOf": [{"$ref": "#/$defs/d"}, {"properties": {"b": {}}}], "$defs": {"d": {"properties": {"a": {}}}}},
            {
                "allOf": [{"$ref": "#/$defs/d"}, {"properties": {"b": {}}}],
                "$defs": {"d": {"properties": {"a": {}}}},
                "unevaluatedProperties": False,
            },
        ),
        ({"const": {"properties": {}}}, {"const": {"properties": {}}, **CLOSED}),
    ],
)  # fmt: skip
def test_how_a_schema_is_closed(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert closed_schema(given) == made
