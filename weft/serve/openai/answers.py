"""The answers of OpenAI's routes."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType


class PromptDetails(Struct, kw_only=True):
    cached_tokens: int = 0


class Usage(Struct, kw_only=True):
    """`truncated_tokens` of the input were cut off, if the request allowed it."""

    prompt_tokens: int
    completion_tokens: int | UnsetType = UNSET
    total_tokens: int
    prompt_tokens_details: PromptDetails | UnsetType = UNSET
    truncated_tokens: int | UnsetType = UNSET


class FunctionText(Struct, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str = ""


class AnswerCall(Struct, kw_only=True):
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionText
    index: int | UnsetType = UNSET


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class AnswerMessage(Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None = None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: FunctionText | UnsetType = UNSET  # the one call, where the request has `functions`


class Choice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str | None = None
    timings: dict[str, float] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class DeltaMessage(Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[AnswerCall] | UnsetType = UNSET
    function_call: FunctionText | UnsetType = UNSET  # the one call, where the request has `functions`


class ChunkChoice(Struct, kw_only=True):
    index: int
    delta: DeltaMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET
    timings: dict[str, float] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class TextLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class TextChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None
    prompt_logprobs: list[Any] | UnsetType = UNSET


class TextCompletion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str | None = None
    timings: dict[str, float] | UnsetType = UNSET


class Embedding(Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(Struct, kw_only=True):
    """A model, or an adapter: then `parent` is the model it belongs to."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "weft"
    root: str
    parent: str | None = None
    kind: str
    state: str
    bytes: int
    max_model_len: int
    parameters: int
    quantisation: str
    licence: str
    file_bytes: int


class ModelList(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class ErrorBody(Struct, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Error(Struct, kw_only=True):
    error: ErrorBody
