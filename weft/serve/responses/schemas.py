"""The body of POST /v1/responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.openai.schemas import (
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TOOLS,
    Metadata,
    Name,
    Part,
    Share,
    ShortText,
    StreamOptions,
)


class Item(Struct, kw_only=True):
    """A message, a tool call, its result, or reasoning; messages may omit `type`."""

    type: ShortText = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None
    call_id: ShortText | None = None
    name: ShortText | None = None
    arguments: str | None = None
    output: str | Annotated[list[Part], Meta(max_length=MAX_PARTS)] | None = None


class FunctionTool(Struct, kw_only=True):
    type: ShortText
    name: Name | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunctionTool(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["function"]
    name: Name


class TextFormat(Struct, forbid_unknown_fields=True, kw_only=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: ShortText | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextSettings(Struct, forbid_unknown_fields=True, kw_only=True):
    format: TextFormat | None = None
    verbosity: ShortText | None = None


class Reasoning(Struct, forbid_unknown_fields=True, kw_only=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: ShortText | None = None
    generate_summary: ShortText | None = None


class ResponsesRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    model: Name
    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MAX_MESSAGES)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=1 << 24)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedFunctionTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: Annotated[list[ShortText], Meta(max_length=16)] | None = None
    metadata: Metadata | None = None
    user: ShortText | None = None
    store: bool | None = None  # None: true
    background: bool | None = None
    previous_response_id: Name | None = None
    # not kept by this server, so these can only be off
    conversation: None = None
    prompt: None = None
    # beyond OpenAI
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
