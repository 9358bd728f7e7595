"""What differs between databases, and the session that SQL runs in.

SQL is written once, with `?` for parameters, in the subset that SQLite and PostgreSQL share; a dialect has the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from weft.errors import WeftError

if TYPE_CHECKING:
    import numpy as np

GROUP = 500  # values in one IN list: databases limit them

# How a transaction locks a store: a read-only snapshot; with other writers; no other writers; before tables exist.
READ, SHARED, ALONE, FIRST = "read", "shared", "alone", "first"


class Session:
    """SQL inside a transaction."""

    def __init__(self, run: Callable[[str, Sequence[Any]], Any], run_each: Callable[[str, Any], Any]) -> None:
        self._run, self._run_each = run, run_each

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return list(self._run(sql, values).fetchall())

    def row(self, sql: str, *values: Any) -> tuple[Any, ...] | None:
        found = self._run(sql, values).fetchone()
        return None if found is None else tuple(found)

    def run(self, sql: str, *values: Any) -> int:
        """Run `sql` and return the number of rows changed."""
        return int(self._run(sql, values).rowcount)

    def each(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """Run `sql` once for every entry of `values`."""
        listed = list(values)
        if listed:
            self._run_each(sql, listed)

    def among(self, sql: str, ids: Sequence[str], *values: Any) -> list[tuple[Any, ...]]:
        """The rows of `sql`, where `{ids}` stands for a list of `ids`; `values` are the parameters before it."""
        found = []
        for first in range(0, len(ids), GROUP):
            group = ids[first : first + GROUP]
            found += self.rows(sql.format(ids=", ".join("?" * len(group))), *values, *group)
        return found


class Dialect(Protocol):
    """A database: how to connect to it, and its own SQL where databases differ."""

    name: str  # of the database, in messages
    id_type: str
    for_update: str  # at the end of a SELECT: lock its rows until the transaction ends

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that the driver raises."""

    def session(self) -> Session: ...

    def tables(self, session: Session) -> set[str]: ...

    def adopt(self, session: Session) -> None:
        """Change the settings of the database, once it is known to be a store or empty; outside a transaction."""

    def begin(self, session: Session, mode: str) -> None:
        """Begin a transaction in `mode`: READ, SHARED, ALONE or FIRST."""

    def now(self, session: Session) -> float:
        """Seconds since 1970, by the clock that all processes share."""

    def vector_type(self, dimension: int) -> str: ...

    def pack(self, vector: np.ndarray) -> Any:
        """A vector float32 [dimension] as an SQL parameter."""

    def unpack(self, value: Any) -> np.ndarray:
        """A vector as read from the database, as float32 [dimension]."""

    def as_bytes(self, column: str) -> str:
        """SQL for the UTF-8 bytes of a text; some databases allow malformed ones."""

    def watch(self, number: int) -> Sequence[str]:
        """SQL that makes the database count every change of the vectors of generation `number`, by any process.

        For databases without a vector search of their own. It may be run again.
        """

    def nearest(
        self, session: Session, number: int, query: np.ndarray, k: int, chosen: Sequence[str] | None
    ) -> list[tuple[str, float]] | None:
        """The `k` best ids of generation `number`, or of those that are chosen, and their cosines; None where the
        database has no vector search."""

    def translate(self, error: Exception) -> WeftError:
        """An exception of `errors` as a WeftError."""

    def let_go(self) -> None:
        """Close the connection before a fork, unless a transaction is open; `begin` reopens it."""

    def close(self) -> None: ...
