"""What a request gives back: pieces while it runs, a Generation when it has ended."""

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Piece:
    """What one step added; the pieces of a request join to its Generation. The last one has a finish reason.

    Text may lag behind the tokens: an unfinished character or a possible stop string is held back.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Usage:
    """Token counts. `prompt_tokens` are those that ran; `truncated_tokens` more were given and dropped."""

    prompt_tokens: int
    completion_tokens: int
    truncated_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Times in milliseconds, 0 for what was not reached.

    `prompt_ms` is from the first step of the request to its first token, `predicted_ms` from there to the end; the
    rates are prompt tokens, and tokens after the first, over these. `first_token_ms` counts from submission and so
    includes the time in the queue.
    """

    prompt_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_second: float
    first_token_ms: float


@dataclass(frozen=True)
class Generation:
    """The whole result. Stop strings and stop tokens are not part of it; `seed` repeats it."""

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
