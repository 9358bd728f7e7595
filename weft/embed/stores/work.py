"""The migrator's view of a store: documents that wait or were skipped, in batches, and the commit of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weft.embed.stores import generations
from weft.embed.stores.dialect import READ, SHARED, Session
from weft.embed.stores.generations import Generation
from weft.embed.stores.ledger import count
from weft.embed.stores.states import Reason
from weft.embed.stores.values import checked_ids
from weft.errors import InputError
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.stores.store import Store


@frozen
class Waiting:
    """A document that waits for a vector; `text` is None where its bytes are not UTF-8."""

    id: str
    revision: int
    text: str | None


@frozen
class Done:
    """The result for one document: a vector float32 [dimension], or a reason to skip it with the error's text."""

    document: Waiting
    vector: np.ndarray | None = None
    reason: Reason | None = None
    detail: str = ""


class Work:
    """The documents that wait for vectors of one fingerprint, for the process that holds the lease."""

    tried = False  # whether a model was already tried on these documents

    def __init__(self, store: Store, fingerprint: str, owner: str, lease_s: float) -> None:
        self._store, self._fingerprint, self._owner, self._lease_s = store, fingerprint, owner, lease_s

    def count(self) -> int:
        """How many documents wait."""
        with self._store.transaction(READ) as session:
            found = generations.generations(session).get(self._fingerprint)
            return count(session, "SELECT count(*) FROM todo WHERE generation = ?", found.number) if found else 0

    def renew(self) -> None:
        """Extend the lease."""
        self._store.migrations.renew(self._owner, self._lease_s)

    def take(self, most: int) -> list[Waiting] | None:
        """The first documents that wait, ordered by id, at most `most`; None if the migration was stopped.

        They keep waiting until their batch is committed.
        """
        text = self._store.dialect.as_bytes("d.text")
        with self._store.transaction(READ) as session:
            if not self._store.migrations.held(session, self._owner):
                return None
            rows = session.rows(
                f"SELECT t.id, d.revision, {text} FROM todo t JOIN documents d ON d.id = t.id "
                "WHERE t.generation = ? ORDER BY t.id LIMIT ?",
                *(generations.find(session, self._fingerprint).number, most),
            )
        return [Waiting(name, revision, _decoded(bytes(data))) for name, revision, data in rows]

    def commit(self, batch: Sequence[Done], worked_s: float) -> tuple[int, int] | None:
        """Commit the results of a batch in one transaction: how many were embedded and how many skipped, or None if the
        migration was stopped and nothing was committed.

        The result of a document that changed since `take` is dropped: the document waits again, or the writer brought
        its vector.
        """
        store = self._store
        with store.transaction(SHARED) as session:
            if not store.migrations.hold(session, self._owner, self._lease_s):
                return None
            generation = generations.find(session, self._fingerprint)
            kept = self._keep(session, generation, batch)
            session.run(
                "UPDATE migrations SET processed = processed + ?, worked_s = worked_s + ? "
                "WHERE open = 1 AND target = ?",
                *(kept[0], worked_s, self._fingerprint),
            )
            return kept

    def _keep(self, session: Session, generation: Generation, batch: Sequence[Done]) -> tuple[int, int]:
        """Write the results of those documents that have not changed since `take`."""
        dialect = self._store.dialect
        held = "SELECT id, revision FROM documents WHERE deleted = 0 AND id IN ({ids}) ORDER BY id "
        revisions = dict(session.among(held + dialect.for_update, [done.document.id for done in batch]))
        current = [done for done in batch if revisions.get(done.document.id) == done.document.revision]
        listed = self._listed(session, generation, [done.document.id for done in current])
        current = [done for done in current if done.document.id in listed]
        made = [(d.document.id, d.document.revision, d.vector) for d in current if d.vector is not None]
        generations.write(dialect, session, generation, made)
        skipped = [(d.document.id, d.document.revision, d.reason.value, d.detail) for d in current if d.reason]
        generations.skip(session, generation, skipped)
        return len(made), len(skipped)

    def _listed(self, session: Session, generation: Generation, ids: Sequence[str]) -> set[str]:
        return generations.waiting(session, generation, ids)  # the others were skipped by hand since


class Retry(Work):
    """The skipped documents of a fingerprint, each once: `ids`, or all that were not skipped by hand.

    There is no lease: two processes that retry at the same time do the work twice, which is harmless.
    """

    tried = True

    def __init__(self, store: Store, fingerprint: str, ids: str | Iterable[str] | None) -> None:
        super().__init__(store, fingerprint, "", 0.0)
        found = "SELECT k.id FROM skips k JOIN documents d ON d.id = k.id WHERE k.generation = ? AND d.deleted = 0"
        with store.transaction(READ) as session:
            number = generations.find(session, fingerprint).number
            if ids is None:
                by_hand = Reason.MANUAL_SKIP.value
                rows = session.rows(f"{found} AND k.reason <> ? ORDER BY k.id", number, by_hand)
            else:
                ids = checked_ids(ids)
                rows = session.among(f"{found} AND k.id IN ({{ids}}) ORDER BY k.id", ids, number)
        self._left = [name for (name,) in rows]
        strange = set(ids or ()) - set(self._left)
        if strange:
            raise InputError("migrate", f"cannot retry document {min(strange)[:80]!r}: it is not skipped")

    def count(self) -> int:
        return len(self._left)

    def renew(self) -> None:
        pass

    def take(self, most: int) -> list[Waiting]:
        names, self._left = self._left[:most], self._left[most:]
        text = self._store.dialect.as_bytes("text")
        sql = f"SELECT id, revision, {text} FROM documents WHERE deleted = 0 AND id IN ({{ids}}) ORDER BY id"
        with self._store.transaction(READ) as session:
            rows = session.among(sql, names)
        if names and not rows:
            return self.take(most)  # all of them were deleted
        return [Waiting(name, revision, _decoded(bytes(data))) for name, revision, data in rows]

    def commit(self, batch: Sequence[Done], worked_s: float) -> tuple[int, int]:
        with self._store.transaction(SHARED) as session:
            generation = generations.find(session, self._fingerprint)
            number, change = generation.number, "UPDATE migrations SET {} WHERE generation = ?"
            session.run(change.format("worked_s = worked_s + ?"), worked_s, number)  # first, in the order of locks
            kept = self._keep(session, generation, batch)
            session.run(change.format("processed = processed + ?"), kept[0], number)
            left = json.dumps(generations.skipped(session, number), sort_keys=True)
            session.run(change.format("skips = ?") + " AND skips IS NOT NULL", left, number)  # of a closed migration
            return kept

    def _listed(self, session: Session, generation: Generation, ids: Sequence[str]) -> set[str]:
        return generations.left_out(session, generation, ids)


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
