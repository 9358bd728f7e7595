"""Questions to the registry's database, and changes inside a transaction that somebody else holds."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, InvalidTransitionError, NotFoundError, VersionError
from weft.registry import states
from weft.registry.database import one, rows
from weft.registry.records import Named, Version, read_version
from weft.registry.reference import LATEST
from weft.registry.semver import Semver, is_version

if TYPE_CHECKING:
    import sqlite3

    from weft.registry.objects import Objects, Staged
    from weft.registry.reference import Reference

MAX_DATA = 1 << 20  # bytes of a data manifest


def now() -> int:
    """Microseconds since 1970."""
    return time.time_ns() // 1000


def id_of(connection: sqlite3.Connection, asked: Reference, folder: Path) -> int:
    """The number of a version; NotFoundError with what there is."""
    kind_of(connection, asked.name, folder)
    if is_version(asked.which):
        found = one(connection, "SELECT id FROM versions WHERE name = ? AND version = ?", asked.name, asked.which)
    elif asked.which == LATEST:
        found = latest(connection, asked.name)
    elif asked.which[:1].isdigit():
        Semver.parse(asked.which)  # raises, and says what a version is
        found = None
    else:
        aliased = placed(connection, asked.name, asked.which)
        found = None if aliased is None else (aliased[1],)
    if found is None:
        listed = rows(connection, "SELECT version FROM versions WHERE name = ?", asked.name)
        known = ", ".join(row[0] for row in listed[:8])
        what, advice = f"{asked.name} has no {asked.which}", f"its versions are {known}"
        raise NotFoundError("registry", what, advice=advice)
    return int(found[0])


def kind_of(connection: sqlite3.Connection, name: str, folder: Path) -> str:
    found = one(connection, "SELECT kind FROM names WHERE name = ?", name)
    if found is None:
        known = ", ".join(row[0] for row in rows(connection, "SELECT name FROM names ORDER BY name LIMIT 8"))
        advice = f"it has {known}" if known else "it is empty; add a version with `weft registry add`"
        raise NotFoundError("registry", f"the registry in {folder} has no {name}", advice=advice)
    return str(found[0])


def named(connection: sqlite3.Connection, name: str, kind: str) -> Named:
    ids = rows(connection, "SELECT id FROM versions WHERE name = ?", name)
    versions = [read_version(connection, row[0]) for row in ids]
    versions.sort(key=lambda version: Semver.parse(version.version).precedence)
    query = (
        "SELECT alias, versions.version FROM placements JOIN versions ON versions.id = placements.version "
        "WHERE placements.name = ? ORDER BY alias, depth"
    )
    return Named(name, kind, dict(rows(connection, query, name)), tuple(versions))


def latest(connection: sqlite3.Connection, name: str) -> tuple[int] | None:
    """The highest version that is not deprecated or archived; a pre-release only where there is no release."""
    usable = rows(
        connection, "SELECT id, version FROM versions WHERE name = ? AND state NOT IN ('deprecated', 'archived')", name
    )
    ranked = sorted((bool(not v.pre), v.precedence, found) for found, text in usable for v in [Semver.parse(text)])
    return (ranked[-1][2],) if ranked else None


def placed(connection: sqlite3.Connection, name: str, alias: str) -> tuple[int, int] | None:
    """The depth and version of an alias's last placement."""
    query = "SELECT depth, version FROM placements WHERE name = ? AND alias = ? ORDER BY depth DESC LIMIT 1"
    found = one(connection, query, name, alias)
    return None if found is None else (found[0], found[1])


def was_production(connection: sqlite3.Connection, version: int) -> bool:
    name, text = one(connection, "SELECT name, version FROM versions WHERE id = ?", version) or ("", "")
    query = "SELECT 1 FROM events WHERE name = ? AND version = ? AND action = 'promoted' AND detail LIKE ? LIMIT 1"
    return one(connection, query, name, text, '%"alias": "production"%') is not None


def version_of(connection: sqlite3.Connection, found: int) -> str:
    row = one(connection, "SELECT version FROM versions WHERE id = ?", found)
    assert row is not None, "placements refer to versions"
    return str(row[0])


def state_of(connection: sqlite3.Connection, found: int) -> str:
    row = one(connection, "SELECT state FROM versions WHERE id = ?", found)
    assert row is not None
    return str(row[0])


def move_state(connection: sqlite3.Connection, found: int, after: str) -> None:
    row = one(connection, "SELECT name, version, state FROM versions WHERE id = ?", found)
    assert row is not None
    name, version, before = row
    states.check_move(name, version, before, after)
    connection.execute("UPDATE versions SET state = ? WHERE id = ?", (after, found))
    note(connection, name, version, "state", before=before, after=after)


def note(connection: sqlite3.Connection, name: str, version: str, action: str, **detail: Any) -> None:
    row = (now(), name, version, action, json.dumps(detail, sort_keys=True))
    connection.execute("INSERT INTO events (at, name, version, action, detail) VALUES (?, ?, ?, ?, ?)", row)


def existing(connection: sqlite3.Connection, name: str, wanted: Semver, kind: str, tree: str) -> int | None:
    """The version itself, if it was added with the same files; an error if it, or one of equal rank, has others."""
    known = one(connection, "SELECT kind FROM names WHERE name = ?", name)
    if known is not None and known[0] != kind:
        advice = "choose another name: one name has versions of one kind"
        raise InputError("registry", f"{name} is of kind {known[0]}", field="kind", given=kind, advice=advice)
    for found, text, other in rows(connection, "SELECT id, version, tree FROM versions WHERE name = ?", name):
        if text == wanted.text and other == tree:
            return int(found)
        if Semver.parse(text).precedence == wanted.precedence:
            what = f"{name}@{text} exists with other files" if text == wanted.text else f"has the same rank as {text}"
            advice = "a version never changes; choose a higher one"
            raise VersionError("registry", what, field="version", given=wanted.text, advice=advice)
    return None


def insert(
    connection: sqlite3.Connection,
    name: str,
    kind: str,
    version: str,
    staged: Staged,
    about: tuple[str | None, str | None, str],
) -> int:
    base, data, description = about
    connection.execute("INSERT OR IGNORE INTO names VALUES (?, ?, ?)", (name, kind, now()))
    files = json.dumps(staged.files, sort_keys=True)
    connection.execute("INSERT OR IGNORE INTO trees VALUES (?, ?, ?)", (staged.digest, files, staged.size))
    row = (name, version, states.PENDING, staged.digest, staged.main, base, data, description, now())
    query = (
        "INSERT INTO versions (name, version, state, tree, main, base, data, description, created) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    return int(connection.execute(query, row).lastrowid or 0)


def evaluate(connection: sqlite3.Connection, found: int, metrics: Mapping[str, float], data: str) -> None:
    row = one(connection, "SELECT name, version, state FROM versions WHERE id = ?", found)
    assert row is not None
    for metric, value in metrics.items():
        query = "INSERT INTO evaluations (version, metric, value, data, at) VALUES (?, ?, ?, ?, ?)"
        connection.execute(query, (found, metric, value, data, now()))
    note(connection, row[0], row[1], "evaluated", metrics=dict(metrics), data=data)
    if row[2] == states.PENDING:
        move_state(connection, found, states.VALIDATED)


def checked_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    made = {}
    for name, value in metrics.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not isinstance(name, str) or not 0 < len(name) <= 100 or not number:
            wanted = "must map names to finite numbers"
            raise InputError("registry", wanted, field="metrics", given={name: value})
        made[name] = float(value)
    return made


def checked_data(data: Mapping[str, Any] | None) -> str | None:
    if data is None:
        return None
    try:
        text = json.dumps(data, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise InputError("registry", "must be an object of JSON", field="data", given=data) from None
    if len(text) > MAX_DATA or not isinstance(data, Mapping):
        raise InputError("registry", f"must be an object of JSON of at most {MAX_DATA} bytes", field="data")
    return text


def check_unneeded(connection: sqlite3.Connection, version: Version) -> None:
    """Refuse to archive a version that others are loaded with."""
    query = (
        "SELECT versions.name, versions.version FROM parents JOIN versions ON versions.id = parents.child "
        "WHERE parents.parent = ? AND role = 'base' AND state <> 'archived' LIMIT 1"
    )
    needed = one(connection, query, version.id)
    if needed is not None:
        what = f"{version.reference} is the base of {needed[0]}@{needed[1]}"
        raise InvalidTransitionError("registry", what, advice="archive that one first")


def files_of(connection: sqlite3.Connection, tree: str) -> dict[str, tuple[str, int]]:
    row = one(connection, "SELECT files FROM trees WHERE digest = ?", tree)
    assert row is not None, "versions refer to trees"
    return {name: (content, size) for name, (content, size) in json.loads(row[0]).items()}


def known_files(connection: sqlite3.Connection, staged: Staged, objects: Objects) -> dict[str, Path]:
    """Files of other trees with the content of staged ones, by SHA-256."""
    wanted = {content for content, _ in staged.files.values()}
    found = {}
    for tree, files in rows(connection, "SELECT digest, files FROM trees"):
        for name, (content, _) in json.loads(files).items():
            if content in wanted:
                found[content] = objects.tree(tree) / name
    return found


def relatives(connection: sqlite3.Connection, start: int, *, up: bool) -> list[tuple[int, str, Version]]:
    """(distance, role, version) of all ancestors or descendants, nearest first."""
    own, other = ("child", "parent") if up else ("parent", "child")
    seen, found, level, distance = {start}, [], [start], 0
    while level:
        distance += 1
        following = []
        for current in level:
            for relative, role in rows(connection, f"SELECT {other}, role FROM parents WHERE {own} = ?", current):
                if relative not in seen:
                    seen.add(relative)
                    following.append(relative)
                    found.append((distance, role, read_version(connection, relative)))
        level = following
    return found
