"""What differs between databases, and the session that SQL runs in.

SQL is written once, with `?` for parameters, in what SQLite and PostgreSQL have in common; a dialect says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from weft.errors import WeftError

if TYPE_CHECKING:
    import numpy as np

GROUP = 500  # values of one IN list: databases bound them

# How a transaction holds a store: a snapshot; beside other writers; while nobody else writes; before there are tables.
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
        """The number of rows changed."""
        return int(self._run(sql, values).rowcount)

    def each(self, sql: str, values: Iterable[Sequence[Any]]) -> None:
        """`sql` once for every entry of `values`."""
        listed = list(values)
        if listed:
            self._run_each(sql, listed)

    def among(self, sql: str, ids: Sequence[str], *values: Any) -> list[tuple[Any, ...]]:
        """The rows of `sql`, whose `{ids}` stands for a list of `ids`, after its other `values`."""
        found = []
        for first in range(0, len(ids), GROUP):
            group = ids[first : first + GROUP]
            found += self.rows(sql.format(ids=", ".join("?" * len(group))), *values, *group)
        return found


class Dialect(Protocol):
    """A database: how to reach it, and the few words it has of its own."""

    id_type: str
    for_update: str  # at the end of a SELECT: hold its rows until the transaction ends

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What the driver raises."""

    def session(self) -> Session: ...

    def tables(self, session: Session) -> set[str]: ...

    def adopt(self, session: Session) -> None:
        """Set up what a database that is ours needs, outside a transaction; one that is not ours stays as it was."""

    def begin(self, session: Session, mode: str) -> None:
        """Begin a transaction that holds the store as `mode` says."""

    def now(self, session: Session) -> float:
        """Seconds since 1970 by the clock that every process sees."""

    def vector_type(self, dimension: int) -> str: ...

    def pack(self, vector: np.ndarray) -> Any:
        """A vector float32 [dimension] as a parameter."""

    def unpack(self, value: Any) -> np.ndarray:
        """A parameter as it was read, as float32 [dimension]."""

    def as_bytes(self, column: str) -> str:
        """SQL for the UTF-8 bytes of a text, which may be malformed where a database allows that."""

    def watch(self, number: int) -> Sequence[str]:
        """SQL that has the database count every change of the vectors of generation `number`, by whomever.

        For databases without a `nearest` of their own. What is there already stays.
        """

    def nearest(self, session: Session, number: int, query: np.ndarray, k: int) -> list[tuple[str, float]] | None:
        """The best ids of generation `number` by cosine, or None where the database has no vectors of its own."""

    def translate(self, error: Exception) -> WeftError:
        """One of `errors` as one of weft's."""

    def let_go(self) -> None:
        """Close the connection before a fork, unless a transaction is open; `begin` opens it again."""

    def close(self) -> None: ...
