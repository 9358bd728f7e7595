"""The end of OpenAI's streams, and the fields that its answers share."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec

from weft.serve.http.events import event
from weft.serve.http.faults import Fault, openai_shape
from weft.serve.openai.answers import PromptDetails, Usage

if TYPE_CHECKING:
    from weft.generate import Generation

DONE = b"data: [DONE]\n\n"


def error_event(fault: Fault) -> bytes:
    """An error inside a stream, and the end of the stream."""
    return event(openai_shape(fault)) + DONE


def fingerprint() -> str:
    from weft import __version__

    return f"weft-{__version__}"


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex}"


def now() -> int:
    return int(time.time())


def usage_of(generations: list[list[Generation]]) -> Usage:
    """The usage of all requests of a call together; a prompt counts once, however many answers it has."""
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
