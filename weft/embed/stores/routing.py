"""Which model's vectors are asked and which are written: one function of what the store has committed.

The query side and the write side both ask it, and it knows no clock and no percentage: a state has one answer.
"""

from __future__ import annotations

from enum import Enum

from weft.embed.stores.states import State
from weft.errors import StoreError
from weft.frozen import frozen


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
    """Fingerprints: `query` is the one that is served (None in a store without vectors), `write` those kept current.

    A write must bring the vectors of `query`; those of the others it may leave to the migrator.
    """

    phase: Phase
    query: str | None
    write: tuple[str, ...]


def route(served: str | None, migration: Open | None) -> Route:
    """The route of a store that serves `served` while `migration` is open.

    Until the cut-over the old vectors are asked and the new ones written beside them; after it the new ones are asked
    and the old ones kept current, so that a rollback loses nothing. A planned migration changes nothing yet.
    """
    if migration is None or migration.state is State.PLANNED:
        return Route(Phase.STABLE, served, () if served is None else (served,))
    done = migration.state is State.COMPLETED
    ends = (migration.target, migration.source) if done else (migration.source, migration.target)
    wanted = ends[0]
    if served != wanted:  # both are written in one transaction, so somebody else wrote
        raise StoreError(f"[store] the pointer and the migration disagree: {served} is served, {wanted} expected")
    phase = Phase.ROLLBACK_WINDOW if done else Phase.MIGRATING
    return Route(phase, served, tuple(name for name in ends if name is not None))
