"""A decoder with recurrent state beside its pages, which it needs to be right about both."""

import numpy as np
from fake_decoder import VOCAB, FakeDecoder

from weft.nn.step import Step
from weft.runtime.paged.slots import NONE, SlotPool

PRIME = 1_000_003
MASK = (1 << 64) - 1


def rolled(state: int, token: int) -> int:
    """A number that depends on all tokens so far and their order."""
    return ((state ^ (token + 1)) * PRIME + 1) & MASK


class RecurrentDecoder(FakeDecoder):
    """The fake decoder, and a rolling hash of each text in a slot. Where the two do not tell of the same text, the
    logits are others: a state that was resumed at a wrong place, or is another text's, gives wrong tokens.
    """

    def __init__(self, pages: int = 64, slots: int = 16, **options: int) -> None:
        super().__init__(pages, eos_ids=frozenset(), **options)  # type: ignore[arg-type]
        self.slots = SlotPool(slots)
        self.states = np.full(slots, 0xDEAD, np.uint64)

    slot_bytes = 8

    def read_slot(self, slot: int) -> bytes:
        return self.states[slot].tobytes()

    def write_slot(self, slot: int, data: bytes) -> None:
        assert self.slots is not None and self.slots.users(slot) == 1
        self.states[slot] = np.frombuffer(data, np.uint64)[0]

    def run(self, step: Step) -> np.ndarray:
        logits = self.plain_logits(step)
        after = self._states(step)
        for i, row in enumerate(step.rows):
            if after[row] != self._told_by_pages(step, int(row)):
                logits[i] = np.roll(logits[i], 1 + after[row] % (VOCAB - 1))
        return logits

    def plain_logits(self, step: Step) -> np.ndarray:
        return super().run(step)

    def _states(self, step: Step) -> list[int]:
        """The state after each token of the step; the last of each sequence is written."""
        after: list[int] = []
        states = []
        for (source, _), start, end in zip(step.slots, step.segments, step.segments[1:]):
            state = 0 if source == NONE else int(self.states[source])
            for token in step.ids[start:end]:
                state = rolled(state, int(token))
                after.append(state)
            states.append(state)
        self.states[step.slots[:, 1]] = states
        return after

    def _told_by_pages(self, step: Step, row: int) -> int:
        owner = int(np.searchsorted(step.segments, row, "right")) - 1
        state = 0
        for token in self.store[step.pages[owner]].reshape(-1)[: step.positions[row] + 1]:
            state = rolled(state, int(token))
        return state

    def check(self, step: Step) -> None:
        super().check(step)
        assert self.slots is not None and step.slots.shape == (len(step.segments) - 1, 2)
        sources, targets = step.slots.T.tolist()
        assert all(self.slots.users(slot) == 1 for slot in targets) and len(set(targets)) == len(targets)
        assert not set(sources) & set(targets), "a state that is read is written"
        assert all(self.slots.users(slot) > 0 for slot in sources if slot != NONE)
        firsts = step.positions[step.segments[:-1]]
        assert [slot == NONE for slot in sources] == (firsts == 0).tolist()


def idle(decoder: RecurrentDecoder) -> bool:
    """Whether nobody holds a page or a slot."""
    assert decoder.slots is not None
    return decoder.pages.free_count == decoder.pages.count and decoder.slots.free_count == decoder.slots.count
