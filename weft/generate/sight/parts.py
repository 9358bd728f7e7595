"""Messages with pictures: the pictures are taken out, and templates see that there was one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.errors import InputError

Messages = Sequence[Mapping[str, Any]]
KINDS = ("image", "image_url")  # what the type of a part with a picture may be


def taken_out(messages: Messages) -> tuple[Messages, list[Any]]:
    """The messages with {"type": "image"} for each picture, and the pictures, in order."""
    pictures: list[Any] = []
    if not any(isinstance(one, Mapping) and isinstance(one.get("content"), list | tuple) for one in messages):
        return messages, pictures
    written = []
    for index, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if not isinstance(content, list | tuple):
            written.append(message)
            continue
        parts = []
        for number, part in enumerate(content):
            if isinstance(part, Mapping) and part.get("type") in KINDS:
                pictures.append(_given(part, f"messages[{index}].content[{number}]"))
                part = {"type": "image"}
            parts.append(part)
        written.append({**message, "content": parts})
    return written, pictures


def _given(part: Mapping[str, Any], place: str) -> Any:
    """What a part says its picture is."""
    said = part.get(part["type"])
    if part["type"] == "image_url" and isinstance(said, Mapping):
        said = said.get("url")
    if said is None:
        what = 'must have a picture: {"type": "image", "image": a path, bytes, a data: URL, a PIL image or an array}'
        raise InputError("chat", what, field=place, given=sorted(map(str, part)))
    return said


def as_parts(messages: Messages, template: str) -> Messages:
    """The messages with texts as parts, for templates that read parts only: they would leave a plain text out."""
    if "is string" in template or not ("['type']" in template or ".type" in template or '["type"]' in template):
        return messages
    return [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if isinstance(one.get("content"), str) else one
        for one in messages
    ]
