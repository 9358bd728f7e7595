"""The parser of tool calls: an answer, given piece by piece, becomes events.

The formats, each read by a module of its own:

    hermes         <tool_call>{"name": "f", "arguments": {...}}</tool_call>        Qwen 2.5 and 3, Hermes, SmolLM
    llama3         <|python_tag|>{"name": "f", "parameters": {...}}; {...}         a whole answer may lack the tag
    mistral        [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]
    mistral_named  [TOOL_CALLS]f[ARGS]{...}
    qwen_xml       <tool_call><function=f><parameter=a>1</parameter></function></tool_call>   Qwen3-Coder, Qwen3.5
    harmony        <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>         gpt-oss

The text must be decoded with special tokens written out: the marks are special tokens of many vocabularies. The result
does not depend on how the text is cut into pieces. Only white space beside a call is lost: what turns out not to be a
call is text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from weft.text.calls import harmony, json_calls, xml_calls
from weft.text.calls.events import Event, ToolFormat
from weft.text.calls.scanner import Reading, Scanner

# Reads a call after an opening mark; puts what it reads into the list, so that it can be read again.
Reader = Callable[[Scanner, list[str]], Reading]

# The opening marks of each format and what reads on after them. Harmony has a loop of its own.
_READERS: dict[ToolFormat, dict[str, Reader]] = {
    "hermes": {"<tool_call>": json_calls.hermes},
    "llama3": {"<|python_tag|>": json_calls.llama3},
    "mistral": {"[TOOL_CALLS]": json_calls.mistral},
    "mistral_named": {"[TOOL_CALLS]": json_calls.mistral},
    # Qwen's coders often leave out the outer tag
    "qwen_xml": {"<tool_call>": xml_calls.wrapped, "<function=": xml_calls.function},
    "harmony": {},
}


def nine_characters(index: int) -> str:
    """The id of a call if the model gives none: nine letters and digits, which Mistral's templates require."""
    return f"call{index:05d}"


class ToolParser(Scanner):
    """Turns an answer, given piece by piece, into events.

    `names` are the known tools, if given: what looks like a call of another tool is text. `schemas` are those of their
    arguments, by name: Qwen's tags hold plain text, which the schema gives a type. `identify` makes the id of the n-th
    call.
    """

    def __init__(
        self,
        form: ToolFormat,
        *,
        names: Iterable[str] | None = None,
        schemas: Mapping[str, Any] | None = None,
        identify: Callable[[int], str] = nine_characters,
    ) -> None:
        super().__init__(names, schemas, identify)
        self._readers = _READERS[form]
        self._bare = json_calls.llama3 if form == "llama3" else None  # reads a call without an opening mark
        self._reading = harmony.read_all(self) if form == "harmony" else self._read_all()
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
            self._say_spaces()
        return self._given()

    def _read_all(self) -> Generator[None, str | None, None]:
        held, bare = "", self._bare is not None
        while (character := (yield from self.next())) is not None:
            held += character
            if bare and character == "{" and self._bare is not None:
                held = ""
                yield from self._attempt(self._bare, "", character)
            elif held in self._readers:
                opening, held = held, ""
                yield from self._attempt(self._readers[opening], opening, "")
            else:
                held = self.say_but(held, self._readers)
            bare = bare and character.isspace()
        self.say(held)

    def _attempt(self, read: Reader, opening: str, first: str) -> Generator[None, str | None, None]:
        """Read a call after an opening mark; if it is not a call, the mark is text and the rest is read again."""
        held: list[str] = []
        self.again(first)
        if not (yield from read(self, held)):
            self.say(opening or held.pop(0))
            self.again(held)
