"""Messages in the form that chat templates read: content as text, tool arguments as objects, one system role."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from weft.serve.http.faults import invalid
from weft.serve.openai.schemas import Message, Part, ToolCall
from weft.serve.pictures.conversations import image_part
from weft.serve.pictures.reading import Sent


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages of a request in the form that a chat template reads."""
    return [_message(i, message) for i, message in enumerate(messages)]


def _message(number: int, message: Message) -> dict[str, Any]:
    where = f"messages[{number}]"
    role = {"developer": "system", "function": "tool"}.get(message.role, message.role)
    shown: dict[str, Any] = {"role": role}
    if message.content is not None:
        shown["content"] = content_of(message.content, f"{where}.content", pictures=role == "user")
    elif role != "assistant":
        raise invalid("is missing", f"{where}.content", code="missing_parameter")
    else:
        shown["content"] = ""
    reasoning = message.reasoning_content or message.reasoning or message.thinking
    if reasoning:
        shown["reasoning_content"] = reasoning
    if message.name:
        shown["name"] = message.name
    if message.tool_call_id:
        shown["tool_call_id"] = message.tool_call_id
    calls = message.tool_calls or ([ToolCall(function=message.function_call)] if message.function_call else [])
    if calls:
        if role != "assistant":
            raise invalid("is only allowed in messages of the assistant", f"{where}.tool_calls")
        shown["tool_calls"] = [_call(f"{where}.tool_calls[{i}]", c) for i, c in enumerate(calls)]
    return shown


def content_of(content: str | Sequence[Part], where: str, *, pictures: bool) -> str | list[dict[str, Any]]:
    """The text of a content, or texts and pictures where it has some."""
    if isinstance(content, str) or not pictures or not any("image" in part.type for part in content):
        return text_of(content, where)
    return [_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _part(part: Part, where: str) -> dict[str, Any]:
    if part.type not in ("image_url", "input_image"):
        return {"type": "text", "text": _text(part, where)}
    given = part.image_url or ""  # refused as empty, where the model would have read it
    source, field = (given, "image_url") if isinstance(given, str) else (given.url, "image_url.url")
    return image_part(Sent(source, f"{where}.{field}", f"{where}.type"))


def text_of(content: str | Sequence[Part], where: str) -> str:
    """The text of a content; parts that are not text are refused."""
    if isinstance(content, str):
        return content
    return "\n".join(_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _text(part: Part, where: str) -> str:
    if part.type not in ("text", "input_text", "output_text", "refusal"):
        raise invalid(unsupported(part.type), f"{where}.type")
    text = part.refusal if part.type == "refusal" else part.text
    if text is None:
        raise invalid("is missing", f"{where}.text", code="missing_parameter")
    return text


def unsupported(kind: str) -> str:
    """What is wrong with a part of a type that is not text."""
    if "image" in kind:
        return "is an image; images are read in messages of the user, and as image_url"
    return f"is {kind!r:.60}; only text is supported"


def _call(where: str, call: ToolCall) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": arguments_of(call.function.arguments, where)}
    return {"id": call.id or "", "type": "function", "function": function}


def arguments_of(given: str | dict[str, Any], where: str) -> dict[str, Any]:
    """The arguments of a call as an object: templates write it as JSON."""
    if not isinstance(given, str):
        return given
    try:
        found = json.loads(given or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise invalid("must be a JSON object, or one as a string", f"{where}.function.arguments")
    return found
