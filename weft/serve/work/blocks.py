"""An answer as a sequence of blocks: reasoning, text and tool calls, of which one is open at a time.

Anthropic's messages and OpenAI's responses stream an answer this way; each writes a block's events in its own shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from weft.text.calls.events import Arguments, CallEnded, CallStarted, Text, Thought

if TYPE_CHECKING:
    from weft.serve.work.chatting import Delta

Kind = Literal["reasoning", "text", "call"]


class BlockWriter(ABC):
    """Encodes the deltas of one answer as the events of its blocks."""

    def __init__(self) -> None:
        self.open: Kind | None = None  # the block that is being written

    def write(self, delta: Delta) -> bytes:
        """The events of one delta."""
        written = b""
        for event in delta.parts:
            if isinstance(event, Text | Thought):
                kind: Kind = "text" if isinstance(event, Text) else "reasoning"
                written += self._turn_to(kind) + self.add(kind, event.text, delta)
            elif isinstance(event, CallStarted):
                written += self.close() + self._begin("call", event)
            elif isinstance(event, Arguments):
                written += self.add("call", event.text, delta)
            elif isinstance(event, CallEnded):
                written += self.close()
        return written

    def close(self) -> bytes:
        """End the open block, if there is one."""
        if self.open is None:
            return b""
        kind, self.open = self.open, None
        return self.end(kind)

    def empty_text(self) -> bytes:
        """Begin a text block, for an answer without any block."""
        return self._begin("text")

    def _turn_to(self, kind: Kind) -> bytes:
        return b"" if self.open == kind else self.close() + self._begin(kind)

    def _begin(self, kind: Kind, call: CallStarted | None = None) -> bytes:
        self.open = kind
        return self.begin(kind, call)

    @abstractmethod
    def begin(self, kind: Kind, call: CallStarted | None) -> bytes:
        """The events that begin a block; `call` is set for tool calls."""

    @abstractmethod
    def add(self, kind: Kind, text: str, delta: Delta) -> bytes:
        """The event that adds text, or arguments of a call, to the open block."""

    @abstractmethod
    def end(self, kind: Kind) -> bytes:
        """The events that end the open block."""
