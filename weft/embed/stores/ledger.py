"""The ledger of migrations: every move of the state machine is one transaction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from weft.embed.stores import generations
from weft.embed.stores.database import Database
from weft.embed.stores.dialect import ALONE, READ, SHARED, Session
from weft.embed.stores.states import KEPT, ROLLED_BACK, Migration, Reason, State, missing, moved, state_of
from weft.embed.stores.values import check_model, checked_ids, one_line
from weft.errors import InputError, InvalidTransitionError, LeaseError, NotFoundError, SkipsError

WINDOW_S = 86_400.0
LEASE_S = 30.0
SKIPPED_SHARE = 0.01  # the share of documents that may be missing after a cut-over, by default
ERROR_LENGTH = 2000  # characters of an error's text that are stored
# What a skip means in a message, after a number of documents.
SKIPPED_BECAUSE = {
    Reason.CONTENT_TOO_LARGE.value: "exceed the model's token limit",
    Reason.INVALID_ENCODING.value: "are not valid UTF-8",
    Reason.PERMANENT_API_ERROR.value: "were refused by the model or its server",
}

COLUMNS = (
    "id, source, target, dimension, model, state, settled, processed, generation, skips, error, window_s, planned_at, "
    "started_at, ended_at, worked_s, lease_owner, lease_until"
)


class Ledger:
    """`store.migrations`. At most one migration is open: neither cancelled, nor settled after its cut-over."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Reading

    def open(self) -> Migration | None:
        """The open migration, or None."""
        with self._database.transaction(READ) as session:
            return _find_open(session)

    def current(self, action: str) -> Migration:
        """The open migration; where there is none, InvalidTransitionError says that `action` is impossible."""
        with self._database.transaction(READ) as session:
            return _open(session, action)

    def get(self, number: int) -> Migration:
        """The migration with this id."""
        with self._database.transaction(READ) as session:
            row = session.row(f"SELECT {COLUMNS} FROM migrations WHERE id = ?", number)
            if row is None:
                raise NotFoundError("migrate", f"this store has no migration {number}")
            return _record(session, row)

    def history(self) -> list[Migration]:
        """All migrations, the oldest first."""
        with self._database.transaction(READ) as session:
            return [_record(session, row) for row in session.rows(f"SELECT {COLUMNS} FROM migrations ORDER BY id")]

    def skipped(self) -> list[tuple[str, str, str]]:
        """Documents that the open migration skips, or else those that lack a served vector: id, reason, detail."""
        with self._database.transaction(READ) as session:
            number = session.row("SELECT generation FROM migrations WHERE open = 1 AND generation IS NOT NULL")
            number = number or session.row(
                "SELECT g.number FROM generations g JOIN served s ON s.fingerprint = g.fingerprint"
            )
            if number is None:
                return []
            rows = session.rows("SELECT id, reason, detail FROM skips WHERE generation = ? ORDER BY id", number[0])
            return [(name, reason, detail) for name, reason, detail in rows]

    def skips(self, fingerprint: str) -> dict[str, int]:
        """How many documents have no vector of a fingerprint, by reason."""
        with self._database.transaction(READ) as session:
            return generations.skipped(session, generations.find(session, fingerprint).number)

    # Moves

    def plan(self, fingerprint: str, dimension: int, model: str = "", *, window_s: float = WINDOW_S) -> Migration:
        """Record that the store is to be migrated to a fingerprint; nothing else changes yet."""
        if not 0 <= window_s < 1e9:
            raise InputError("migrate", "must be 0 to 1e9 seconds", field="window_s", given=window_s)
        check_model(fingerprint, dimension, model)
        with self._database.transaction(ALONE) as session:
            known = _find_open(session)
            if known is not None:
                advice = "finish it or roll it back" if known.state is State.COMPLETED else "resume or cancel it"
                raise InvalidTransitionError(
                    "migrate",
                    f"a migration to {known.model or known.target} is already {known.state.value} in this store",
                    advice=f"{advice} first",
                )
            (served,) = session.row("SELECT fingerprint FROM served") or (None,)
            if served == fingerprint:
                raise InputError("migrate", f"{model or fingerprint[:80]} is already served: there is nothing to do")
            session.run(
                "INSERT INTO migrations (id, open, source, target, dimension, model, state, processed, window_s, "
                "planned_at, worked_s) VALUES (?, 1, ?, ?, ?, ?, ?, 0, ?, ?, 0)",
                *(1 + count(session, "SELECT coalesce(max(id), 0) FROM migrations"), served, fingerprint, dimension),
                *(model, State.PLANNED.value, window_s, self._database.now(session)),
            )
            return _open(session, "plan")

    def start(self, owner: str, lease_s: float = LEASE_S) -> Migration:
        """Begin a planned migration: from now on writes keep both generations, and all documents wait for vectors."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "start")
            state = moved("start", before.state)
            made = generations.create(self._database.dialect, session, before.target, before.dimension, before.model)
            session.run("INSERT INTO todo SELECT CAST(? AS INTEGER), id FROM documents WHERE deleted = 0", made.number)
            _set(session, state=state, generation=made.number, started_at=self._database.now(session))
            self._take(session, before, owner, lease_s, take_over=False)
            return _open(session, "start")

    def resume(self, owner: str, lease_s: float = LEASE_S, *, take_over: bool = False) -> Migration:
        """Resume a paused or failed migration, or a running one whose process has died.

        A process counts as dead once its lease has expired. `take_over` does not wait for that; if the process is still
        alive, its next commit is refused.
        """
        with self._database.transaction(ALONE) as session:
            before = _open(session, "resume")
            _set(session, state=moved("resume", before.state), error=None)
            self._take(session, before, owner, lease_s, take_over=take_over)
            return _open(session, "resume")

    def pause(self, owner: str | None = None) -> Migration:
        """Pause a running migration, whichever process runs it; with `owner`, only if that process does.

        The process that runs it notices at its next commit, which is refused.
        """
        with self._database.transaction(ALONE) as session:
            before = _open(session, "pause")
            state = moved("pause", before.state)
            if owner is not None:
                _check_owner(before.lease_owner, before.lease_until, owner)
            _set(session, state=state, lease_owner=None, lease_until=None)
            return _open(session, "pause")

    def fail(self, owner: str, error: str) -> Migration:
        """Record the error that stopped the process `owner`."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "fail")
            state = moved("fail", before.state)
            _check_owner(before.lease_owner, before.lease_until, owner)
            _set(session, state=state, error=one_line(error, ERROR_LENGTH), lease_owner=None, lease_until=None)
            return _open(session, "fail")

    def cancel(self) -> Migration:
        """Cancel a migration before its cut-over: the new vectors are dropped, and the old ones stay served."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "cancel")
            _set(session, state=moved("cancel", before.state), ended_at=self._database.now(session))
            if before.state is not State.PLANNED:
                generations.drop(session, generations.find(session, before.target))
            return _close(session, before, None)

    def complete(self, owner: str, *, allow_skips: int | None = None) -> Migration | None:
        """Cut over: serve the new vectors, in one transaction. None while documents still wait for theirs.

        Refused if more than `allow_skips` documents would be missing (by default SKIPPED_SHARE of all); documents that
        were skipped by hand do not count.
        """
        with self._database.transaction(ALONE) as session:
            before = _open(session, "complete")
            state = moved("complete", before.state)
            _check_owner(before.lease_owner, before.lease_until, owner)
            if before.remaining:
                return None
            _check_skips(session, before.skips, allow_skips, before.source and "the old vectors are still served")
            session.run("UPDATE served SET fingerprint = ?", before.target)
            _set(session, state=state, ended_at=self._database.now(session), lease_owner=None, lease_until=None)
            return _close(session, before, KEPT) if before.source is None else _open(session, "complete")

    def rollback(self, *, allow_skips: int | None = None) -> Migration:
        """Serve the old vectors again and drop the new ones. No document may wait for its old vector
        (`Migrator.rollback` embeds them); as many may lack one as at a cut-over (`complete`)."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "rollback")
            moved("rollback", before.state)
            assert before.source is not None  # one without a source was settled at its cut-over
            old = generations.find(session, before.source)
            waiting = count(session, "SELECT count(*) FROM todo WHERE generation = ?", old.number)
            if waiting:
                raise InvalidTransitionError(
                    "migrate",
                    f"cannot roll back yet: {waiting} documents that changed since the cut-over have no vector of "
                    f"{old.model or old.fingerprint}",
                    advice="embed them first: Migrator(store, old_embedder).rollback()",
                )
            skips = generations.skipped(session, old.number)
            _check_skips(session, skips, allow_skips, "the new vectors are still served")
            session.run("UPDATE served SET fingerprint = ?", before.source)
            generations.drop(session, generations.find(session, before.target))
            return _close(session, before, ROLLED_BACK)

    def finish(self, *, now: bool = False) -> Migration:
        """Drop the old vectors once the rollback window has ended; `now` does not wait for that."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "finish")
            moved("finish", before.state)
            left = self._window_left(session, before)
            if left and not now:
                raise InvalidTransitionError(
                    "migrate",
                    f"cannot finish yet: {duration(left)} left in the rollback window",
                    advice="finish(now=True) skips the wait",
                )
            assert before.source is not None
            generations.drop(session, generations.find(session, before.source))
            return _close(session, before, KEPT)

    def window_left(self) -> float:
        """Seconds until `finish` may drop the old vectors; 0 where it may do so now, or there is nothing to drop."""
        with self._database.transaction(READ) as session:
            found = _find_open(session)
            return 0.0 if found is None else self._window_left(session, found)

    def _window_left(self, session: Session, migration: Migration) -> float:
        return max(0.0, (migration.window_ends_at or 0.0) - self._database.now(session))

    def rename(self, fingerprint: str, model: str) -> None:
        """Give the vectors of a fingerprint another name for people, such as the model's name with other options."""
        check_model(fingerprint, 1, model)
        with self._database.transaction(ALONE) as session:
            number = generations.find(session, fingerprint).number
            session.run("UPDATE generations SET model = ? WHERE number = ?", model, number)
            session.run("UPDATE migrations SET model = ? WHERE generation = ?", model, number)

    def skip(self, ids: str | Iterable[str]) -> None:
        """Skip documents that are still waiting; a string is one id."""
        ids = checked_ids(ids)
        with self._database.transaction(SHARED) as session:
            before = _open(session, "skip")
            moved("skip", before.state)
            generation = generations.find(session, before.target)
            held = "SELECT id, revision FROM documents WHERE id IN ({ids}) ORDER BY id "
            found = session.among(held + self._database.dialect.for_update, sorted(set(ids)))
            waiting = generations.waiting(session, generation, ids)
            strange = [name for name in ids if name not in waiting]
            if strange:
                raise InputError(
                    "migrate", f"cannot skip document {strange[0][:80]!r}: it is not waiting to be embedded"
                )
            rows = [(name, revision, Reason.MANUAL_SKIP.value, "") for name, revision in found]
            generations.skip(session, generation, rows)

    # The lease

    def lease(self, owner: str, lease_s: float = LEASE_S, *, take_over: bool = False) -> Migration:
        """Take the lease of a completed migration, for the work before a rollback."""
        with self._database.transaction(ALONE) as session:
            before = _open(session, "rollback")
            moved("rollback", before.state)
            self._take(session, before, owner, lease_s, take_over=take_over)
            return before

    def lease_left(self) -> float:
        """Seconds until the lease expires; 0 where no process holds it."""
        with self._database.transaction(READ) as session:
            found = _find_open(session)
            until = found.lease_until if found is not None else None
            return 0.0 if until is None else max(0.0, until - self._database.now(session))

    def renew(self, owner: str, lease_s: float) -> bool:
        """Extend the lease of the process `owner`; see `hold`."""
        with self._database.transaction(SHARED) as session:
            return self.hold(session, owner, lease_s)

    def release(self, owner: str) -> None:
        """Release the lease if `owner` still holds it."""
        with self._database.transaction(SHARED) as session:
            session.run(
                "UPDATE migrations SET lease_owner = NULL, lease_until = NULL WHERE open = 1 AND lease_owner = ?", owner
            )

    def hold(self, session: Session, owner: str, lease_s: float) -> bool:
        """Extend the lease inside a transaction; see `held`. If the lease is lost, the transaction must not commit."""
        until = self._database.now(session) + lease_s
        renewed = session.run("UPDATE migrations SET lease_until = ? WHERE open = 1 AND lease_owner = ?", until, owner)
        return bool(renewed) or self.held(session, owner)

    def held(self, session: Session, owner: str) -> bool:
        """Whether `owner` holds the lease: False if the migration was paused or ended; LeaseError if another process
        holds it."""
        row = session.row("SELECT lease_owner, lease_until FROM migrations WHERE open = 1")
        if row is None or row[0] is None:
            return False
        _check_owner(row[0], row[1], owner)
        return True

    def _take(self, session: Session, before: Migration, owner: str, lease_s: float, *, take_over: bool) -> None:
        now, until = self._database.now(session), before.lease_until or 0.0
        if before.lease_owner not in (None, owner) and until > now and not take_over:
            raise LeaseError(
                "migrate",
                f"process {before.lease_owner} is running this migration; its lease expires in {until - now:.0f} s",
                advice="wait, or take the migration over (--take-over, take_over=True) if that process has died",
                until=until,
            )
        _set(session, lease_owner=owner, lease_until=now + lease_s)


def count(session: Session, sql: str, *values: Any) -> int:
    row = session.row(sql, *values)
    assert row
    return int(row[0])


def _find_open(session: Session) -> Migration | None:
    row = session.row(f"SELECT {COLUMNS} FROM migrations WHERE open = 1")
    return None if row is None else _record(session, row)


def _open(session: Session, action: str) -> Migration:
    found = _find_open(session)
    if found is None:
        raise InvalidTransitionError(
            "migrate",
            f"cannot {action}: no migration is open in this store",
            advice="`weft migrate STORE --to MODEL` starts one, `weft migrate status STORE` shows the last one",
        )
    return found


def _record(session: Session, row: Sequence[Any]) -> Migration:
    fields = dict(zip(COLUMNS.split(", "), row))
    generation, skips = fields.pop("generation"), fields.pop("skips")
    if skips is not None:  # closed: its rows in skips and todo may have been dropped
        found, remaining = json.loads(skips), 0
    else:
        found = generations.skipped(session, generation)
        remaining = count(session, "SELECT count(*) FROM todo WHERE generation = ?", generation)
    return Migration(**{**fields, "state": state_of(fields["state"])}, skips=found, remaining=remaining)


def _set(session: Session, **columns: Any) -> None:
    """Update columns of the open migration."""
    names = ", ".join(f"{name} = ?" for name in columns)
    values = (value.value if isinstance(value, State) else value for value in columns.values())
    session.run(f"UPDATE migrations SET {names} WHERE open = 1", *values)


def _check_owner(holder: str | None, until: float | None, owner: str) -> None:
    if holder != owner:
        raise LeaseError(
            "migrate",
            f"process {holder or 'unknown'} took this migration over; the last batch of this process was not committed",
            until=until or 0.0,
        )


def _check_skips(session: Session, skips: Mapping[str, int], allowed: int | None, served: str | None) -> None:
    """Refuse to serve vectors that too many documents lack; `served` says what stays served."""
    documents = count(session, "SELECT count(*) FROM documents WHERE deleted = 0")
    most = int(documents * SKIPPED_SHARE) if allowed is None else allowed
    lacking = missing(skips)
    if lacking > most:
        found = {why: skips[reason] for reason, why in SKIPPED_BECAUSE.items() if skips.get(reason)}
        if len(found) == 1:
            why = next(iter(found))
        else:
            why = f"cannot be embedded ({', '.join(f'{number} {why}' for why, number in found.items())})"
        raise SkipsError(
            "migrate",
            f"{lacking} of {documents} documents {why}, and at most {most} may be skipped; "
            + (served or "no vectors are served yet"),
            advice="retry them with an embedder that truncates, or raise allow_skips",
        )


def duration(seconds: float) -> str:
    """23 h 59 min, 4 min 10 s or 12 s."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _close(session: Session, before: Migration, settled: str | None) -> Migration:
    """Close a migration. The counts of skips are stored in its row, as its generation may be dropped."""
    skips = json.dumps(before.skips, sort_keys=True)
    _set(session, settled=settled, skips=skips, lease_owner=None, lease_until=None, open=None)
    row = session.row(f"SELECT {COLUMNS} FROM migrations WHERE id = ?", before.id)
    assert row
    return _record(session, row)
