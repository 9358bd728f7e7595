"""Server-sent events as OpenAI writes them, and what its answers have in common."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from weft.serve.http.faults import Fault, openai_shape
from weft.serve.openai.answers import PromptDetails, Usage

if TYPE_CHECKING:
    from weft.generate import Generation

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


def event(value: Any) -> bytes:
    return b"data: " + _encode(value) + b"\n\n"


def error_event(fault: Fault) -> bytes:
    """An error inside a stream, and its end."""
    return event(openai_shape(fault)) + DONE


def fingerprint() -> str:
    from weft import __version__

    return f"weft-{__version__}"


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex}"


def now() -> int:
    return int(time.time())


def usage_of(generations: list[list[Generation]]) -> Usage:
    """What all requests of a call took together; a prompt counts once however many answers it has."""
    prompts = [several[0].usage for several in generations]
    made = sum(one.usage.completion_tokens for several in generations for one in several)
    given = sum(usage.prompt_tokens for usage in prompts)
    truncated = sum(usage.truncated_tokens for usage in prompts)
    return Usage(
        prompt_tokens=given,
        completion_tokens=made,
        total_tokens=given + made,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(usage.cached_tokens for usage in prompts)),
        truncated_tokens=truncated or msgspec.UNSET,
    )
