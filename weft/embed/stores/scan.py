"""A search that compares every vector, for a database that cannot: read once, and kept until something changes."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.embed.stores import generations
from weft.embed.stores.dialect import Dialect, Session
from weft.embed.stores.generations import Generation

if TYPE_CHECKING:
    import numpy as np

KEPT_BYTES = 256 << 20  # vectors of one generation in memory; a larger one is read for every search

Block = tuple[list[str], "np.ndarray"]  # ids, and float32 [ids, dimension] of length 1


class Scan:
    """The blocks of one generation as a version of the database has them."""

    def __init__(self) -> None:
        self._version: Any = None
        self._blocks: list[Block] = []

    def nearest(
        self, dialect: Dialect, session: Session, generation: Generation, query: np.ndarray, k: int
    ) -> list[tuple[str, float]]:
        """The `k` best by cosine, equal ones in the order of ids."""
        import numpy as np

        query = query / np.linalg.norm(query.astype(np.float64)).astype(np.float32)
        best: list[tuple[float, str]] = []
        for ids, matrix in self._read(dialect, session, generation):
            scores = matrix @ query
            near = np.flatnonzero(scores >= (-best[-1][0] if len(best) == k else -np.inf))
            best = heapq.nsmallest(k, [*best, *((-float(scores[at]), ids[at]) for at in near)])
        return [(name, -score) for score, name in best]

    def _read(self, dialect: Dialect, session: Session, generation: Generation) -> Iterator[Block]:
        """The blocks: those that are kept, where the database is as it was when they were read."""
        version = (generation, dialect.version(session))
        if version == self._version:
            yield from self._blocks
            return
        self._version, self._blocks = None, []
        kept: list[Block] | None = []
        room = KEPT_BYTES
        for rows in generations.read(dialect, session, generation):
            block = _block(rows)
            room -= block[1].nbytes
            if room < 0:
                kept = None
            if kept is not None:
                kept.append(block)
            yield block
        if kept is not None:
            self._version, self._blocks = version, kept


def _block(rows: list[generations.Row]) -> Block:
    """Rows as a matrix of unit vectors."""
    import numpy as np

    matrix = np.stack([row[2] for row in rows])
    norms = np.linalg.norm(matrix.astype(np.float64), axis=1)[:, None]
    whole = norms[:, 0] > 0  # older stores may have zeros, which are near nothing
    names = [row[0] for row, keep in zip(rows, whole) if keep]
    return names, (matrix[whole] / norms[whole]).astype(np.float32)
