"""The migrator's side of a store: documents that wait, and the commit of a batch of their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.embed.stores import generations
from weft.embed.stores.dialect import READ, SHARED
from weft.embed.stores.ledger import count
from weft.embed.stores.states import Reason
from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.stores.store import Store


@frozen
class Waiting:
    """A document that waits: `text` is None where its bytes are not UTF-8."""

    id: str
    revision: int
    text: str | None


@frozen
class Done:
    """What became of one that waited: a vector float32 [dimension], or a reason to skip it and what was said."""

    document: Waiting
    vector: np.ndarray | None = None
    reason: Reason | None = None
    detail: str = ""


class Work:
    """The documents that wait for vectors of one fingerprint, for the process that has the lease."""

    def __init__(self, store: Store, fingerprint: str, owner: str, lease_s: float) -> None:
        self._store, self._fingerprint, self._owner, self._lease_s = store, fingerprint, owner, lease_s

    def count(self) -> int:
        """How many wait."""
        with self._store.transaction(READ) as session:
            found = generations.generations(session).get(self._fingerprint)
            return count(session, "SELECT count(*) FROM todo WHERE generation = ?", found.number) if found else 0

    def take(self, most: int) -> list[Waiting] | None:
        """The first that wait, in the order of ids; None where the migration was stopped.

        They wait until they are committed.
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
        """Keep what became of a batch, in one transaction: how many were embedded and how many skipped, or None where
        the migration was stopped meanwhile and nothing was kept.

        A document that changed since it was taken is left as it is: it waits for its new text's turn, or whoever
        changed it brought the vector.
        """
        store = self._store
        with store.transaction(SHARED) as session:
            if not store.migrations.hold(session, self._owner, self._lease_s):
                return None
            generation = generations.find(session, self._fingerprint)
            held = "SELECT id, revision FROM documents WHERE deleted = 0 AND id IN ({ids}) ORDER BY id "
            revisions = dict(session.among(held + store.dialect.for_update, [done.document.id for done in batch]))
            current = [done for done in batch if revisions.get(done.document.id) == done.document.revision]
            waits = generations.waiting(session, generation, [done.document.id for done in current])
            current = [done for done in current if done.document.id in waits]  # or it was skipped by hand
            made = [(d.document.id, d.document.revision, d.vector) for d in current if d.vector is not None]
            generations.write(store.dialect, session, generation, made)
            skipped = [(d.document.id, d.document.revision, d.reason.value, d.detail) for d in current if d.reason]
            generations.skip(session, generation, skipped)
            session.run(
                "UPDATE migrations SET processed = processed + ?, worked_s = worked_s + ? "
                "WHERE open = 1 AND target = ?",
                *(len(made), worked_s, self._fingerprint),
            )
            return len(made), len(skipped)


def _decoded(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
