"""The bodies of Anthropic's routes. Blocks may have other fields (cache marks, citations), which have no effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.openai.schemas import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS, Name, Share, ShortText, StopText


class Block(Struct, kw_only=True):
    """A block of content; its `type` decides which fields apply."""

    type: ShortText
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: ShortText | None = None
    name: ShortText | None = None
    input: dict[str, Any] | None = None
    tool_use_id: ShortText | None = None
    content: str | Annotated[list[Block], Meta(max_length=MAX_PARTS)] | None = None
    is_error: bool | None = None
    source: dict[str, Any] | None = None  # of a picture


Blocks = Annotated[list[Block], Meta(max_length=MAX_PARTS)]


class Message(Struct, forbid_unknown_fields=True, kw_only=True):
    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Tool(Struct, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=128)]
    input_schema: dict[str, Any] | None = None
    description: str | None = None
    type: ShortText | None = None


class ToolChoice(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    display: ShortText | None = None


class OutputFormat(Struct, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, kw_only=True):
    effort: ShortText | None = None
    format: OutputFormat | None = None


class CountRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    model: Name
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: str | Blocks | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest, forbid_unknown_fields=True, kw_only=True):
    max_tokens: Annotated[int, Meta(ge=1, le=1 << 24)]
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=16)] | None = None
    stream: bool | None = None
