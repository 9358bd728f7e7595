"""The life of a migration: its states, the moves between them, why documents are skipped, and its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from weft.errors import InvalidTransitionError, StoreError
from weft.frozen import frozen


class State(str, Enum):
    """What a migration is doing; the word is what the store keeps."""

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class Reason(str, Enum):
    """Why a document has no vector of the new model; the words are the founding design's."""

    CONTENT_TOO_LARGE = "ContentTooLarge"
    INVALID_ENCODING = "InvalidEncoding"
    CONTENT_DELETED = "ContentDeleted"
    PERMANENT_API_ERROR = "PermanentApiError"
    MANUAL_SKIP = "ManualSkip"


KEPT, ROLLED_BACK = "kept", "rolled back"  # how a completed migration was settled

_ALIVE = (State.PLANNED, State.RUNNING, State.PAUSED, State.FAILED)
# A move, the states it starts from, and the state it leads to; None stays. A migration that is running can be resumed
# when the process that ran it is gone: the lease says so.
MOVES: dict[str, tuple[tuple[State, ...], State | None]] = {
    "start": ((State.PLANNED,), State.RUNNING),
    "resume": ((State.PAUSED, State.FAILED, State.RUNNING), State.RUNNING),
    "pause": ((State.RUNNING,), State.PAUSED),
    "fail": ((State.RUNNING,), State.FAILED),
    "skip": ((State.RUNNING, State.PAUSED, State.FAILED), None),
    "cancel": (_ALIVE, State.CANCELLED),
    "complete": ((State.RUNNING,), State.COMPLETED),
    "rollback": ((State.COMPLETED,), None),
    "finish": ((State.COMPLETED,), None),
}


def state_of(word: object) -> State:
    """The state that a store's word names."""
    try:
        return State(word)
    except ValueError:
        raise StoreError(f"[store] a migration is {str(word)[:40]!r}, which is no state; restore a copy") from None


def moved(action: str, state: State) -> State:
    """The state after `action`, or InvalidTransitionError."""
    starts, end = MOVES[action]
    if state not in starts:
        wanted = " or ".join(start.value for start in starts)
        raise InvalidTransitionError(
            f"[migrate] cannot {action}: the migration is {state.value}; {action} needs one that is {wanted}"
        )
    return state if end is None else end


def missing(skips: Mapping[str, int]) -> int:
    """Of numbers by reason: skipped documents that are there, and that nobody left out by hand."""
    meant = (Reason.CONTENT_DELETED.value, Reason.MANUAL_SKIP.value)
    return sum(count for reason, count in skips.items() if reason not in meant)


@frozen
class Migration:
    """One migration as the store has it. Times are seconds since 1970, or None where they have not come.

    `processed` counts documents that the migrator embedded, a changed one again; `remaining` those that wait for it;
    `skips` those it leaves out, by reason. `settled` is "kept" or "rolled back" once a completed one is closed.
    """

    id: int
    source: str | None
    target: str
    dimension: int
    model: str
    state: State
    settled: str | None
    processed: int
    remaining: int
    skips: dict[str, int] = field(default_factory=dict)
    error: str | None = None
    window_s: float = 0.0
    planned_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    worked_s: float = 0.0
    lease_owner: str | None = None
    lease_until: float | None = None

    @property
    def skipped(self) -> int:
        return sum(self.skips.values())

    @property
    def missing(self) -> int:
        return missing(self.skips)

    @property
    def total(self) -> int:
        """All documents this migration has to do with: always processed + skipped + remaining."""
        return self.processed + self.skipped + self.remaining

    @property
    def window_ends_at(self) -> float | None:
        """When `finish` may drop the old vectors; None before the cut-over."""
        if self.state is not State.COMPLETED or self.ended_at is None:
            return None
        return self.ended_at + self.window_s
