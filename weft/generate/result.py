"""The output of a request: pieces while it runs, a Generation when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from weft.frozen import frozen

if TYPE_CHECKING:
    from weft.text.calls.events import Event as CallEvent
    from weft.text.reply import ToolCall

FinishReason = Literal["stop", "length", "cancelled"]


class TokenLogprob(NamedTuple):
    """The natural logarithm of a token's probability as the model gives it: before penalties, grammar and temperature.

    `top` has the most probable tokens at this position with their log probabilities, the most probable first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@frozen
class Piece:
    """What one token added; the pieces of a request add up to its Generation. The last one has a finish reason.

    Text may lag behind the tokens: an unfinished character or a possible stop string is held back. `index` says which
    of a request's `n` answers it belongs to.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""  # of a chat: kept apart from the text
    events: tuple[CallEvent, ...] = ()  # of a chat: progress of tool calls


@frozen
class Usage:
    """Token counts. `prompt_tokens` counts the prompt after truncation, which dropped `truncated_tokens`.

    `cached_tokens` of the prompt came from the prefix cache and were not computed; of `drafted_tokens` that were
    checked, `accepted_tokens` were right.
    """

    prompt_tokens: int
    completion_tokens: int
    truncated_tokens: int = 0
    cached_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@frozen
class Timings:
    """Times in milliseconds; all 0 if there was no token.

    `prompt_ms` is from the first step of the request to its first token, `predicted_ms` from there to the end; the
    rates are prompt tokens, and tokens after the first, per second of these. `first_token_ms` counts from submission,
    so it includes the time in the queue.
    """

    prompt_ms: float
    prompt_per_second: float
    predicted_ms: float
    predicted_per_second: float
    first_token_ms: float


@frozen
class Generation:
    """The whole result, without stop strings and stop tokens. `stop` is the string that ended it; the same `seed` gives
    the same result.

    `logprobs` has one entry per token if the request asked for them, `prompt_logprobs` one for each of the prompt's
    tokens from `prompt_logprobs_from` on. In a chat, `reasoning` and `tool_calls` are kept apart from the text.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    seed: int
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop: str | None = None


@frozen
class Stats:
    """The engine's current load (down to `checkpoint_bytes`), and counters since it was made."""

    running: int
    waiting: int
    pages: int
    free_pages: int
    kept_pages: int  # of the free ones: those still in the prefix cache
    slots: int  # of recurrent state; 0 for models without
    free_slots: int
    checkpoints: int  # slots that keep a state for later requests; those nobody uses count as free
    checkpoint_bytes: int

    steps: int
    prompt_tokens: int  # of requests that have started
    cached_tokens: int  # of these, those found in the prefix cache
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    preemptions: int
    expert_hits: int = 0  # where not all experts of a mixture fit: their matrices that a step found in memory
    expert_misses: int = 0  # and those that it read from the file
    expert_bytes: int = 0  # of the matrices in memory now
