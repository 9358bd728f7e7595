"""Migrations without a database: their states and moves, why documents are skipped, and the route of each state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from weft.errors import InvalidTransitionError, StoreError
from weft.frozen import frozen


class State(str, Enum):
    """What a migration is doing; the value is stored in the database."""

    PLANNED = "planned"
    RUNNING = "running"
    PAUSED = "paused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPLETED = "completed"


class Reason(str, Enum):
    """Why a document has no vector of the new model; the value is stored in the database."""

    CONTENT_TOO_LARGE = "ContentTooLarge"
    INVALID_ENCODING = "InvalidEncoding"
    CONTENT_DELETED = "ContentDeleted"
    PERMANENT_API_ERROR = "PermanentApiError"
    MANUAL_SKIP = "ManualSkip"


KEPT, ROLLED_BACK = "kept", "rolled back"  # how a completed migration was settled

_ALIVE = (State.PLANNED, State.RUNNING, State.PAUSED, State.FAILED)
# Each move: the states it starts from, and the state it leads to (None: the same). A running migration can be resumed
# once the lease of the process that ran it has expired.
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
    """The state with this stored value."""
    try:
        return State(word)
    except ValueError:
        raise StoreError(
            "store", f"a migration has the unknown state {str(word)[:40]!r}", advice="restore a backup"
        ) from None


def moved(action: str, state: State) -> State:
    """The state after `action`, or InvalidTransitionError."""
    starts, end = MOVES[action]
    if state not in starts:
        wanted = " or ".join(start.value for start in starts)
        raise InvalidTransitionError(
            "migrate", f"cannot {action}: the migration is {state.value}, and must be {wanted}"
        )
    return state if end is None else end


def missing(skips: Mapping[str, int]) -> int:
    """How many of the skipped documents (by reason) still exist and were not skipped by hand."""
    meant = (Reason.CONTENT_DELETED.value, Reason.MANUAL_SKIP.value)
    return sum(count for reason, count in skips.items() if reason not in meant)


@frozen
class Migration:
    """One migration as stored. Times are seconds since 1970, or None for what has not happened yet.

    `processed` counts the documents that the migrator embedded (again when one has changed), `remaining` those still
    waiting, `skips` those skipped, by reason. `settled` is "kept" or "rolled back" once a completed one is closed.
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
        """All documents of this migration: processed + skipped + remaining."""
        return self.processed + self.skipped + self.remaining

    @property
    def window_ends_at(self) -> float | None:
        """When `finish` may drop the old vectors; None before the cut-over."""
        if self.state is not State.COMPLETED or self.ended_at is None:
            return None
        return self.ended_at + self.window_s


class Phase(str, Enum):
    STABLE = "stable"
    MIGRATING = "migrating"
    ROLLBACK_WINDOW = "rollback window"


@frozen
class Open:
    """The part of an open migration that decides the route."""

    state: State
    source: str | None
    target: str


@frozen
class Route:
    """Searches use the vectors of the fingerprint `query` (None in a store without vectors); writes keep those of all
    fingerprints in `write` current.

    A write must bring the vectors of `query`; it may leave the others to the migrator.
    """

    phase: Phase
    query: str | None
    write: tuple[str, ...]


def route(served: str | None, migration: Open | None) -> Route:
    """The route of a store that serves `served` while `migration` is open: a pure function, for reads and writes alike.

    Until the cut-over, searches use the old vectors, and writes keep both. After it, searches use the new ones, and
    writes still keep both, so that a rollback loses nothing. A planned migration changes nothing yet.
    """
    if migration is None or migration.state is State.PLANNED:
        return Route(Phase.STABLE, served, () if served is None else (served,))
    done = migration.state is State.COMPLETED
    ends = (migration.target, migration.source) if done else (migration.source, migration.target)
    wanted = ends[0]
    if served != wanted:  # both are written in one transaction, so another program has changed one of them
        raise StoreError(
            "store",
            f"the store serves {served}, but its migration is in a state that serves {wanted}",
            advice="restore a backup",
        )
    phase = Phase.ROLLBACK_WINDOW if done else Phase.MIGRATING
    return Route(phase, served, tuple(name for name in ends if name is not None))
