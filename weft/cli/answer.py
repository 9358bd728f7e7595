"""Writes the text of a request to standard output as it is generated, and its timings in one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from weft.cli import screen

if TYPE_CHECKING:
    from weft.generate import Generation, Handle


def write(handle: Handle) -> bool:
    """Write the pieces of a request as they arrive; True if Ctrl-C ended it, after writing what was generated.

    On a terminal control characters are replaced; a file or a pipe gets the text unchanged.
    """
    watched = sys.stdout.isatty()

    def put(text: str) -> None:
        sys.stdout.write(screen.clean(text) if watched else text)
        sys.stdout.flush()

    try:
        for piece in handle:
            put(piece.text)
    except KeyboardInterrupt:
        handle.cancel()
        for piece in handle.drain():
            put(piece.text)
        return True
    return False


def timings(result: Generation) -> str:
    """Tokens and rates of prompt and answer, and the time to the first token, on one line."""
    usage, times = result.usage, result.timings
    cached = f" ({usage.cached_tokens} cached)" if usage.cached_tokens else ""
    parts = [f"prompt {usage.prompt_tokens} tokens{cached}, {times.prompt_per_second:.0f} tok/s"]
    parts.append(f"generated {usage.completion_tokens} tokens, {times.predicted_per_second:.1f} tok/s")
    parts.append(f"first token {times.first_token_ms:.0f} ms")
    reasons = {"length": "stopped at the token limit", "cancelled": "interrupted"}
    if result.finish_reason in reasons:
        parts.append(reasons[result.finish_reason])
    return "; ".join(parts)
