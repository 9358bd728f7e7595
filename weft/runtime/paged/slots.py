"""Recurrent state: slots of one size, one for each running request, and checkpoints of them beside shared pages.

A step reads a request's state from one slot and writes it to another; nothing is changed in place. So a step that was
interrupted is simply run again, drafts that were wrong are forgotten by keeping the old slot, and a checkpoint costs no
copy: it is a slot that stays when the request has moved on to the next. A request that resumes there only reads it.

A slot is as large as the pages of hundreds of tokens, so checkpoints are few: where a prompt ends, where texts part,
where an answer has come to, and every CHECKPOINT_PAGES pages as long as nothing else needs the slot.
"""

from __future__ import annotations

from weft.runtime.paged.pages import PAGE_TOKENS, PagePool

CHECKPOINT_PAGES = 8  # a step ends at each multiple of so many pages, and the state there is kept while there is room
CHECKPOINT_TOKENS = CHECKPOINT_PAGES * PAGE_TOKENS
LEAST_PAGES = 2  # between checkpoints: computing fewer again is cheaper than a step more
LEAST_SLOTS = 16  # beside checkpoints: eight requests that run
LEAST_SHARE = 64  # a checkpoint for so many pages at least, however small these are
NONE = -1


class SlotPool(PagePool):
    """`count` slots with reference counts, by the rules of PagePool: a checkpoint without users is taken only when no
    other slot is free, least recently released first, and the callback given to `keep` is called. Those that
    `spare` names are taken before the others.
    """

    what = "slots"

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._spare: set[int] = set()

    @property
    def most_running(self) -> int:
        """Requests that may run at once: each holds the slot that it reads and the one that it writes."""
        return self.count // 2

    @property
    def checkpoints(self) -> int:
        """Slots that are kept as checkpoints, in use or not."""
        return len(self._marked)

    def spare(self, slot: int, spare: bool) -> None:
        """Whether `slot`, a checkpoint, is taken before others."""
        (self._spare.add if spare else self._spare.discard)(slot)

    def drop(self, page: int) -> None:
        self._spare.discard(page)
        super().drop(page)

    def _oldest_kept(self) -> int:
        return next((slot for slot in self._kept if slot in self._spare), super()._oldest_kept())


def checkpoint_bytes(page_bytes: int, slot_bytes: int) -> int:
    """Bytes of checkpoints for each page: no more than the page has, unless that is less than a slot for LEAST_SHARE
    pages, and no more than a slot for every CHECKPOINT_PAGES pages."""
    return min(-(-slot_bytes // CHECKPOINT_PAGES), max(page_bytes, -(-slot_bytes // LEAST_SHARE)))


def slots_for(pages: int, page_bytes: int, slot_bytes: int, most: int | None = None) -> int:
    """The slots of a state of `pages` pages, up to `most`: LEAST_SLOTS, and as many as `checkpoint_bytes` allows."""
    wanted = LEAST_SLOTS + -(-pages * checkpoint_bytes(page_bytes, slot_bytes) // slot_bytes)
    return wanted if most is None else min(wanted, most)


class Recurrence:
    """The recurrent state of one request: the slot that holds it, and the one that the next step writes."""

    def __init__(self, pool: SlotPool) -> None:
        self._pool = pool
        self.source = NONE  # the state after the tokens that are computed; NONE before the first
        self.target = NONE
        self.saved = NONE  # the state to go back to, for drafts

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

    def save(self) -> None:
        """Remember the state as it is, for `restore`."""
        if self.saved != NONE:
            self._pool.release([self.saved])
        if self.source != NONE:
            self._pool.share([self.source])
        self.saved = self.source

    def restore(self) -> None:
        """Return to the state at the last `save`; without one, to that before the first token."""
        if self.source != NONE:
            self._pool.release([self.source])
        if self.saved != NONE:
            self._pool.share([self.saved])
        self.source = self.saved

    def drop(self) -> None:
        """Give all slots back."""
        self._pool.release([slot for slot in (self.source, self.target, self.saved) if slot != NONE])
        self.source = self.target = self.saved = NONE
