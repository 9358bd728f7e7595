"""Text as it is made: a request written to standard output piece by piece, and its timings in one line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from weft.cli import screen

if TYPE_CHECKING:
    from weft.generate import Generation, Handle


def write(handle: Handle) -> bool:
    """Write the pieces of a request as they come; True when Ctrl-C ended it, with what was made written.

    A terminal gets no control characters from a model; a file or a pipe gets the text as it is.
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
    """What a request cost: tokens and rates of prompt and answer, and the wait for the first token."""
    usage, times = result.usage, result.timings
    cached = f" ({usage.cached_tokens} known)" if usage.cached_tokens else ""
    parts = [f"prompt {usage.prompt_tokens} tokens{cached}, {times.prompt_per_second:.0f} tok/s"]
    parts.append(f"generated {usage.completion_tokens} tokens, {times.predicted_per_second:.1f} tok/s")
    parts.append(f"first token {times.first_token_ms:.0f} ms")
    reasons = {"length": "cut at the most tokens", "cancelled": "interrupted"}
    if result.finish_reason in reasons:
        parts.append(reasons[result.finish_reason])
    return "; ".join(parts)
