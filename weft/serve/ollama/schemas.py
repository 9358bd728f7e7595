"""The bodies of Ollama's routes. `model` may end in `:latest`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from weft.serve.fields.misfits import REFUSAL
from weft.serve.openai.schemas import (
    MAX_MESSAGES,
    MAX_TOOLS,
    KeepAlive,
    Name,
    Penalty,
    Share,
    ShortText,
    Stop,
    Tool,
)

Images = Annotated[list[str], Meta(max_length=64)]  # in base64
UNSUPPORTED = Meta(max_length=0, extra={REFUSAL: "not supported by this server"})


class Options(Struct, forbid_unknown_fields=True, kw_only=True):
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=1 << 24)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: Stop | None = None
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None


class Base(Struct, forbid_unknown_fields=True, kw_only=True):
    model: Name
    options: Options | None = None
    keep_alive: KeepAlive | None = None


class CalledFunction(Struct, kw_only=True):
    name: Name
    arguments: dict[str, Any] = {}


class Called(Struct, kw_only=True):
    function: CalledFunction
    id: ShortText | None = None


class Message(Struct, kw_only=True):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    images: Images | None = None
    tool_calls: Annotated[list[Called], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: ShortText | None = None
    tool_call_id: ShortText | None = None


class Generating(Base, forbid_unknown_fields=True, kw_only=True):
    stream: bool | None = None
    format: dict[str, Any] | Literal["json", ""] | None = None
    think: bool | ShortText | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncate: bool | None = None


class ChatRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[Message], Meta(max_length=MAX_MESSAGES)] = []
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None


class GenerateRequest(Generating, forbid_unknown_fields=True, kw_only=True):
    prompt: str = ""
    system: str | None = None
    raw: bool | None = None
    suffix: Annotated[str, Meta(max_length=1 << 20)] | None = None
    template: Annotated[str, UNSUPPORTED] | None = None
    images: Images | None = None
    context: Annotated[list[int], UNSUPPORTED] | None = None


class EmbedRequest(Base, forbid_unknown_fields=True, kw_only=True):
    input: str | Annotated[list[str], Meta(max_length=1 << 20)]
    truncate: bool | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1 << 16)] | None = None


class OldEmbedRequest(Base, forbid_unknown_fields=True, kw_only=True):
    prompt: str


class ShowRequest(Struct, kw_only=True):
    model: Name | None = None
    name: Name | None = None
    verbose: bool | None = None


class PullRequest(Struct, kw_only=True):
    model: Name | None = None
    name: Name | None = None
    stream: bool | None = None
    insecure: bool | None = None
