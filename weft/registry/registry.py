"""The registry: models, adapters, classifiers and indexes by name and version, promoted and rolled back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError, InvalidTransitionError
from weft.registry import queries, reference, shadow, states
from weft.registry.database import Database, one, rows
from weft.registry.objects import Objects, size_of
from weft.registry.records import Event, Garbage, Lineage, Move, Named, Version, read_version
from weft.registry.reference import PRODUCTION, Reference
from weft.registry.semver import Semver

if TYPE_CHECKING:
    import sqlite3

    from weft.registry.shadow import Shadow

KINDS = ("model", "adapter", "classifier", "index")
KEPT_PLACEMENTS = 100  # of an alias, to roll back to
BASE, PARENT = "base", "parent"
NOT_BACK = (states.ARCHIVED, states.DEPRECATED)  # a rollback passes over these


class Registry:
    """The registry in a folder; None means WEFT_REGISTRY, or ~/.local/share/weft/registry.

    Any number of processes and threads may use a folder at once. Each change is one transaction, on the disk when the
    call returns. Versions are named as `support@1.2.0`, by alias as `support@production`, or `support@latest`.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, create: bool = True) -> None:
        self.folder = Path(reference.default_folder() if folder is None else folder).expanduser().absolute()
        self.database = Database(self.folder, create=create)
        self.objects = Objects(self.folder)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # Shadow runs

    def start_shadow(self, candidate: str, *, alias: str = PRODUCTION, **limits: Any) -> Shadow:
        """Compare a version with what `alias` means, on a share of the requests of servers that follow it. `limits` are
        the fields of ShadowLimits."""
        unknown = sorted(limits.keys() - {f.name for f in fields(shadow.ShadowLimits)})
        if unknown:
            raise InputError("shadow", f"unknown limit {', '.join(unknown)}")
        return shadow.start(self.database, self.folder, candidate, shadow.limits_of(limits), alias=alias)

    def stop_shadow(self, name: str) -> Shadow:
        """End the run under way; its candidate has not passed."""
        return shadow.stop(self.database, name)

    def shadow(self, name: str) -> Shadow | None:
        """The run under way, or else the last one."""
        return shadow.latest(self.database, self.folder, name)

    # Reading

    def names(self) -> list[Named]:
        """Every name, with its kind, aliases and versions in order."""
        with self.database.reading() as connection:
            found = rows(connection, "SELECT name, kind FROM names ORDER BY name")
            return [queries.named(connection, name, kind) for name, kind in found]

    def named(self, name: str) -> Named:
        """One name; NotFoundError if it has no version."""
        with self.database.reading() as connection:
            return queries.named(
                connection, name, queries.kind_of(connection, reference.checked_name(name), self.folder)
            )

    def get(self, which: str) -> Version:
        """The version that `NAME[@VERSION|@ALIAS|@latest]` means now; without @, the one in production."""
        with self.database.reading() as connection:
            return read_version(connection, self._id(connection, reference.parse(which)))

    def path(self, which: str, *, tell: Callable[[int], None] | None = None) -> Path:
        """The folder or file of a version, all its bytes compared with their digests; archived ones are refused."""
        with self.database.reading() as connection:
            asked = reference.parse(which)
            version = read_version(connection, self._id(connection, asked))
            files = queries.files_of(connection, version.digest)
        if version.state == states.ARCHIVED:
            what = f"{version.reference} is archived and does not load"
            raise InvalidTransitionError("registry", what, advice="choose another version")
        folder = self.objects.verify(version.digest, files, tell)
        return folder / version.main if version.main else folder

    def events(self, name: str | None = None, *, limit: int = 100) -> list[Event]:
        """What happened, newest first."""
        chosen = "" if name is None else "WHERE name = ?"
        values = () if name is None else (name,)
        query = f"SELECT id, at, name, version, action, detail FROM events {chosen} ORDER BY id DESC LIMIT {int(limit)}"
        with self.database.reading() as connection:
            return [
                Event(id, at, called, version, action, json.loads(detail))
                for id, at, called, version, action, detail in rows(connection, query, *values)
            ]

    def lineage(self, which: str) -> Lineage:
        """A version, what it was made from, and what was made from it."""
        with self.database.reading() as connection:
            found = self._id(connection, reference.parse(which))
            return Lineage(
                read_version(connection, found),
                tuple(queries.relatives(connection, found, up=True)),
                tuple(queries.relatives(connection, found, up=False)),
            )

    # Adding

    def add(
        self,
        name: str,
        source: str | os.PathLike[str],
        version: str,
        *,
        kind: str = "model",
        base: str | None = None,
        parents: Sequence[str] = (),
        data: Mapping[str, Any] | None = None,
        evaluations: Mapping[str, float] | None = None,
        description: str = "",
        link: bool = False,
        tell: Callable[[int], None] | None = None,
    ) -> Version:
        """Copy the folder or file `source` into the registry as a version of `name`.

        `base` is what an adapter is loaded with: `registry:NAME@WHICH`, which is pinned to the version that it means
        now, or any other model name. `parents` are versions it was made from. `data` is a manifest of what it was
        trained on. `link` makes hard links in place of copies: quick, but whoever changes the files then damages the
        version. Adding the same files again as the same version changes nothing. `tell` gets the bytes done.
        """
        wanted = Semver.parse(version)
        name, measured = reference.checked_name(name), queries.checked_metrics(evaluations or {})
        if kind not in KINDS:
            raise InputError("registry", f"must be one of {', '.join(KINDS)}", field="kind", given=kind)
        if (kind == "adapter") != (base is not None):
            advice = "give base= (--base on the command line)" if base is None else "leave it out"
            raise InputError("registry", "is for adapters, which need it", field="base", given=base, advice=advice)
        stated = queries.checked_data(data)
        with self.database.writing():
            place = self.objects.begin()
        with self.objects.staged(place, Path(source), link=link, tell=tell or _silent) as staged:
            damaged = self.objects.is_damaged(staged)
            with self.database.reading() as connection:
                self.objects.share(staged, queries.known_files(connection, staged, self.objects))
            with self.database.writing() as connection:
                existing = queries.existing(connection, name, wanted, kind, staged.digest)
                if existing is not None and not damaged:
                    return read_version(connection, existing)
                pinned, ancestors = self._ancestors(connection, base, parents)
                self.objects.place(staged, damaged=damaged)
                if existing is not None:  # its files were damaged and are whole again
                    queries.note(connection, name, version, "restored", digest=staged.digest)
                    return read_version(connection, existing)
                found = queries.insert(connection, name, kind, version, staged, (pinned, stated, description))
                for parent, role in ancestors:
                    connection.execute("INSERT OR IGNORE INTO parents VALUES (?, ?, ?)", (found, parent, role))
                queries.note(connection, name, version, "added", digest=staged.digest, kind=kind, base=pinned)
                if measured:
                    queries.evaluate(connection, found, measured, "")
                return read_version(connection, found)

    def _ancestors(
        self, connection: sqlite3.Connection, base: str | None, parents: Sequence[str]
    ) -> tuple[str | None, list[tuple[int, str]]]:
        """The base with its version, and the versions that a new one comes from."""
        ancestors = [(self._id(connection, reference.parse(parent)), PARENT) for parent in parents]
        if base is None or not base.startswith(reference.PREFIX):
            return base, ancestors
        found = self._id(connection, reference.parse(base))
        pinned = read_version(connection, found)
        if pinned.kind != "model":
            raise InputError("registry", f"must be a model; {pinned.reference} is of kind {pinned.kind}", field="base")
        return f"{reference.PREFIX}{pinned.reference}", [(found, BASE), *ancestors]

    def _id(self, connection: sqlite3.Connection, asked: Reference) -> int:
        return queries.id_of(connection, asked, self.folder)

    # Changing

    def evaluate(self, which: str, metrics: Mapping[str, float], *, data: str = "") -> Version:
        """Record measures of a version; a pending one is then validated. `data` says what it was measured on."""
        measured = queries.checked_metrics(metrics)
        if not measured:
            raise InputError("registry", "needs at least one measure", field="metrics", given=metrics)
        with self.database.writing() as connection:
            found = self._id(connection, reference.parse(which))
            queries.evaluate(connection, found, measured, data)
            return read_version(connection, found)

    def mark(self, which: str, state: str) -> Version:
        """Move a version to `validated`, `staged`, `deprecated` or `archived`; `promote` moves it to production."""
        if state not in states.MOVES or state in (states.PENDING, states.PRODUCTION):
            allowed = [one for one in states.MOVES if one not in (states.PENDING, states.PRODUCTION)]
            wanted = f"must be one of {', '.join(allowed)}"
            raise InputError("registry", wanted, field="state", given=state, advice="`promote` moves to production")
        with self.database.writing() as connection:
            found = self._id(connection, reference.parse(which))
            version = read_version(connection, found)
            if version.state == state:
                return version
            if state == states.ARCHIVED:
                queries.check_unneeded(connection, version)
            queries.move_state(connection, found, state)
            return read_version(connection, found)

    def promote(self, which: str, *, to: str = PRODUCTION, force: bool = False) -> Move:
        """Let the alias `to` mean this version. In production it replaces the one before, which is then staged.

        Refused for a version that failed its last shadow run, or that nothing is known about; `force` allows it.
        """
        alias = reference.checked_alias(to)
        with self.database.writing() as connection:
            found = self._id(connection, reference.parse(which, default=reference.CANDIDATE))
            version = read_version(connection, found)
            before = queries.placed(connection, version.name, alias)
            if before is not None and before[1] == found:
                return Move(version.name, alias, version.version, version.version)
            if version.state == states.ARCHIVED:
                states.check_move(version.name, version.version, states.ARCHIVED, alias)
            if alias == PRODUCTION:
                self._to_production(connection, version, found, force)
            elif alias == reference.CANDIDATE and version.state in (states.PENDING, states.VALIDATED):
                queries.move_state(connection, found, states.STAGED)
            shadow.interrupt(connection, version.name, alias)
            previous = None if before is None else queries.version_of(connection, before[1])
            depth = 0 if before is None else before[0] + 1
            placement = (version.name, alias, depth, found, queries.now())
            connection.execute("INSERT INTO placements VALUES (?, ?, ?, ?, ?)", placement)
            connection.execute(
                "DELETE FROM placements WHERE name = ? AND alias = ? AND depth <= ?",
                (version.name, alias, depth - KEPT_PLACEMENTS),
            )
            forced = {"forced": True} if force else {}
            queries.note(
                connection, version.name, version.version, "promoted", alias=alias, previous=previous, **forced
            )
            return Move(version.name, alias, version.version, previous)

    def _to_production(self, connection: sqlite3.Connection, version: Version, found: int, force: bool) -> None:
        failed = one(
            connection, "SELECT verdict, reason FROM shadows WHERE candidate = ? ORDER BY id DESC LIMIT 1", found
        )
        if failed is not None and failed[0] == "failed" and not force:
            what = f"{version.reference} failed shadow: {failed[1]}"
            raise InvalidTransitionError("registry", what, advice="promote another version, or use --force")
        known = version.state not in (states.PENDING, states.STAGED) or version.evaluations
        passed = failed is not None and failed[0] == "passed"
        if not (force or known or passed or queries.was_production(connection, found)):
            states.check_move(version.name, version.version, states.PENDING, states.PRODUCTION)
        if version.state == states.DEPRECATED:
            states.check_move(version.name, version.version, states.DEPRECATED, states.PRODUCTION)
        current = one(connection, "SELECT id FROM versions WHERE name = ? AND state = 'production'", version.name)
        if current is not None:
            queries.move_state(connection, current[0], states.STAGED)
        if version.state == states.PENDING:
            queries.move_state(connection, found, states.VALIDATED)
        queries.move_state(connection, found, states.PRODUCTION)

    def rollback(self, name: str, *, alias: str = PRODUCTION) -> Move:
        """Let an alias mean the version that it meant before the present one; archived ones are passed over."""
        with self.database.writing() as connection:
            name = reference.checked_name(name)
            queries.kind_of(connection, name, self.folder)
            placed = rows(
                connection,
                "SELECT depth, placements.version, state FROM placements JOIN versions ON versions.id = "
                "placements.version WHERE placements.name = ? AND alias = ? ORDER BY depth DESC",
                name,
                reference.checked_alias(alias),
            )
            current = placed[0][1] if placed else None
            back = next(((d, v) for d, v, s in placed if v != current and s not in NOT_BACK), None)
            if current is None or back is None:
                what = f"{name}@{alias} has no earlier version to go back to"
                raise InvalidTransitionError("registry", what, advice=f"`weft registry show {name}` shows its history")
            depth, found = back
            shadow.interrupt(connection, name, alias)
            if alias == PRODUCTION:
                queries.move_state(connection, current, states.STAGED)
                if queries.state_of(connection, found) == states.PENDING:
                    queries.move_state(connection, found, states.VALIDATED)
                queries.move_state(connection, found, states.PRODUCTION)
            connection.execute(
                "DELETE FROM placements WHERE name = ? AND alias = ? AND depth > ?", (name, alias, depth)
            )
            left, now = queries.version_of(connection, current), queries.version_of(connection, found)
            queries.note(connection, name, now, "rolled back", alias=alias, previous=left)
            return Move(name, alias, now, left)

    def gc(self, *, dry_run: bool = False) -> Garbage:
        """Remove files that no version needs: of archived versions, and what killed processes left."""
        with self.database.writing() as connection:  # nobody adds meanwhile
            kept = {row[0] for row in rows(connection, "SELECT tree FROM versions WHERE state <> 'archived'")}
            found = self.objects.garbage(kept)
            size = sum(size_of(path) for path in found)
            if not dry_run:
                for path in found:
                    self.objects.remove(path)
                if found:
                    queries.note(connection, "", "", "gc", removed=len(found), size_bytes=size)
        return Garbage(tuple(found), size, removed=not dry_run)


def _silent(count: int) -> None: ...
