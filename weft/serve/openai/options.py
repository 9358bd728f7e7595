"""Options of a request, as the engine takes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.errors import WeftError
from weft.serve.http.faults import blaming, invalid
from weft.serve.openai.schemas import ResponseFormat, Sampled, StructuredOutputs
from weft.serve.work.generating import Names

if TYPE_CHECKING:
    from weft.generate import Grammar

NAMES = Names({"prompt": "messages", "stop_ids": "stop_token_ids"}, 'truncate: "left", "middle" or "right"')
_AS_THEY_ARE = (
    "temperature",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "n",
    "truncate",
    "speculate",
    "reasoning_budget",
    "prefix_cache",
    "adapter",
)


def engine_options(body: Sampled, default_tokens: int) -> dict[str, Any]:
    """The fields of Sampling and Request that the body sets."""
    found: dict[str, Any] = {name: getattr(body, name) for name in _AS_THEY_ARE if getattr(body, name) is not None}
    if body.top_k is not None:
        found["top_k"] = max(0, body.top_k)  # -1 is how vLLM says off
    if body.seed is not None:
        found["seed"] = body.seed % 2**64
    if body.stop is not None:
        found["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    if body.stop_token_ids:
        found["stop_ids"] = tuple(body.stop_token_ids)
    if body.logit_bias:
        found["logit_bias"] = body.logit_bias
    if body.priority:
        found["priority"] = -body.priority  # vLLM: the lower goes first
    asked = getattr(body, "max_completion_tokens", None)
    found["max_tokens"] = next((value for value in (asked, body.max_tokens) if value is not None), default_tokens)
    if found.get("min_tokens", 0) > found["max_tokens"]:
        raise invalid(f"is {found['min_tokens']}; it must be at most max_tokens ({found['max_tokens']})", "min_tokens")
    return found


def grammar_of(body: Sampled) -> Callable[[], Grammar] | None:
    """A function that builds the grammar that the body asks for; at most one of the fields may be used."""
    found: list[tuple[str, Callable[[], Grammar]]] = []
    if body.response_format is not None and body.response_format.type != "text":
        found.append(("response_format", lambda f=body.response_format: of_format(f)))  # type: ignore[misc]
    if body.structured_outputs is not None:
        found.append(("structured_outputs", lambda s=body.structured_outputs: _structured(s)))  # type: ignore[misc]
    guided = StructuredOutputs(
        json=body.guided_json, regex=body.guided_regex, choice=body.guided_choice, grammar=body.guided_grammar
    )
    if guided != StructuredOutputs():
        found.append(("guided_json", lambda: _structured(guided)))
    if len(found) > 1:
        raise invalid(f"cannot be combined with {found[0][0]}", found[1][0])
    if not found:
        return None
    name, make = found[0]
    return lambda: _named(name, make)


def _named(name: str, make: Callable[[], Grammar]) -> Grammar:
    """The grammar; an error in it names the field."""
    try:
        return make()
    except WeftError as error:
        raise blaming(name, error, code="invalid_grammar") from None


def of_format(wanted: ResponseFormat) -> Grammar:
    from weft.generate import Grammar

    if wanted.type == "json_schema":
        schema = wanted.json_schema.schema if wanted.json_schema is not None else wanted.schema
        if schema is None:
            raise invalid("is missing", "response_format.json_schema.schema", code="missing_parameter")
        return Grammar.json_schema(schema)
    return Grammar.json_schema(wanted.schema) if wanted.schema is not None else Grammar.json_object()


def _structured(asked: StructuredOutputs) -> Grammar:
    from weft.generate import Grammar

    given = [name for name in ("json", "regex", "choice", "grammar", "json_object") if getattr(asked, name) is not None]
    if len(given) != 1:
        raise invalid("must have one of json, regex, choice, grammar, json_object", "structured_outputs")
    if asked.json is not None:
        return Grammar.json_schema(_schema(asked.json))
    if asked.regex is not None:
        return Grammar.regex(asked.regex)
    if asked.choice is not None:
        return Grammar.choices(asked.choice)
    if asked.grammar is not None:
        return grammar_text(asked.grammar)
    return Grammar.json_object()


def grammar_text(text: str) -> Grammar:
    """A grammar in llama.cpp's notation, or else in Lark's."""
    from weft.generate import Grammar

    return Grammar.gbnf(text) if "::=" in text else Grammar.lark(text)


def _schema(given: dict[str, Any] | str | bool) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except (ValueError, RecursionError):
        raise invalid("is a string that is not JSON", "structured_outputs.json") from None
