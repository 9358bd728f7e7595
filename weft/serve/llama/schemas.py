"""The bodies of llama-server's routes. Without `model`, the server's first one is used."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from weft.serve.openai.schemas import (
    MAX_ANSWERS,
    MAX_MESSAGES,
    MAX_TOOLS,
    Message,
    Name,
    Penalty,
    Share,
    ShortText,
    Stop,
    TokenId,
    Tool,
    Truncate,
)

Text = Annotated[str, Meta(max_length=1 << 22)]


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """`content` is llama-server's field, `inputs` is TEI's; the answer has the matching shape."""

    content: str | None = None
    inputs: str | Annotated[list[str], Meta(min_length=1, max_length=2048)] | None = None
    model: Name | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    add_special_tokens: bool | None = None
    prompt_name: ShortText | None = None


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    tokens: Annotated[list[TokenId], Meta(max_length=1 << 20)]
    model: Name | None = None


class TemplateRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: Name | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None


class SampledRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What /completion and /infill share."""

    model: Name | None = None
    n_predict: Annotated[int, Meta(ge=-2, le=1 << 24)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=MAX_ANSWERS)] | None = None
    temperature: Annotated[float, Meta(ge=-1.0, le=100.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)] | None = None
    stop: Stop | None = None
    ignore_eos: bool | None = None
    logit_bias: (
        Annotated[dict[str, float | bool], Meta(max_length=1024)]
        | Annotated[list[Annotated[list[str | int | float | bool], Meta(max_length=2)]], Meta(max_length=1024)]
        | None
    ) = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[ShortText], Meta(max_length=64)] | None = None
    # weft's own
    truncate: Truncate | None = None


Mixed = Annotated[list[TokenId | str], Meta(min_length=1, max_length=1 << 20)]


class CompletionRequest(SampledRequest, forbid_unknown_fields=True, kw_only=True):
    prompt: str | Annotated[list[TokenId | str | Mixed], Meta(min_length=1, max_length=1 << 20)]
    parse_special: bool | None = None  # False: special tokens written in the prompt are plain text


class Extra(Struct, kw_only=True):
    """Another file of the project."""

    text: Text
    filename: ShortText = "file"


class InfillRequest(SampledRequest, forbid_unknown_fields=True, kw_only=True):
    input_prefix: Text
    input_suffix: Text
    input_extra: Annotated[list[Extra], Meta(max_length=256)] | None = None
    prompt: Text | None = None
