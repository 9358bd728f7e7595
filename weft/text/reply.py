"""Splits the answer of a chat model into reasoning, text and tool calls, while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.frozen import frozen
from weft.text.calls.events import Arguments, CallStarted, Event, Text, Thought, ToolFormat
from weft.text.calls.formats import formats_of
from weft.text.calls.parser import ToolParser, nine_characters
from weft.text.chat import Template
from weft.text.reasoning import ReasoningSplit, Split


@frozen
class ToolCall:
    """A tool call by the model; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@frozen
class Said:
    """What a piece of an answer adds; `events` are those of tool calls, `parts` all events in their order."""

    text: str = ""
    reasoning: str = ""
    events: tuple[Event, ...] = ()
    parts: tuple[Event, ...] = ()

    def __add__(self, other: Said) -> Said:
        return Said(
            self.text + other.text,
            self.reasoning + other.reasoning,
            self.events + other.events,
            self.parts + other.parts,
        )


class ReplyReader:
    """Reads the answer to a prompt that `template` wrote. Its text must have special tokens written out.

    It looks for calls if there are `tools`, and for reasoning if the template has marks for it; `inside` says that the
    prompt has already opened it. `form` is how calls are written, if not as in the template or, where that has no form,
    as in `generic_tools`. `identify` makes the id of the n-th call.
    """

    def __init__(
        self,
        template: Template,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        inside: bool = False,
        form: ToolFormat | None = None,
        identify: Callable[[int], str] = nine_characters,
    ) -> None:
        forms = formats_of(template)
        form = form or forms.tools or "hermes"  # which `generic_tools` asks for where the template has no form
        self._reasoning = ReasoningSplit(*forms.reasoning, inside=inside) if forms.reasoning else None
        functions = _functions(tools or ())
        schemas = {name: function.get("parameters") for name, function in functions.items()}
        reads_calls = bool(tools) or form == "harmony"  # which marks text and reasoning in the same way as calls
        self._calls = ToolParser(form, names=functions, schemas=schemas, identify=identify) if reads_calls else None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._open: list[list[str]] = []  # id, name and arguments of each call

    def add(self, piece: str) -> Said:
        """What is certain after this piece."""
        if self._reasoning is None:
            return self._said(self._events(piece))
        split = self._reasoning.add(piece)
        return self._said([*_thoughts(split.reasoning), *self._events(split.answer)])

    def finish(self) -> Said:
        """What was held back, at the end of the answer."""
        split = self._reasoning.finish() if self._reasoning is not None else Split()
        events = [*_thoughts(split.reasoning), *self._events(split.answer)]
        return self._said(events + (self._calls.finish() if self._calls is not None else []))

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._thoughts)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(ToolCall(id, name, "".join(arguments)) for id, name, *arguments in self._open)

    def _events(self, text: str) -> list[Event]:
        if self._calls is None:
            return [Text(text)] if text else []
        return self._calls.add(text)

    def _said(self, events: list[Event]) -> Said:
        text = "".join(event.text for event in events if isinstance(event, Text))
        reasoning = "".join(event.text for event in events if isinstance(event, Thought))
        for event in events:
            if isinstance(event, CallStarted):
                self._open.append([event.id, event.name])
            elif isinstance(event, Arguments):
                self._open[event.index].append(event.text)
        self._text.append(text)
        self._thoughts.append(reasoning)
        calls = tuple(event for event in events if not isinstance(event, Text | Thought))
        return Said(text, reasoning, calls, tuple(events))


def _thoughts(text: str) -> list[Event]:
    return [Thought(text)] if text else []


def _functions(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The functions of tools in OpenAI's form, or bare ones, by name."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function for function in functions if isinstance(function, Mapping) and "name" in function
    }
