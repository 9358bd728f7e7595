"""The ledger of migrations: every move of the state machine is one transaction of the store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weft.embed.stores import generations
from weft.embed.stores.dialect import ALONE, READ, SHARED, Session
from weft.embed.stores.states import KEPT, ROLLED_BACK, Migration, Reason, State, missing, moved, state_of
from weft.embed.stores.values import check_model, checked_ids, plain
from weft.errors import InputError, InvalidTransitionError, LeaseError, NotFoundError

if TYPE_CHECKING:
    from weft.embed.stores.store import Store

WINDOW_S = 86_400.0
LEASE_S = 30.0
SKIPPED_SHARE = 0.01  # of the documents may be missing after a cut-over, where nothing else is said
ERROR_LENGTH = 2000  # characters of an error's text that are kept

COLUMNS = (
    "id, source, target, dimension, model, state, settled, processed, generation, skips, error, window_s, planned_at, "
    "started_at, ended_at, worked_s, lease_owner, lease_until"
)


class Ledger:
    """What `store.migrations` is. At most one migration is open: not cancelled, and not settled after its cut-over."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # Reading

    def open(self) -> Migration | None:
        """The open migration, or None."""
        with self._store.transaction(READ) as session:
            return _find_open(session)

    def current(self, action: str) -> Migration:
        """The open migration, for a move that needs one; InvalidTransitionError says that `action` cannot be."""
        with self._store.transaction(READ) as session:
            return _open(session, action)

    def get(self, number: int) -> Migration:
        """The migration with this id."""
        with self._store.transaction(READ) as session:
            row = session.row(f"SELECT {COLUMNS} FROM migrations WHERE id = ?", number)
            if row is None:
                raise NotFoundError(f"[migrate] no migration {number} in this store")
            return _record(session, row)

    def history(self) -> list[Migration]:
        """All migrations, the oldest first."""
        with self._store.transaction(READ) as session:
            return [_record(session, row) for row in session.rows(f"SELECT {COLUMNS} FROM migrations ORDER BY id")]

    def skipped(self) -> list[tuple[str, str, str]]:
        """Documents that the open migration leaves out, or that what is served lacks: id, reason, detail."""
        with self._store.transaction(READ) as session:
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
        with self._store.transaction(READ) as session:
            return generations.skipped(session, generations.find(session, fingerprint).number)

    # Moves

    def plan(self, fingerprint: str, dimension: int, model: str = "", *, window_s: float = WINDOW_S) -> Migration:
        """Write down that the store is to be migrated to a fingerprint; nothing else changes yet."""
        if not 0 <= window_s < 1e9:
            raise InputError(f"[migrate] a rollback window of {window_s} s; 0 or more seconds are taken")
        check_model(fingerprint, dimension, model)
        with self._store.transaction(ALONE) as session:
            known = _find_open(session)
            if known is not None:
                advice = "finish it or roll it back" if known.state is State.COMPLETED else "resume or cancel it"
                raise InvalidTransitionError(
                    f"[migrate] cannot plan: the one to {known.target} is {known.state.value}; {advice} first"
                )
            (served,) = session.row("SELECT fingerprint FROM served") or (None,)
            if served == fingerprint:
                raise InputError(f"[migrate] {fingerprint[:80]} is served already; there is nothing to do")
            session.run(
                "INSERT INTO migrations (id, open, source, target, dimension, model, state, processed, window_s, "
                "planned_at, worked_s) VALUES (?, 1, ?, ?, ?, ?, ?, 0, ?, ?, 0)",
                *(1 + count(session, "SELECT coalesce(max(id), 0) FROM migrations"), served, fingerprint, dimension),
                *(model, State.PLANNED.value, window_s, self._store.now(session)),
            )
            return _open(session, "plan")

    def start(self, owner: str, lease_s: float = LEASE_S) -> Migration:
        """Begin a planned migration: from now on writes keep both generations, and every document waits for the new."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "start")
            state = moved("start", before.state)
            made = generations.create(self._store.dialect, session, before.target, before.dimension, before.model)
            session.run("INSERT INTO todo SELECT CAST(? AS INTEGER), id FROM documents WHERE deleted = 0", made.number)
            _set(session, state=state, generation=made.number, started_at=self._store.now(session))
            self._take(session, before, owner, lease_s, take_over=False)
            return _open(session, "start")

    def resume(self, owner: str, lease_s: float = LEASE_S, *, take_over: bool = False) -> Migration:
        """Go on with a paused or failed migration, or with a running one whose process is gone.

        A process is gone when its lease has run out. `take_over` does not wait for that; should it live after all, its
        next commit is refused.
        """
        with self._store.transaction(ALONE) as session:
            before = _open(session, "resume")
            _set(session, state=moved("resume", before.state), error=None)
            self._take(session, before, owner, lease_s, take_over=take_over)
            return _open(session, "resume")

    def pause(self, owner: str | None = None) -> Migration:
        """Stop a running migration for now, whichever process runs it, or only where `owner` does.

        The process that runs it learns of it at its next commit, which is refused.
        """
        with self._store.transaction(ALONE) as session:
            before = _open(session, "pause")
            state = moved("pause", before.state)
            if owner is not None:
                _check_owner(before.lease_owner, before.lease_until, owner)
            _set(session, state=state, lease_owner=None, lease_until=None)
            return _open(session, "pause")

    def fail(self, owner: str, error: str) -> Migration:
        """Write down why the process `owner` could not go on."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "fail")
            state = moved("fail", before.state)
            _check_owner(before.lease_owner, before.lease_until, owner)
            _set(session, state=state, error=plain(error, ERROR_LENGTH), lease_owner=None, lease_until=None)
            return _open(session, "fail")

    def cancel(self) -> Migration:
        """Give a migration up before its cut-over: the new vectors go, and what was served stays served."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "cancel")
            _set(session, state=moved("cancel", before.state), ended_at=self._store.now(session))
            if before.state is not State.PLANNED:
                generations.drop(session, generations.find(session, before.target))
            return _close(session, before, None)

    def complete(self, owner: str, *, allow_skips: int | None = None) -> Migration | None:
        """Cut over: serve the new vectors, in one transaction. None while documents still wait for theirs.

        Refused where more than `allow_skips` documents would be missing, which is SKIPPED_SHARE of all by default;
        those that were left out by hand are not counted.
        """
        with self._store.transaction(ALONE) as session:
            before = _open(session, "complete")
            state = moved("complete", before.state)
            _check_owner(before.lease_owner, before.lease_until, owner)
            if before.remaining:
                return None
            _check_skips(session, before.skips, allow_skips, "new vector", "cut over")
            session.run("UPDATE served SET fingerprint = ?", before.target)
            _set(session, state=state, ended_at=self._store.now(session), lease_owner=None, lease_until=None)
            return _close(session, before, KEPT) if before.source is None else _open(session, "complete")

    def rollback(self, *, allow_skips: int | None = None) -> Migration:
        """Serve the old vectors again and drop the new ones. No document may wait for its old vector:
        `Migrator.rollback` makes them; as many may lack one as at a cut-over (`complete`)."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "rollback")
            moved("rollback", before.state)
            assert before.source is not None  # one without a source was settled at its cut-over
            old = generations.find(session, before.source)
            waiting = count(session, "SELECT count(*) FROM todo WHERE generation = ?", old.number)
            if waiting:
                raise InvalidTransitionError(
                    f"[migrate] cannot roll back yet: {waiting} documents that changed since the cut-over have no "
                    f"vector of the old model; give its embedder ({old.model or old.fingerprint})"
                )
            skips = generations.skipped(session, old.number)
            _check_skips(session, skips, allow_skips, "vector of the old model", "rolled back")
            session.run("UPDATE served SET fingerprint = ?", before.source)
            generations.drop(session, generations.find(session, before.target))
            return _close(session, before, ROLLED_BACK)

    def finish(self, *, now: bool = False) -> Migration:
        """Drop the old vectors, once the rollback window is over or where `now` says not to wait for that."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "finish")
            moved("finish", before.state)
            left = (before.window_ends_at or 0.0) - self._store.now(session)
            if left > 0 and not now:
                raise InvalidTransitionError(
                    f"[migrate] cannot finish yet: the rollback window lasts another {left:.0f} s; wait, or finish now"
                )
            assert before.source is not None
            generations.drop(session, generations.find(session, before.source))
            return _close(session, before, KEPT)

    def rename(self, fingerprint: str, model: str) -> None:
        """Give vectors that are here another name for people, such as the model's with other options."""
        check_model(fingerprint, 1, model)
        with self._store.transaction(ALONE) as session:
            number = generations.find(session, fingerprint).number
            session.run("UPDATE generations SET model = ? WHERE number = ?", model, number)
            session.run("UPDATE migrations SET model = ? WHERE generation = ?", model, number)

    def skip(self, ids: str | Iterable[str]) -> None:
        """Leave out documents that still wait; a string is one id."""
        ids = checked_ids(ids)
        with self._store.transaction(SHARED) as session:
            before = _open(session, "skip")
            moved("skip", before.state)
            generation = generations.find(session, before.target)
            held = "SELECT id, revision FROM documents WHERE id IN ({ids}) ORDER BY id "
            found = session.among(held + self._store.dialect.for_update, sorted(set(ids)))
            waiting = generations.waiting(session, generation, ids)
            strange = [name for name in ids if name not in waiting]
            if strange:
                raise InputError(f"[migrate] cannot skip {strange[0][:80]!r}: it does not wait to be embedded")
            rows = [(name, revision, Reason.MANUAL_SKIP.value, "") for name, revision in found]
            generations.skip(session, generation, rows)

    # The lease

    def lease(self, owner: str, lease_s: float = LEASE_S, *, take_over: bool = False) -> Migration:
        """Take the lease of a completed migration, for the work before a rollback."""
        with self._store.transaction(ALONE) as session:
            before = _open(session, "rollback")
            moved("rollback", before.state)
            self._take(session, before, owner, lease_s, take_over=take_over)
            return before

    def lease_left(self) -> float:
        """Seconds for which a process still has the lease; 0 where none has it."""
        with self._store.transaction(READ) as session:
            found = _find_open(session)
            until = found.lease_until if found is not None else None
            return 0.0 if until is None else max(0.0, until - self._store.now(session))

    def renew(self, owner: str, lease_s: float) -> bool:
        """Say that the process `owner` is alive; see `hold`."""
        with self._store.transaction(SHARED) as session:
            return self.hold(session, owner, lease_s)

    def release(self, owner: str) -> None:
        """Give the lease back, where `owner` still has it."""
        with self._store.transaction(SHARED) as session:
            session.run(
                "UPDATE migrations SET lease_owner = NULL, lease_until = NULL WHERE open = 1 AND lease_owner = ?", owner
            )

    def hold(self, session: Session, owner: str, lease_s: float) -> bool:
        """Renew the lease inside a transaction; see `held`. Where it is lost, nothing of the transaction may stay."""
        until = self._store.now(session) + lease_s
        renewed = session.run("UPDATE migrations SET lease_until = ? WHERE open = 1 AND lease_owner = ?", until, owner)
        return bool(renewed) or self.held(session, owner)

    def held(self, session: Session, owner: str) -> bool:
        """Whether `owner` has the lease: False where somebody paused or ended the migration, LeaseError where another
        process has it."""
        row = session.row("SELECT lease_owner, lease_until FROM migrations WHERE open = 1")
        if row is None or row[0] is None:
            return False
        _check_owner(row[0], row[1], owner)
        return True

    def _take(self, session: Session, before: Migration, owner: str, lease_s: float, *, take_over: bool) -> None:
        now, until = self._store.now(session), before.lease_until or 0.0
        if before.lease_owner not in (None, owner) and until > now and not take_over:
            raise LeaseError(
                f"[migrate] {before.lease_owner} runs this migration; its lease ends in {until - now:.0f} s unless it "
                "renews it: wait, or take over if that process is gone",
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
        advice = "`weft migrate STORE --to MODEL` plans one, `weft migrate status` shows the last"
        raise InvalidTransitionError(f"[migrate] cannot {action}: no migration is open in this store; {advice}")
    return found


def _record(session: Session, row: Sequence[Any]) -> Migration:
    fields = dict(zip(COLUMNS.split(", "), row))
    generation, skips = fields.pop("generation"), fields.pop("skips")
    if skips is not None:  # closed: its lists may be gone
        found, remaining = json.loads(skips), 0
    else:
        found = generations.skipped(session, generation)
        remaining = count(session, "SELECT count(*) FROM todo WHERE generation = ?", generation)
    return Migration(**{**fields, "state": state_of(fields["state"])}, skips=found, remaining=remaining)


def _set(session: Session, **columns: Any) -> None:
    """Change columns of the open migration."""
    names = ", ".join(f"{name} = ?" for name in columns)
    values = (value.value if isinstance(value, State) else value for value in columns.values())
    session.run(f"UPDATE migrations SET {names} WHERE open = 1", *values)


def _check_owner(holder: str | None, until: float | None, owner: str) -> None:
    if holder != owner:
        raise LeaseError(
            f"[migrate] {holder or 'somebody'} took this migration over; nothing of the last batch was kept",
            until=until or 0.0,
        )


def _check_skips(session: Session, skips: Mapping[str, int], allowed: int | None, lacking: str, move: str) -> None:
    """Refuse to serve vectors that too many documents would lack."""
    documents = count(session, "SELECT count(*) FROM documents WHERE deleted = 0")
    most = int(documents * SKIPPED_SHARE) if allowed is None else allowed
    if missing(skips) > most:
        reasons = ", ".join(f"{number} {reason}" for reason, number in skips.items())
        raise InputError(
            f"[migrate] {missing(skips)} of {documents} documents have no {lacking} ({reasons}), and {most} may lack "
            f"one: nothing is {move}; retry those that are skipped (--truncate cuts long ones), or allow as many"
        )


def _close(session: Session, before: Migration, settled: str | None) -> Migration:
    """Let a migration be history; what was skipped is kept in its row, as its generation may be gone."""
    skips = json.dumps(before.skips, sort_keys=True)
    _set(session, settled=settled, skips=skips, lease_owner=None, lease_until=None, open=None)
    row = session.row(f"SELECT {COLUMNS} FROM migrations WHERE id = ?", before.id)
    assert row
    return _record(session, row)
