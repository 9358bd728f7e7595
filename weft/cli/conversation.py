"""A conversation: the system prompt, the messages and their pictures, and the JSON file they are saved in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import click

from weft.errors import InputError, NotFoundError

ROLES = ("system", "user", "assistant")
FILE_LIMIT = 64 << 20

Message = dict[str, Any]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Conversation:
    """`turns` alternate between user and assistant; the system prompt comes before them."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All messages, the system prompt first, as a chat template takes them."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    def say(self, role: str, content: str | list[dict[str, str]]) -> None:
        self.turns.append({"role": role, "content": content})

    def take_back(self) -> None:
        """Drop the last turn."""
        self.turns.pop()

    def forget(self) -> bool:
        """Drop the oldest question and its answer; False if nothing would be left."""
        if len(self.turns) < 3:
            return False
        del self.turns[:2]
        return True

    def reset(self) -> None:
        self.turns.clear()

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.messages, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Conversation:
        """A conversation from a JSON list of {"role", "content"} objects, as `save` writes it."""
        if not path.is_file():
            raise NotFoundError(
                "chat", f"the file {path} does not exist", advice="check the path; /save FILE writes one"
            )
        if path.stat().st_size > FILE_LIMIT:
            raise InputError("chat", f"{path.name} is larger than {FILE_LIMIT >> 20} MiB: not a saved conversation")
        try:
            messages = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(
                "chat", f"{path.name} is not JSON: {error}", advice="give a file that /save wrote"
            ) from None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise InputError(
                "chat",
                f'{path.name} is not a list of {{"role", "content"}} objects',
                advice="give a file that /save wrote",
            )
        first = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        turns = [{"role": m["role"], "content": m["content"]} for m in messages[first is not None :]]
        return cls(first, turns)


def images() -> Callable[[F], F]:
    """`--image FILE`, several times: pictures for a model that sees."""
    kind = click.Path(exists=True, dir_okay=False, path_type=Path)
    text = "A picture (PNG, JPEG, WebP, GIF, BMP) for a model that sees, such as SmolVLM; may be repeated."
    return click.option("--image", "images", multiple=True, type=kind, help=text)


def with_images(text: str, images: Sequence[Path]) -> Any:
    """The content of a message: the text, or its parts where it has pictures, which come first."""
    if not images:
        return text
    shown = [{"type": "image", "image": str(image.resolve())} for image in images]
    return [*shown, {"type": "text", "text": text}]


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        return False
    content = value.get("content")
    if value["role"] != "user" or not isinstance(content, list):
        return isinstance(content, str)
    return bool(content) and all(map(_is_part, content))


def _is_part(value: Any) -> bool:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind in ("text", "image") and isinstance(value.get(kind), str)
