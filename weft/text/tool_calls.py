"""Tool calls in the text of a model, found while it is generated.

Three ways in which models write them:

    hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>        Qwen, Hermes, SmolLM
    llama3    <|python_tag|>{"name": "f", "parameters": {...}}; {...}         and, as a whole answer, without the tag
    mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]            and [TOOL_CALLS]f[ARGS]{...}

The text must be decoded with special tokens written out: the marks are special tokens of many vocabularies. The result
does not depend on how the text is cut into pieces. Only white space beside a call is lost: what turns out not to be a
call is text.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Literal

from weft.frozen import frozen
from weft.text.json_text import JsonFollower

ToolFormat = Literal["hermes", "llama3", "mistral"]


@frozen
class Text:
    """Text that belongs to no call."""

    text: str


@frozen
class CallStarted:
    """A call whose name is known. `index` counts the calls of an answer."""

    index: int
    id: str
    name: str


@frozen
class Arguments:
    """More of a call's arguments, which together are the text of a JSON object."""

    index: int
    text: str


@frozen
class CallEnded:
    """The end of a call; not `complete` if its arguments ended early or became invalid JSON. The rest is text."""

    index: int
    complete: bool


Event = Text | CallStarted | Arguments | CallEnded
_Reading = Generator[
    None, str | None, bool
]  # sent one character at a time, None at the end; returns whether it was a call

_OPENINGS: dict[ToolFormat, str] = {"hermes": "<tool_call>", "llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
_MAX_NAME = 256
_ARGUMENTS = ("arguments", "parameters")


def nine_characters(index: int) -> str:
    """The id of a call if the model gives none: nine letters and digits, which Mistral's templates require."""
    return f"call{index:05d}"


class ToolParser:
    """Turns an answer, given piece by piece, into events.

    `names` are the known tools, if given: what looks like a call of another tool is text. `identify` makes the id of
    the n-th call.
    """

    def __init__(
        self,
        form: ToolFormat,
        *,
        names: Iterable[str] | None = None,
        identify: Callable[[int], str] = nine_characters,
    ) -> None:
        self._form, self._opening = form, _OPENINGS[form]
        self._names = None if names is None else frozenset(names)
        self._identify = identify
        self._count = 0
        self._events: list[Event] = []
        self._parts: list[str] = []  # of the last event, a text or arguments
        self._parts_are_text = True
        self._spaces: list[str] = []  # white space that may be beside a call, and is dropped then
        self._after_call = False
        self._again: deque[str] = deque()  # characters to read again
        self._ended = False
        self._reading = self._read_all()
        next(self._reading)

    def add(self, piece: str) -> list[Event]:
        """The events that are certain after this piece."""
        for character in piece:
            self._reading.send(character)
        return self._given()

    def finish(self) -> list[Event]:
        """The events of the text that was held back, at the end of the answer."""
        if not self._ended:
            self._ended = True
            for _ in self._reading:
                pass
        return self._given()

    def _given(self) -> list[Event]:
        self._put(None)
        events, self._events = self._events, []
        return events

    # Reading: generators that receive characters. `yield from self._next()` is the next one, None at the end.

    def _next(self) -> Generator[None, str | None, str | None]:
        if self._again:
            return self._again.popleft()
        if self._ended:
            return None
        return (yield)

    def _read_all(self) -> Generator[None, str | None, None]:
        held, bare = "", self._form == "llama3"
        while True:
            character = yield from self._next()
            if character is None:
                break
            if bare and character == "{":
                yield from self._attempt("", character)
            elif not self._opening.startswith(held + character):
                held = self._say_but_opening(held + character)
            elif held + character == self._opening:
                held = ""
                yield from self._attempt(self._opening, "")
            else:
                held += character
            bare = bare and character.isspace()
        self._say(held)
        if self._spaces and not self._after_call:
            self._emit_text("")

    def _say_but_opening(self, text: str) -> str:
        """Emit the part of `text` that cannot begin the opening mark, and return the rest."""
        keep = next(size for size in range(len(text), -1, -1) if self._opening.startswith(text[len(text) - size :]))
        self._say(text[: len(text) - keep])
        return text[len(text) - keep :]

    def _attempt(self, opening: str, first: str) -> Generator[None, str | None, None]:
        """Read a call after an opening mark; if it is not a call, the mark is text and the rest is read again."""
        held: list[str] = []
        self._again.extendleft(first)
        reading = {"hermes": self._hermes, "llama3": self._llama3, "mistral": self._mistral}[self._form]
        found = yield from reading(held)
        if not found:
            if opening:
                self._say(opening)
            else:
                self._say(held.pop(0))
            self._again.extendleft(reversed(held))

    def _hermes(self, held: list[str]) -> _Reading:
        found = yield from self._object(held)
        if found:
            yield from self._optional("</tool_call>")
        return found

    def _llama3(self, held: list[str]) -> _Reading:
        found = yield from self._object(held)
        more = found
        while more and (yield from self._optional(";")):
            held.clear()
            more = yield from self._object(held)
            if not more:
                self._say(";")
                self._again.extendleft(reversed(held))
        return found

    def _mistral(self, held: list[str]) -> _Reading:
        character = yield from self._skipped(held)
        if character != "[":
            self._back(character, held)
            return (yield from self._named(held))
        found = more = yield from self._object(held)
        while more and (yield from self._optional(",")):
            held.clear()
            more = yield from self._object(held)
            if not more:
                self._say(",")
                self._again.extendleft(reversed(held))
        if more:
            yield from self._optional("]")
        return found

    def _named(self, held: list[str]) -> _Reading:
        """`name[ARGS]{...}`, with `[CALL_ID]id` between them in some versions."""
        name = yield from self._until("[{", held)
        id = (yield from self._until("[", held)) if (yield from self._mark("[CALL_ID]", held)) else None
        yield from self._mark("[ARGS]", held)
        follower, started = JsonFollower(), False
        while not follower.ended:
            character = yield from self._read(held)
            if character is None or (not started and character == "[") or not follower.take(character):
                return self._broken(character, held, started)
            if character == "{" and not started:
                if not self._known(name):
                    return False
                started = True
                self._start(name, id)
            if started:
                self._argue(character)
        return self._end(True)

    def _object(self, held: list[str]) -> _Reading:
        """A call written as an object."""
        call, follower = _Call(), JsonFollower()
        while not follower.ended:
            character = yield from self._read(held)
            if character is None or (call.is_empty and character == "[") or not follower.take(character):
                return self._broken(character, held, call.started)
            text = call.take(character, follower)
            if not call.started and call.name is not None and (call.streams or follower.ended):
                if call.is_malformed or not self._known(call.name):
                    return False
                call.started = True
                self._start(call.name, call.id)
                text = call.so_far() if call.streams else text
            if call.started and text:
                self._argue(text)
        if not call.started:
            return False
        if not call.streams:
            self._argue(call.so_far())
        return self._end(True)

    def _broken(self, character: str | None, held: list[str], started: bool) -> bool:
        """End a call that cannot be complete; characters that were not emitted as arguments are read again."""
        if not started:
            return False
        if character is not None:
            self._again.appendleft(character)
        return self._end(False)

    def _until(self, ends: str, held: list[str]) -> Generator[None, str | None, str]:
        """The text before one of the characters `ends`, at most as long as a name can be."""
        text = ""
        while len(text) < _MAX_NAME:
            character = yield from self._read(held)
            if character is None or character in ends:
                self._back(character, held)
                break
            text += character
        return text.strip()

    def _read(self, held: list[str]) -> Generator[None, str | None, str | None]:
        character = yield from self._next()
        if character is not None:
            held.append(character)
        return character

    def _skipped(self, held: list[str]) -> Generator[None, str | None, str | None]:
        while (character := (yield from self._read(held))) is not None and character.isspace():
            pass
        return character

    def _back(self, character: str | None, held: list[str]) -> None:
        if character is not None:
            held.pop()
            self._again.appendleft(character)

    def _mark(self, mark: str, held: list[str]) -> _Reading:
        """Read `mark` if it comes next; returns whether it did."""
        read: list[str] = []
        while len(read) < len(mark):
            character = yield from self._next()
            if character is not None:
                read.append(character)
            if character is None or character != mark[len(read) - 1]:
                self._again.extendleft(reversed(read))
                return False
        held += read
        return True

    def _optional(self, mark: str) -> _Reading:
        """Read `mark` and white space before it if they come next; returns whether they did."""
        spaces: list[str] = []
        character = yield from self._skipped(spaces)
        self._back(character, spaces)
        if (yield from self._mark(mark, [])):
            return True
        self._again.extendleft(reversed(spaces))
        return False

    # Writing: events, in order.

    def _known(self, name: str) -> bool:
        plain = 0 < len(name) <= _MAX_NAME and not any(character.isspace() for character in name)
        return plain if self._names is None else name in self._names

    def _start(self, name: str, id: str | None) -> None:
        self._spaces.clear()
        self._put(CallStarted(self._count, id or self._identify(self._count), name))

    def _argue(self, text: str) -> None:
        self._parts_are_text = False
        self._parts.append(text)

    def _end(self, complete: bool) -> bool:
        self._put(CallEnded(self._count, complete))
        self._count += 1
        self._after_call = True
        return True

    def _say(self, text: str) -> None:
        body = text.rstrip()
        if body:
            self._emit_text(body)
        if len(body) < len(text):
            self._spaces.append(text[len(body) :])

    def _emit_text(self, text: str) -> None:
        self._parts_are_text = True
        self._parts += [*self._spaces, text]
        self._spaces.clear()
        self._after_call = False

    def _put(self, event: Event | None) -> None:
        """Append the text or arguments so far as an event, then `event`."""
        text = "".join(self._parts)
        self._parts.clear()
        if text:
            self._events.append(Text(text) if self._parts_are_text else Arguments(self._count, text))
        if event is not None:
            self._events.append(event)


class _Call:
    """What is known so far of a call that is written as an object."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.id: str | None = None
        self.started = self.streams = False
        self.is_empty, self.is_malformed = True, False
        self._value: list[str] = []  # of the member that is being read
        self._arguments: list[str] = []
        self._argued = False

    def take(self, character: str, follower: JsonFollower) -> str:
        """Take a character that the follower accepted; returns it if it is part of the arguments, else ""."""
        self.is_empty = self.is_empty and character.isspace()
        is_arguments = follower.key in _ARGUMENTS and not self._argued
        text = ""
        if follower.inside:
            self._value.append(character)
            if is_arguments and self._value[0] == "{":
                self.streams = True
                self._arguments.append(character)
                text = character
        if follower.completed:
            self._member(follower.key, "".join(self._value))
            self._value = []
        return text

    def so_far(self) -> str:
        """The arguments that came before the name; an empty object if there were none."""
        return "".join(self._arguments) or "{}"

    def _member(self, key: str | None, value: str) -> None:
        """Use a member that is complete; of several with one name the first counts."""
        if key == "name" and self.name is None and value.startswith('"'):
            self.name = json.loads(value)
        elif key == "id" and value.startswith('"'):
            self.id = json.loads(value)
        elif key in _ARGUMENTS and not self._argued:
            self._argued = True
            if not self.streams and value != "null":
                self._unquote(value)

    def _unquote(self, value: str) -> None:
        """Take arguments that are not an object; they must be a string that holds one."""
        inner = json.loads(value) if value.startswith('"') else ""
        try:
            self.is_malformed = not isinstance(json.loads(inner), dict)
        except (ValueError, RecursionError):
            self.is_malformed = True
        self._arguments = [inner]


@frozen
class Formats:
    """How a model writes tool calls, and the marks around its reasoning; None if it does not."""

    tools: ToolFormat | None
    reasoning: tuple[str, str] | None


def formats_of(template: str | Mapping[str, str]) -> Formats:
    """The formats that a chat template uses."""
    text = template if isinstance(template, str) else "\n".join(template.values())
    tools: ToolFormat | None = None
    if "[TOOL_CALLS]" in text:
        tools = "mistral"
    elif (
        "<tool_call>" in text and "<function=" not in text
    ):  # Qwen's coders write calls as tags, which is another format
        tools = "hermes"
    elif "<|python_tag|>" in text or "ipython" in text:
        tools = "llama3"
    marks = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
    return Formats(tools, next((pair for pair in marks if pair[1] in text), None))
