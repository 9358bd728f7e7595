"""The items of OpenAI's responses: those of a request as messages for a template, and those of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from weft.serve.http.faults import invalid
from weft.serve.openai.events import new_id
from weft.serve.openai.messages import arguments_of, content_of, text_of
from weft.serve.responses.schemas import Item, ResponsesRequest

_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def input_items(given: str | Sequence[Item]) -> list[dict[str, Any]]:
    """The items of a request as they are stored and listed, each with an id."""
    items = [Item(role="user", content=given)] if isinstance(given, str) else given
    return [_listed(item) for item in items]


def _listed(item: Item) -> dict[str, Any]:
    shown = {name: value for name, value in msgspec.to_builtins(item).items() if value is not None}
    if isinstance(item.content, str):
        kind = "output_text" if item.role == "assistant" else "input_text"
        shown["content"] = [{"type": kind, "text": item.content}]
    return {"id": new_id(_PREFIXES.get(item.type, "item")), "status": "completed", **shown}


def messages_of(body: ResponsesRequest, earlier: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation in the form that templates read: instructions, the items of earlier responses, the input."""
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for number, item in enumerate(msgspec.convert(earlier, list[Item])):
        _add(messages, item, f"item {number} of previous_response_id")
    if isinstance(body.input, str):
        return [*messages, {"role": "user", "content": body.input}]
    for number, item in enumerate(body.input):
        _add(messages, item, f"input[{number}]")
    if not any(message["role"] != "system" for message in messages):
        raise invalid("has no message to answer", "input")
    return messages


def _add(messages: list[dict[str, Any]], item: Item, where: str) -> None:
    """Append an item; calls belong to the preceding message of the assistant."""
    if item.type == "message":
        if item.role is None or item.content is None:
            raise invalid("needs a role and content", where)
        role = "system" if item.role == "developer" else item.role
        content = content_of(item.content, f"{where}.content", pictures=role == "user")
        messages.append({"role": role, "content": content})
    elif item.type == "function_call":
        if item.name is None:
            raise invalid("is missing", f"{where}.name")
        function = {"name": item.name, "arguments": arguments_of(item.arguments or "{}", where)}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": ""})
        call = {"id": item.call_id or "", "type": "function", "function": function}
        messages[-1].setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output":
        if item.output is None:
            raise invalid("is missing", f"{where}.output")
        output = text_of(item.output, f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": output})
    elif item.type != "reasoning":  # which templates leave out of earlier turns anyway
        raise invalid(f"is {item.type!r:.60}, which is not supported", f"{where}.type")


def message_item(id: str, text: str, logprobs: list[Any]) -> dict[str, Any]:
    """A message of the assistant."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
    return {"id": id, "type": "message", "role": "assistant", "status": "completed", "content": [part]}


def reasoning_item(id: str, text: str) -> dict[str, Any]:
    part = {"type": "reasoning_text", "text": text}
    return {"id": id, "type": "reasoning", "summary": [], "content": [part], "status": "completed"}


def call_item(id: str, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": "completed",
    }
