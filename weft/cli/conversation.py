"""A conversation: the system's words, what was said in turn, and the file it is kept in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import InputError, NotFoundError

ROLES = ("system", "user", "assistant")
FILE_LIMIT = 64 << 20

Message = dict[str, str]


@dataclass
class Conversation:
    """`turns` alternate between user and assistant; the system's words stand before them."""

    system: str | None = None
    turns: list[Message] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """All of it, as a chat template takes it."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    def say(self, role: str, content: str) -> None:
        self.turns.append({"role": role, "content": content})

    def take_back(self) -> None:
        """Drop the last turn."""
        self.turns.pop()

    def forget(self) -> bool:
        """Drop the oldest question and its answer, where something is left after them."""
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
            raise NotFoundError(f"[chat] no such file: {path}")
        if path.stat().st_size > FILE_LIMIT:
            raise InputError(f"[chat] {path.name} is over {FILE_LIMIT >> 20} MiB; that is no conversation")
        try:
            messages = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InputError(f"[chat] {path.name} is not JSON: {error}") from None
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise InputError(f'[chat] {path.name} is not a list of {{"role", "content"}} objects')
        first = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        turns = [{"role": m["role"], "content": m["content"]} for m in messages[first is not None :]]
        return cls(first, turns)


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") in ROLES and isinstance(value.get("content"), str)
