"""A model's own head for multi-token prediction as a drafter: it reads the hidden states that the model computed.

The head's keys and values lie in the model's own pages, so they are shared, stored and given back with them. The entry
of position p depends on token p + 1 too: the last one of a shared page may be that of another text. That can make a
draft worse and never a text wrong.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from weft.generate.choice.draft_model import STEP_TOKENS, Drafter, Wanted
from weft.generate.choice.drafts import MAX_DRAFT
from weft.nn.step import Step
from weft.runtime.steps import build_step

MOST_PENDING = 4096  # hidden states that wait for a draft; a request with more has no drafts from the head


class WithHead(Protocol):
    """The part of a decoder that the head needs."""

    def run_hidden(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Logits [L, vocab] of step.rows and the hidden states of all tokens [T, hidden]."""

    def draft(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """Logits [L, vocab] and hidden states [L, hidden] of step.rows, from step.vectors."""


@dataclass
class _Reader:
    """One request: `done` positions are computed in the head, `pending` are the hidden states of those after them."""

    done: int
    pending: list[np.ndarray] = field(default_factory=list)
    count: int = 0  # of pending positions
    last: np.ndarray | None = None  # the hidden state at the last position that was computed

    @property
    def known(self) -> int:
        """Positions from the first whose hidden states are known."""
        return self.done + self.count


class DraftHead(Drafter):
    """Drafts by the model's own head."""

    few = 1 + MAX_DRAFT  # the tokens of one step that are right are read in the next draft

    def __init__(self, decoder: WithHead) -> None:
        super().__init__()
        self._decoder = decoder
        self._readers: dict[int, _Reader] = {}

    def run(self, step: Step) -> tuple[np.ndarray, np.ndarray]:
        """A step of the model itself: logits [L, vocab], and the hidden states of all tokens, for `observe`."""
        return self._decoder.run_hidden(step)

    def observe(self, key: int, start: int, hidden: np.ndarray) -> None:
        """The model has computed the hidden states [n, hidden] of a request's tokens from `start` on."""
        reader = self._readers.setdefault(key, _Reader(start))
        if start > reader.known:  # too many were pending
            return
        new = hidden[max(0, reader.known - start) :]  # tokens before a wrong draft are computed twice
        if len(new) and reader.count + len(new) <= MOST_PENDING:
            reader.pending.append(new.copy())
            reader.count += len(new)

    def draft(self, wanted: Mapping[int, Wanted]) -> dict[int, list[int]]:
        going = {key: want for key, want in wanted.items() if want.count > 0 and self._can_read(key, want)}
        drafts: dict[int, list[int]] = {key: [] for key in going}
        states: dict[int, np.ndarray] = {}
        while going:
            keys = list(going)
            before, missing = time.perf_counter(), len(keys)
            if not states:
                missing = sum(self._readers[key].count for key in keys)
                rows, found = self._read(going)
            else:
                ids = [[drafts[key][-1]] for key in keys]
                starts = [len(going[key].tokens) - 2 + len(drafts[key]) for key in keys]
                step = self._step(going, ids=ids, starts=starts, vectors=[states[key] for key in keys])
                rows, found = self._decoder.draft(step)
            self._note(time.perf_counter() - before, len(keys), missing)
            states = {key: found[place : place + 1] for place, key in enumerate(keys)}
            for key, row in zip(keys, rows):
                drafts[key].append(going[key].choose(row, len(drafts[key])))
                if len(drafts[key]) == self._most(going[key]):
                    del going[key]
        return drafts

    def _most(self, want: Wanted) -> int:
        """How many tokens to draft: the head's entries must fit in the pages that the request holds."""
        return min(want.count, want.room - (len(want.tokens) - 2))

    def _can_read(self, key: int, want: Wanted) -> bool:
        reader = self._readers.get(key)
        return reader is not None and reader.known == len(want.tokens) - 1 and self._most(want) > 0

    def _read(self, wanted: Mapping[int, Wanted]) -> tuple[np.ndarray, np.ndarray]:
        """Compute all positions before the last token of each request; logits and hidden states of the last one."""
        rows: dict[int, np.ndarray] = {}
        found: dict[int, np.ndarray] = {}
        left = dict(wanted)
        for key in wanted:
            reader = self._readers[key]
            if not reader.count:  # its drafts were not checked: the last position is computed again
                assert reader.last is not None
                reader.done, reader.pending, reader.count = reader.done - 1, [reader.last], 1
        while left:
            parts, budget = {}, STEP_TOKENS
            for key in left:
                if budget > 0:
                    parts[key] = min(self._readers[key].count, budget)
                    budget -= parts[key]
            readers = [self._readers[key] for key in parts]
            vectors = [_taken(reader, count) for reader, count in zip(readers, parts.values())]
            ids = [
                wanted[key].tokens[r.done + 1 : r.done + 1 + count] for (key, count), r in zip(parts.items(), readers)
            ]
            ends = [reader.count == 0 for reader in readers]
            step = self._step(
                {key: wanted[key] for key in parts},
                ids=ids,
                starts=[r.done for r in readers],
                vectors=vectors,
                asked=ends,
            )
            logits, hidden = self._decoder.draft(step)
            place = 0
            for key, reader, end, part in zip(parts, readers, ends, vectors):
                reader.done += len(part)
                reader.last = part[-1:]
                if end:
                    rows[key], found[key] = logits[place], hidden[place]
                    place += 1
                    del left[key]
        return np.stack([rows[key] for key in wanted]), np.stack([found[key] for key in wanted])

    def _step(
        self,
        wanted: Mapping[int, Wanted],
        *,
        ids: Sequence[Sequence[int]],
        starts: Sequence[int],
        vectors: Sequence[np.ndarray],
        asked: Sequence[bool] | None = None,
    ) -> Step:
        return build_step(
            ids,
            starts=starts,
            asked=[1] * len(ids) if asked is None else [int(end) for end in asked],
            pages=[want.pages for want in wanted.values()],
            vectors=np.concatenate(vectors),
        )

    def _behind(self, key: int, tokens: Sequence[int]) -> int:
        reader = self._readers.get(key)
        return len(tokens) if reader is None else reader.count

    def forget(self, key: int) -> None:
        self._readers.pop(key, None)

    def preempted(self, key: int) -> None:
        self.forget(key)


def _taken(reader: _Reader, count: int) -> np.ndarray:
    """The first `count` pending hidden states, which are then no longer pending."""
    whole = reader.pending[0] if len(reader.pending) == 1 else np.concatenate(reader.pending)
    reader.pending = [whole[count:]] if count < len(whole) else []
    reader.count -= count
    return whole[:count]
