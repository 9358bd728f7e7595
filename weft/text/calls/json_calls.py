"""Tool calls whose arguments are JSON: Hermes, Llama 3 and Mistral."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from weft.text.json_text import JsonFollower

if TYPE_CHECKING:
    from weft.text.calls.scanner import Reading, Scanner

_ARGUMENTS = ("arguments", "parameters")


def hermes(parser: Scanner, held: list[str]) -> Reading:
    """An object, then `</tool_call>`."""
    found = yield from _object(parser, held)
    if found:
        yield from parser.optional("</tool_call>")
    return found


def llama3(parser: Scanner, held: list[str]) -> Reading:
    """Objects with semicolons between them."""
    return (yield from _objects(parser, held, ";"))


def mistral(parser: Scanner, held: list[str]) -> Reading:
    """A list of objects; or a name and arguments, as newer models write it."""
    character = yield from parser.skipped(held)
    if character != "[":
        parser.back(character, held)
        return (yield from _named(parser, held))
    found = yield from _objects(parser, held, ",")
    if found:
        yield from parser.optional("]")
    return found


def _objects(parser: Scanner, held: list[str], separator: str) -> Reading:
    found = more = yield from _object(parser, held)
    while more and (yield from parser.optional(separator)):
        held.clear()
        more = yield from _object(parser, held)
        if not more:
            parser.say(separator)
            parser.again(held)
    return found


def _named(parser: Scanner, held: list[str]) -> Reading:
    """`name[ARGS]{...}`, with `[CALL_ID]id` between them in some versions."""
    name = yield from parser.until("[{", held)
    id = (yield from parser.until("[", held)) if (yield from parser.mark("[CALL_ID]", held)) else None
    yield from parser.mark("[ARGS]", held)
    return (yield from arguments(parser, name, held, id))


def arguments(parser: Scanner, name: str, held: list[str], id: str | None = None) -> Reading:
    """The arguments of a call whose name is known, as an object."""
    follower, started = JsonFollower(), False
    while not follower.ended:
        character = yield from parser.read(held)
        if character is None or (not started and character == "[") or not follower.take(character):
            return parser.broken(character, started)
        if character == "{" and not started:
            if not parser.known(name):
                return False
            started = True
            parser.start(name, id)
        if started:
            parser.argue(character)
    return parser.end(True)


def _object(parser: Scanner, held: list[str]) -> Reading:
    """A call written as an object."""
    call, follower = _Call(), JsonFollower()
    while not follower.ended:
        character = yield from parser.read(held)
        if character is None or (call.is_empty and character == "[") or not follower.take(character):
            return parser.broken(character, call.started)
        text = call.take(character, follower)
        if not call.started and call.name is not None and (call.streams or follower.ended):
            if call.is_malformed or not parser.known(call.name):
                return False
            call.started = True
            parser.start(call.name, call.id)
            text = call.so_far() if call.streams else text
        if call.started and text:
            parser.argue(text)
    if not call.started:
        return False
    if not call.streams:
        parser.argue(call.so_far())
    return parser.end(True)


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
