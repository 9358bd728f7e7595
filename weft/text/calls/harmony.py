"""Answers in the harmony format of gpt-oss: messages in channels, each with a header.

    <|channel|>analysis<|message|>reasoning<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    <|start|>assistant<|channel|>final<|message|>text<|return|>

The recipient may also stand before the channel. The channel `analysis` is reasoning, a message to `functions.NAME` is a
call in whatever channel, and all other messages are text: `commentary` without a recipient is what a model says before
it calls. An answer begins inside a header, whose first words the prompt has written; one that does not is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from weft.text.calls.json_calls import arguments

if TYPE_CHECKING:
    from weft.text.calls.scanner import Scanner

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_STARTS = ("<|start|>", "<|channel|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)")
_MAX_HEADER = 512
_Steps = Generator[None, str | None, None]


def read_all(parser: Scanner) -> _Steps:
    """Read messages until the answer ends."""
    said: dict[str, bool] = {}  # the kinds of message that there have been
    is_first = True
    while True:
        character = yield from parser.next()
        if character is None:
            return
        parser.again(character)
        if (yield from _at_header(parser, is_first)):
            header = yield from _header(parser)
            yield from _body(parser, header, said)
        else:
            yield from _text(parser, _written(parser.say, said, "text"))
        is_first = False


def _at_header(parser: Scanner, is_first: bool) -> Generator[None, str | None, bool]:
    """Whether a header comes next. The first one has its beginning in the prompt."""
    marks = (*_STARTS, " to=", "to=", _MESSAGE) if is_first else _STARTS
    for mark in marks:
        read: list[str] = []
        if (yield from parser.mark(mark, read)):
            parser.again(read)
            return True
    return False


def _header(parser: Scanner) -> Generator[None, str | None, str]:
    """The text of a header, with `<|message|>` at its end unless the answer ends or the header is too long."""
    header: list[str] = []
    while len(header) < _MAX_HEADER and not (yield from parser.mark(_MESSAGE, header)):
        if (yield from parser.read(header)) is None:
            break
    return "".join(header)


def _body(parser: Scanner, header: str, said: dict[str, bool]) -> _Steps:
    recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
    say = _written(parser.say, said, "text")
    if not header.endswith(_MESSAGE):
        say(header if len(header) >= _MAX_HEADER else "")  # an answer that ends in a header says nothing by it
    elif recipient is not None and recipient[1].startswith("functions."):
        held: list[str] = []
        found = yield from _call(parser, recipient[1].removeprefix("functions."), held)
        if not found:
            say(header)
            parser.again(held)
        elif (yield from _ended(parser)):
            return
    elif recipient is not None:
        say(header)  # a call of a tool that nobody offered
    elif channel is not None and channel[1] == "analysis":
        say = _written(parser.think, said, "thought")
    yield from _text(parser, say)


def _call(parser: Scanner, name: str, held: list[str]) -> Generator[None, str | None, bool]:
    """The arguments of a call; none at all are those of a function without parameters."""
    character = yield from parser.skipped(held)
    parser.back(character, held)
    if character not in (None, "<") or not parser.known(name):
        return (yield from arguments(parser, name, held))
    parser.start(name)
    parser.argue("{}")
    return parser.end(True)


def _ended(parser: Scanner) -> Generator[None, str | None, bool]:
    """Read the mark that ends a message, if it comes next."""
    for mark in _ENDS:
        if (yield from parser.optional(mark)):
            return True
    return False


def _text(parser: Scanner, say: Callable[[str], None]) -> _Steps:
    """The text of a message, to the mark that ends it or to the next header."""
    held = ""
    while (character := (yield from parser.next())) is not None:
        held += character
        if held in _ENDS:
            return
        if held in _STARTS:
            parser.again(held)
            return
        held = parser.say_but(held, (*_ENDS, *_STARTS), say)
    say(held)


def _written(say: Callable[[str], None], said: dict[str, bool], kind: str) -> Callable[[str], None]:
    """`say`, with an empty line before it if there has been a message of the kind."""
    begun = False

    def write(text: str) -> None:
        nonlocal begun
        if not text:
            return
        if not begun and said.get(kind):
            say("\n\n")
        begun = said[kind] = True
        say(text)

    return write
