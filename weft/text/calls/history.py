"""Calls and results of a conversation, in the form that a template of their format takes.

Clients write them as they came from any model: with ids of any length or none, several calls in a message, arguments as
text. Templates are stricter: Mistral's demand ids of nine letters and digits, Llama's and harmony's one call a message.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.text.calls.events import ToolFormat
from weft.text.calls.formats import SINGLE

_NINE = re.compile(r"[A-Za-z0-9]{9}")


def fitted(messages: Sequence[Mapping[str, Any]], form: ToolFormat | None) -> list[Mapping[str, Any]]:
    """The messages with calls and results as a template of this format takes them; without calls, as they are."""
    if not any(_has_calls(message) or _role(message) == "tool" for message in messages):
        return list(messages)
    made = list(_identified(messages))
    if form == "harmony":
        made = [_thought(message) for message in made]
    if form in SINGLE:
        made = list(_one_by_one(made))
    return [_short_ids(message) for message in made] if form in ("mistral", "mistral_named") else made


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _has_calls(message: Any) -> bool:
    return isinstance(message, Mapping) and bool(message.get("tool_calls"))


def _identified(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The messages, every call with an id and every result with that of its call and the name of its function.

    A result without an id answers the oldest call of its name, or else the oldest that has no result.
    """
    waiting: dict[str, str] = {}  # ids of calls without a result, and their names
    count = 0
    for message in messages:
        if _has_calls(message):
            calls = []
            for call in message["tool_calls"]:
                function = call.get("function", call)
                calls.append({**call, "id": call.get("id") or f"call{count:05d}", **_objects(call)})
                waiting[calls[-1]["id"]] = function.get("name", "")
                count += 1
            message = {**message, "tool_calls": calls}
        elif _role(message) == "tool":
            name = message.get("name")
            same = next((id for id, known in waiting.items() if known == name), None)
            id = message.get("tool_call_id") or same or next(iter(waiting), None)
            known = waiting.pop(id, None) if id is not None else None
            added = {"tool_call_id": id, "name": name or known}
            message = {**message, **{key: value for key, value in added.items() if value}}
        yield message


def _objects(call: Mapping[str, Any]) -> dict[str, Any]:
    """The function of a call with its arguments as an object: templates write them as JSON, or one by one."""
    wrapped = "function" in call
    function = call["function"] if wrapped else call
    try:
        found = json.loads(function["arguments"] or "{}") if isinstance(function.get("arguments"), str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return {}
    return {"function": {**function, "arguments": found}} if wrapped else {"arguments": found}


def _thought(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Harmony's template takes text or reasoning beside a call, not both."""
    thought = next((message[key] for key in ("reasoning_content", "thinking", "reasoning") if message.get(key)), None)
    if not _has_calls(message) or not thought or not isinstance(message.get("content"), str) or not message["content"]:
        return message
    both = f"{thought}\n\n{message['content']}"
    return {**message, "reasoning_content": both, "thinking": both, "content": ""}


def _one_by_one(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The messages with one call each, followed by its result."""
    results = {message.get("tool_call_id"): message for message in messages if _role(message) == "tool"}
    moved = set[Any]()
    for message in messages:
        if not _has_calls(message) or len(message["tool_calls"]) < 2:
            if _role(message) != "tool" or message.get("tool_call_id") not in moved:
                yield message
            continue
        for number, call in enumerate(message["tool_calls"]):
            rest = message if number == 0 else {"role": message["role"], "content": ""}
            yield {**rest, "tool_calls": [call]}
            if call["id"] in results:
                moved.add(call["id"])
                yield results[call["id"]]


def _short_ids(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if _has_calls(message):
        return {**message, "tool_calls": [{**call, "id": _nine(call["id"])} for call in message["tool_calls"]]}
    return {**message, "tool_call_id": _nine(message["tool_call_id"])} if message.get("tool_call_id") else message


def _nine(id: Any) -> str:
    """The id itself if it has nine letters and digits, else nine that stand for it."""
    text = str(id)
    return text if _NINE.fullmatch(text) else hashlib.sha256(text.encode()).hexdigest()[:9]
