"""Recurrent state: slots of one size, one for each running request, and checkpoints of them beside shared pages.

A step reads a request's state from one slot and writes it to another; nothing is changed in place. So a step that was
interrupted is simply run again, drafts that were wrong are forgotten by keeping the old slot, and a checkpoint costs no
copy: it is a slot that stays when the request has moved on to the next. A request that resumes there only reads it.
"""

from __future__ import annotations

from weft.runtime.paged.pages import PAGE_TOKENS, PagePool

CHECKPOINT_PAGES = 8  # a step ends at each multiple of so many pages, and the state there is kept
CHECKPOINT_TOKENS = CHECKPOINT_PAGES * PAGE_TOKENS
LEAST_SLOTS = 16  # beside checkpoints: eight requests that run
NONE = -1


class SlotPool(PagePool):
    """`count` slots with reference counts, by the rules of PagePool: a checkpoint without users is taken only when no
    other slot is free, least recently released first, and the callback given to `keep` is called.
    """

    what = "slots"

    @property
    def most_running(self) -> int:
        """Requests that may run at once: each holds the slot that it reads and the one that it writes."""
        return self.count // 2


def slots_for(pages: int) -> int:
    """The slots of a state of `pages` pages: LEAST_SLOTS, and a checkpoint for every CHECKPOINT_PAGES pages."""
    return LEAST_SLOTS + -(-pages // CHECKPOINT_PAGES)


class Recurrence:
    """The recurrent state of one request: the slot that holds it, and the one that the next step writes."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self.source = NONE  # the state after the tokens that are computed; NONE before the first
        self.target = NONE

    def resume(self, checkpoint: int) -> None:
        """Begin with the state of a checkpoint, or with none."""
        assert self.source == NONE, "it has begun"
        if checkpoint != NONE:
            self._pool.share([checkpoint])
        self.source = checkpoint

    def ready(self) -> None:
        """Take a slot for the next step to write; a step that was interrupted uses its slot again."""
        if self.target == NONE:
            (self.target,) = self._pool.take(1)

    def advance(self) -> None:
        """The last step's tokens are computed: what it wrote is the state now."""
        if self.source != NONE:
            self._pool.release([self.source])
        self.source, self.target = self.target, NONE

    def drop(self) -> None:
        """Give both slots back."""
        self._pool.release([slot for slot in (self.source, self.target) if slot != NONE])
        self.source = self.target = NONE
