"""What the readers of all formats share: the characters of an answer, and the events found in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from weft.text.calls.events import Arguments, CallEnded, CallStarted, Event, Text, Thought

# Sent one character at a time, None at the end; returns whether it was a call.
Reading = Generator[None, str | None, bool]

_MAX_NAME = 256


class Scanner:
    """The characters of an answer, which readers ask for one by one, and the events that they find."""

    def __init__(
        self, names: Iterable[str] | None, schemas: Mapping[str, Any] | None, identify: Callable[[int], str]
    ) -> None:
        self._names = None if names is None else frozenset(names)
        self.schemas = schemas or {}
        self._identify = identify
        self._count = 0
        self._events: list[Event] = []
        self._parts: list[str] = []  # of the last event, a text or arguments
        self._kind: Callable[[str], Event] = Text  # of that event
        self._spaces: list[str] = []  # white space that may be beside a call, and is dropped then
        self._after_call = False
        self._again: deque[str] = deque()  # characters to read again
        self._ended = False

    # Reading: generators that receive characters.

    def next(self) -> Generator[None, str | None, str | None]:
        """The next character, None at the end."""
        if self._again:
            return self._again.popleft()
        if self._ended:
            return None
        return (yield)

    def read(self, held: list[str]) -> Generator[None, str | None, str | None]:
        """The next character, also put into `held`."""
        character = yield from self.next()
        if character is not None:
            held.append(character)
        return character

    def again(self, characters: Iterable[str]) -> None:
        """Let these characters be read again."""
        self._again.extendleft(reversed(list(characters)))

    def skipped(self, held: list[str]) -> Generator[None, str | None, str | None]:
        """The next character that is not white space."""
        while (character := (yield from self.read(held))) is not None and character.isspace():
            pass
        return character

    def back(self, character: str | None, held: list[str]) -> None:
        """Let the last character be read again."""
        if character is not None:
            held.pop()
            self._again.appendleft(character)

    def until(self, ends: str, held: list[str]) -> Generator[None, str | None, str]:
        """The text before one of the characters `ends`, at most as long as a name can be."""
        text = ""
        while len(text) < _MAX_NAME:
            character = yield from self.read(held)
            if character is None or character in ends:
                self.back(character, held)
                break
            text += character
        return text.strip()

    def mark(self, mark: str, held: list[str]) -> Reading:
        """Read `mark` if it comes next; returns whether it did."""
        read: list[str] = []
        while len(read) < len(mark):
            character = yield from self.next()
            if character is not None:
                read.append(character)
            if character is None or character != mark[len(read) - 1]:
                self.again(read)
                return False
        held += read
        return True

    def optional(self, mark: str) -> Reading:
        """Read `mark` and white space before it if they come next; returns whether they did."""
        spaces: list[str] = []
        character = yield from self.skipped(spaces)
        self.back(character, spaces)
        if (yield from self.mark(mark, [])):
            return True
        self.again(spaces)
        return False

    # Writing: events, in order.

    def known(self, name: str) -> bool:
        """Whether a call of this name can be a call."""
        plain = 0 < len(name) <= _MAX_NAME and not any(character.isspace() for character in name)
        return plain if self._names is None else name in self._names

    def start(self, name: str, id: str | None = None) -> None:
        self._spaces.clear()
        self._put(CallStarted(self._count, id or self._identify(self._count), name))

    def argue(self, text: str) -> None:
        """More of the arguments of the call that was started."""
        self._append(self._argument, text)

    def end(self, complete: bool) -> bool:
        """End the call that was started; True, as it was one."""
        self._put(CallEnded(self._count, complete))
        self._count += 1
        self._after_call = True
        return True

    def broken(self, character: str | None, started: bool) -> bool:
        """End a call that cannot be complete, if it was started; `character` is read again then."""
        if not started:
            return False
        if character is not None:
            self._again.appendleft(character)
        return self.end(False)

    def say(self, text: str) -> None:
        """More text; white space at its end waits, because it may be beside a call."""
        body = text.rstrip()
        if body:
            self._emit_text(body)
        if len(body) < len(text):
            self._spaces.append(text[len(body) :])

    def say_but(self, text: str, marks: Iterable[str], say: Callable[[str], None] | None = None) -> str:
        """Emit the part of `text` that cannot begin one of the marks, and return the rest."""
        keep = max(
            next(
                size
                for size in range(min(len(text), len(mark) - 1), -1, -1)
                if mark.startswith(text[len(text) - size :])
            )
            for mark in marks
        )
        (say or self.say)(text[: len(text) - keep])
        return text[len(text) - keep :]

    def think(self, text: str) -> None:
        """More reasoning."""
        self._append(Thought, text)

    def _argument(self, text: str) -> Event:
        return Arguments(self._count, text)

    def _emit_text(self, text: str) -> None:
        self._append(Text, "".join([*self._spaces, text]))
        self._spaces.clear()
        self._after_call = False

    def _append(self, kind: Callable[[str], Event], text: str) -> None:
        if kind != self._kind:
            self._put(None)
            self._kind = kind
        self._parts.append(text)

    def _put(self, event: Event | None) -> None:
        """Append the text or arguments so far as an event, then `event`."""
        text = "".join(self._parts)
        self._parts.clear()
        if text:
            self._events.append(self._kind(text))
        if event is not None:
            self._events.append(event)

    def _given(self) -> list[Event]:
        """The events since the last time."""
        self._put(None)
        events, self._events = self._events, []
        return events

    def _say_spaces(self) -> None:
        """Emit white space at the end of an answer, unless a call is before it."""
        if self._spaces and not self._after_call:
            self._emit_text("")
