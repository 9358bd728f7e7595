"""Exact search in memory, for databases without one: vectors stay cached, and only changed rows are read again."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

from weft.embed.stores import generations
from weft.embed.stores.dialect import Dialect, Session
from weft.embed.stores.generations import Generation

if TYPE_CHECKING:
    import numpy as np

KEPT_BYTES = 256 << 20  # cached vectors of one generation; a larger one is read for every search

Stamps = dict[str, tuple[int, int]]  # of rows by id: `generations.stamps`


class Block(NamedTuple):
    """Rows that are compared at once: ids, and unit vectors float32 [ids, dimension]."""

    ids: list[str]
    matrix: np.ndarray


class Scan:
    """A cache of the vectors of one generation, valid for one value of its count of changes."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._at: Any = None  # the generation and its count of changes
        self._stamps: Stamps = {}
        self._blocks: list[Block] = []

    def nearest(
        self,
        dialect: Dialect,
        session: Session,
        generation: Generation,
        query: np.ndarray,
        k: int,
        chosen: Iterable[str] | None,
    ) -> list[tuple[str, float]]:
        """The `k` best ids, or of those that are chosen, and their cosines; equal ones are ordered by id."""
        import numpy as np

        among = None if chosen is None else set(chosen)

        query = query / np.linalg.norm(query.astype(np.float64)).astype(np.float32)
        best: list[tuple[float, str]] = []
        for ids, matrix in self._read(dialect, session, generation):
            scores = matrix @ query
            if among is not None:
                kept = np.fromiter((name in among for name in ids), bool, len(ids))
                ids, scores = list(compress(ids, kept)), scores[kept]
            near = np.flatnonzero(scores >= (-best[-1][0] if len(best) == k else -np.inf))
            best = heapq.nsmallest(k, [*best, *((-float(scores[at]), ids[at]) for at in near)])
        return [(name, -score) for score, name in best]

    def _read(self, dialect: Dialect, session: Session, generation: Generation) -> Iterable[Block]:
        """The cached blocks, after rows that have changed are read again."""
        at = (generation, generations.changes(session, generation))
        if at == self._at:
            return self._blocks
        if self._at is None or self._at[0] != generation:
            self._forget()
        if generations.vector_count(session, generation) * generation.dimension * 4 > KEPT_BYTES:
            self._forget()
            return (_block(rows) for rows in generations.read(dialect, session, generation))
        self._at = None  # invalid until all is read: an error may come in between
        now = generations.stamps(session, generation)
        self._blocks = list(_joined(self._renewed(dialect, session, generation, now)))
        self._at, self._stamps = at, now
        return self._blocks

    def _renewed(self, dialect: Dialect, session: Session, generation: Generation, now: Stamps) -> Iterator[Block]:
        """The cached rows that have not changed, and then the other rows of `now`."""
        for block in self._blocks:
            same = [now.get(name) == self._stamps[name] for name in block.ids]
            yield block if all(same) else Block(list(compress(block.ids, same)), block.matrix[same])
        fresh = [name for name, stamp in now.items() if self._stamps.get(name) != stamp]
        whole = len(fresh) == len(now)  # ordered by id, which is the fastest way to read the table
        pages = generations.read(dialect, session, generation)
        yield from map(_block, pages if whole else generations.chosen(dialect, session, generation, fresh))


def _joined(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, with small neighbours merged, so that many small changes do not lead to many blocks."""
    import numpy as np

    held: Block | None = None
    for block in blocks:
        if held is not None and len(held.ids) + len(block.ids) <= generations.READ_ROWS:
            held = Block(held.ids + block.ids, np.concatenate([held.matrix, block.matrix]))
            continue
        if held is not None:
            yield held
        held = block
    if held is not None:
        yield held


def _block(rows: list[generations.Row]) -> Block:
    """Rows as a matrix of unit vectors."""
    import numpy as np

    matrix = np.stack([row[2] for row in rows])
    norms = np.linalg.norm(matrix.astype(np.float64), axis=1)[:, None]
    whole = norms[:, 0] > 0  # older stores may have zero vectors, which have no cosine
    names = [row[0] for row, keep in zip(rows, whole) if keep]
    return Block(names, (matrix[whole] / norms[whole]).astype(np.float32))
