"""What the registry's methods return."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen
from weft.registry.database import one, rows

if TYPE_CHECKING:
    import sqlite3

MICROSECONDS = 1_000_000


@frozen
class Evaluation:
    metric: str
    value: float
    data: str  # what it was measured on
    at: float  # seconds since 1970

    def as_dict(self) -> dict[str, Any]:
        return {"metric": self.metric, "value": self.value, "data": self.data, "at": self.at}


@frozen
class Version:
    """One version as it is now. `digest` is over all its files; `base` is the model that an adapter is loaded with."""

    id: int
    name: str
    version: str
    kind: str
    state: str
    digest: str
    size_bytes: int
    main: str  # the file that is loaded, "" for the folder
    base: str | None
    data: Mapping[str, Any] | None
    description: str
    created: float  # seconds since 1970
    aliases: tuple[str, ...]
    parents: tuple[str, ...]
    evaluations: tuple[Evaluation, ...]

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"

    def as_dict(self) -> dict[str, Any]:
        """The version as JSON has it."""
        return {
            "name": self.name,
            "version": self.version,
            "kind": self.kind,
            "state": self.state,
            "aliases": list(self.aliases),
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "base": self.base,
            "parents": list(self.parents),
            "data": None if self.data is None else dict(self.data),
            "description": self.description,
            "created": self.created,
            "evaluations": [one.as_dict() for one in self.evaluations],
        }


@frozen
class Named:
    """A name with its versions, lowest first; `aliases` maps each to a version."""

    name: str
    kind: str
    aliases: Mapping[str, str]
    versions: tuple[Version, ...]


@frozen
class Move:
    """An alias that was moved; `previous` is None where it meant nothing before."""

    name: str
    alias: str
    version: str
    previous: str | None

    @property
    def changed(self) -> bool:
        return self.version != self.previous

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "alias": self.alias, "version": self.version, "previous": self.previous}


@frozen
class Event:
    """Something that happened; events are never changed or removed."""

    id: int
    at_microseconds: int
    name: str
    version: str
    action: str
    detail: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "at": self.at_microseconds / MICROSECONDS,
            "name": self.name,
            "version": self.version,
            "action": self.action,
            "detail": dict(self.detail),
        }


@frozen
class Lineage:
    """A version with its ancestors and descendants, each as (distance, role, version), nearest first."""

    version: Version
    ancestors: tuple[tuple[int, str, Version], ...]
    descendants: tuple[tuple[int, str, Version], ...]


@frozen
class Garbage:
    """What `gc` removed, or would remove."""

    paths: tuple[Path, ...]
    size_bytes: int
    removed: bool


def read_version(connection: sqlite3.Connection, id: int) -> Version:
    query = (
        "SELECT versions.id, versions.name, version, kind, state, tree, size, main, base, data, description, "
        "versions.created FROM versions JOIN trees ON trees.digest = tree JOIN names ON names.name = versions.name "
        "WHERE versions.id = ?"
    )
    row = one(connection, query, id)
    assert row is not None, "the caller found this number in the same transaction"
    found, name, *rest, data, description, created = row
    same = "other.name = placements.name AND other.alias = placements.alias"
    last = f"SELECT MAX(depth) FROM placements AS other WHERE {same}"
    placed = f"SELECT alias FROM placements WHERE name = ? AND version = ? AND depth = ({last}) ORDER BY alias"
    from_ = (
        "SELECT DISTINCT name || '@' || version FROM parents JOIN versions ON versions.id = parent "
        "WHERE child = ? ORDER BY parents.parent"
    )
    measured = "SELECT metric, value, data, at FROM evaluations WHERE version = ? ORDER BY id"
    return Version(
        **dict(zip(("version", "kind", "state", "digest", "size_bytes", "main", "base"), rest)),
        id=found,
        name=name,
        data=None if data is None else json.loads(data),
        description=description,
        created=created / MICROSECONDS,
        aliases=tuple(row[0] for row in rows(connection, placed, name, found)),
        parents=tuple(row[0] for row in rows(connection, from_, found)),
        evaluations=tuple(Evaluation(m, v, d, at / MICROSECONDS) for m, v, d, at in rows(connection, measured, found)),
    )
