"""The bodies of llama-server's routes. Without `model`, the server's first one is used."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from weft.serve.openai.schemas import MAX_MESSAGES, MAX_TOOLS, Message, Name, ShortText, TokenId, Tool


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
