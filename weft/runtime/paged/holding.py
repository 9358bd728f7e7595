"""What one sequence holds of a decoder's state: its pages, and the slots of its recurrent state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.runtime.paged.pages import PagePool, pages_for
from weft.runtime.paged.slots import NONE, Recurrence, SlotPool

if TYPE_CHECKING:
    import numpy as np


class Holding:
    """Pages of `pool`, also as a row of the page table, `width` wide; slots where the model has recurrent state.

    Everything that runs steps holds its pages through one of these, so that all of them are given back in one place.
    """

    def __init__(self, pool: PagePool, slots: SlotPool | None, width: int) -> None:
        import numpy as np

        self._pool = pool
        self.pages: list[int] = []
        self.row: np.ndarray = np.zeros(width, np.int32)  # the pages again, int32 [width]
        self.recurrence = None if slots is None else Recurrence(slots)

    def missing(self, tokens: int) -> int:
        """Pages that are to be taken before `tokens` tokens fit."""
        return max(0, pages_for(tokens) - len(self.pages))

    def grow(self, tokens: int) -> bool:
        """Take pages until `tokens` tokens fit; False, and none is taken, where too few are free."""
        missing = self.missing(tokens)
        if missing > self._pool.free_count:
            return False
        self.add(self._pool.take(missing))
        return True

    def add(self, pages: Sequence[int]) -> None:
        """Append pages that are taken already."""
        held = len(self.pages)
        self.row[held : held + len(pages)] = pages
        self.pages += pages

    def replace(self, index: int, page: int) -> None:
        """Another page holds the same as the one at `index`; the caller counts its users."""
        self.pages[index] = page
        self.row[index] = page

    def users(self, page: int) -> int:
        """How many sequences use a page of the pool."""
        return self._pool.users(page)

    def resume(self, checkpoint: int) -> None:
        """Begin with the recurrent state of a checkpoint, NONE for none."""
        if self.recurrence is not None:
            self.recurrence.resume(checkpoint)

    def ready(self) -> None:
        """Have a slot that the next step writes."""
        if self.recurrence is not None:
            self.recurrence.ready()

    def advance(self) -> None:
        """The last step's tokens are computed: the slot that it wrote holds the state now."""
        if self.recurrence is not None:
            self.recurrence.advance()

    @property
    def slots(self) -> tuple[int, int] | None:
        """The slot that a step reads and the one it writes; None for a model without recurrent state."""
        return None if self.recurrence is None else (self.recurrence.source, self.recurrence.target)

    def release(self) -> None:
        """Give everything back."""
        if self.recurrence is not None:
            self.recurrence.drop()
        pages, self.pages = self.pages, []
        self.row[: len(pages)] = 0
        self._pool.release(pages)


def slots_of(holdings: Sequence[Holding]) -> list[tuple[int, int]] | None:
    """The slots of a step's sequences, or None for a model without recurrent state."""
    found = [holding.slots for holding in holdings]
    return None if not found or found[0] is None else [slots or (NONE, NONE) for slots in found]
