"""Splits the answer of a chat model into reasoning, text and tool calls, while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.frozen import frozen
from weft.text.chat import Template
from weft.text.reasoning import ReasoningSplit
from weft.text.tool_calls import (
    Arguments,
    CallStarted,
    Event,
    Text,
    ToolFormat,
    ToolParser,
    formats_of,
    nine_characters,
)


@frozen
class ToolCall:
    """A tool call by the model; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@frozen
class Said:
    """What a piece of an answer adds; `events` are those of tool calls."""

    text: str = ""
    reasoning: str = ""
    events: tuple[Event, ...] = ()


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
        self._calls = ToolParser(form, names=_names(tools), identify=identify) if tools else None
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._open: list[list[str]] = []  # id, name and arguments of each call

    def add(self, piece: str) -> Said:
        """What is certain after this piece."""
        if self._reasoning is None:
            return self._said("", self._events(piece))
        split = self._reasoning.add(piece)
        return self._said(split.reasoning, self._events(split.answer))

    def finish(self) -> Said:
        """What was held back, at the end of the answer."""
        split = self._reasoning.finish() if self._reasoning is not None else None
        events = self._events(split.answer if split is not None else "")
        if self._calls is not None:
            events += self._calls.finish()
        return self._said(split.reasoning if split is not None else "", events)

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

    def _said(self, reasoning: str, events: list[Event]) -> Said:
        text = "".join(event.text for event in events if isinstance(event, Text))
        for event in events:
            if isinstance(event, CallStarted):
                self._open.append([event.id, event.name])
            elif isinstance(event, Arguments):
                self._open[event.index].append(event.text)
        self._text.append(text)
        self._thoughts.append(reasoning)
        return Said(text, reasoning, tuple(event for event in events if not isinstance(event, Text)))


def _names(tools: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of tools in OpenAI's form, or of bare functions."""
    functions = [tool.get("function", tool) for tool in tools]
    return [function["name"] for function in functions if isinstance(function, Mapping) and "name" in function]
