"""Tools for models whose chat template has no way to write them.

The system message describes the tools and how to call one; calls of the conversation become text of the assistant, and
their results messages of the user. The model is asked to write calls as Hermes does, which `../calls` reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from weft.text.calls.formats import formats_of
from weft.text.chat import Message, Template

_BEFORE = "You can use tools. Each line describes one of them as JSON:"
_AFTER = (
    "To use a tool, answer with its name and arguments in this form, and nothing else:\n"
    '<tool_call>{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}</tool_call>\n'
    "You are then given the result. Answer the user in plain words as soon as you know enough."
)


def needs_generic_tools(
    template: Template, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None
) -> bool:
    """Whether tools, or calls and results in the messages, have to be written as plain text for this template."""
    if formats_of(template).tools is not None:
        return False
    if tools:
        return True
    text = template if isinstance(template, str) else "\n".join(template.values())
    return "tool" not in text and any(
        message.get("role") == "tool" or message.get("tool_calls") for message in messages
    )


def with_generic_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None, *, system: bool = True
) -> list[dict[str, Any]]:
    """The messages with the tools, calls and results as plain text; none has the role `tool` or has `tool_calls`.

    Without `system` the tools are described in the first message of the user: some templates have no system message.
    """
    called = {
        call.get("id"): _function(call)["name"] for message in messages for call in message.get("tool_calls") or ()
    }
    plain: list[dict[str, Any]] = []
    for message in messages:
        shown = _plain(message, called)
        # results and the user's next words are one turn: many templates demand that user and assistant alternate
        if plain and shown["role"] == plain[-1]["role"] == "user":
            shown = _joined(plain.pop(), shown["content"])
        plain.append(shown)
    return _described(plain, _instructions(tools), system) if tools else plain


def _function(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The function of a tool or a call, which some callers give without its wrapper."""
    found: Mapping[str, Any] = given.get("function", given)
    return found


def _instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    lines = [json.dumps(_function(tool), ensure_ascii=False) for tool in tools]
    return "\n".join([_BEFORE, *lines, "", _AFTER])


def _plain(message: Message, called: Mapping[Any, str]) -> dict[str, Any]:
    rest = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
    if message.get("role") == "tool":
        name = message.get("name") or called.get(message.get("tool_call_id"))
        which = f"The tool {name}" if name else "The tool"
        return _joined({"role": "user", "content": f"{which} returned:"}, message.get("content"))
    calls = [_called(call) for call in message.get("tool_calls") or ()]
    return _joined({**rest, "content": rest.get("content") or ""}, "\n".join(calls)) if calls else rest


def _called(call: Mapping[str, Any]) -> str:
    function = _function(call)
    arguments = function.get("arguments") or {}
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'<tool_call>{{"name": {json.dumps(function["name"], ensure_ascii=False)}, "arguments": {text}}}</tool_call>'


def _joined(message: dict[str, Any], more: Any) -> dict[str, Any]:
    """A message with another content after its own; contents are texts, or lists of parts."""
    own = message.get("content") or ""
    if isinstance(own, str) and (more is None or isinstance(more, str)):
        return {**message, "content": "\n".join(filter(None, (own, more)))}
    parts = [
        [{"type": "text", "text": given}] if isinstance(given, str) else list(given) for given in (own, more or "")
    ]
    return {**message, "content": [*parts[0], *parts[1]]}


def _described(messages: list[dict[str, Any]], text: str, system: bool) -> list[dict[str, Any]]:
    role = "system" if system else "user"
    place = next((number for number, message in enumerate(messages) if message.get("role") == role), None)
    if place is None:
        return [{"role": role, "content": text}, *messages]
    described = (
        _joined(messages[place], "\n" + text)
        if system
        else _joined({"role": role, "content": text + "\n"}, messages[place].get("content"))
    )
    return [*messages[:place], described, *messages[place + 1 :]]
