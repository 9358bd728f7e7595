"""What a parser of tool calls finds in an answer."""

from __future__ import annotations

from typing import Literal

from weft.frozen import frozen

ToolFormat = Literal["hermes", "qwen_xml", "llama3", "mistral", "mistral_named", "harmony"]


@frozen
class Text:
    """Text that belongs to no call."""

    text: str


@frozen
class Thought:
    """Reasoning, in the formats that mark it together with calls."""

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
    """The end of a call; not `complete` if its arguments ended early or became invalid. The rest is text."""

    index: int
    complete: bool


Event = Text | Thought | CallStarted | Arguments | CallEnded
