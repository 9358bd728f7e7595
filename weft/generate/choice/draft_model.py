"""A draft model: a smaller model with the same vocabulary and its own KV cache, which drafts a few tokens ahead.

It chooses tokens with the request's sampling rules and random numbers, so where the two models agree on the
probabilities they draw the same token, in sampled texts too.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.frozen import frozen
from weft.generate.choice.drafts import AcceptanceByDepth, agreement
from weft.generate.decoder import Decoder
from weft.runtime.paged.holding import Holding, slots_of
from weft.runtime.steps import build_step

STEP_TOKENS = 512
TRY = 2  # tokens of a trial draft, which measures the cost
SLOTS_EACH = 3  # of recurrent state, for each request: the saved one, the one that is read, the one that is written
RESTS = 50  # pause after a trial, in durations of it: where drafting does not pay, trials cost a fiftieth of the time
USELESS = 0.2  # drafts that are right less often than this are tried only a third as often
Choose = Callable[[np.ndarray, int], int]  # logits and how many tokens ahead -> the token


@dataclass
class _Follower:
    """One request in the draft model: the pages it holds, and the tokens that are computed there."""

    holding: Holding
    tokens: list[int] = field(default_factory=list)
    saved: int = 0  # with recurrent state: after how many tokens it was saved, to return to when drafts are wrong
    row: np.ndarray | None = None  # the logits there, for a request whose drafts were not checked

    def keep(self, count: int) -> None:
        """Go back to the first `count` tokens. Recurrent state goes back to where it was saved, which is not later."""
        if self.holding.recurrence is not None and count < len(self.tokens):
            self.holding.recurrence.restore()
            count = self.saved
        del self.tokens[count:]

    def save(self, row: np.ndarray) -> None:
        """The tokens so far are the request's own: recurrent state never goes back further. `row` are the logits."""
        if self.holding.recurrence is not None:
            self.holding.recurrence.save()
            self.saved, self.row = len(self.tokens), row.copy()


@frozen
class Wanted:
    """Draft `count` tokens after `tokens`, the request's text so far."""

    tokens: Sequence[int]
    count: int
    choose: Choose
    pages: Any = None  # the request's own row of the page table, int32 [width]
    room: int = 0  # tokens that these pages hold


class Drafter(ABC):
    """Drafts for requests, which it knows by their keys, and measures what that takes.

    The caller must hold the engine's lock.
    """

    few = 2  # tokens of text for each request, beside which a step still counts as drafting

    def __init__(self) -> None:
        self.seconds = 0.0  # per drafted token, once the text before it is computed; recent ones weigh most
        self.acceptance = AcceptanceByDepth()  # of all requests' drafts
        self._reading = 0.0  # seconds per token of text that must be computed before drafting
        self._ended = 0.0  # time of the last draft

    @abstractmethod
    def draft(self, wanted: Mapping[int, Wanted]) -> dict[int, list[int]]:
        """The drafts by key; a request may get fewer than it wanted, or none."""

    @abstractmethod
    def forget(self, key: int) -> None:
        """Give back what is held for a request."""

    @abstractmethod
    def _behind(self, key: int, tokens: Sequence[int]) -> int:
        """Tokens of a request that must be computed before drafting."""

    def preempted(self, key: int) -> None:
        """The request has lost its pages."""
        return

    def may_try(self, key: int, tokens: Sequence[int], rate: float, checking_s: float) -> bool:
        """Whether to try drafting again for a request where it did not pay.

        `rate` says how often the first token of its drafts was right; checking the trial takes `checking_s`.
        """
        cost = self._behind(key, tokens) * self._reading + TRY * self.seconds + checking_s
        return time.perf_counter() - self._ended >= RESTS * cost * (3 if rate < USELESS else 1)

    def _note(self, seconds: float, requests: int, missing: int) -> None:
        """Record that a step for `requests` took `seconds` and computed `missing` tokens of their texts."""
        if missing <= self.few * requests:
            self.seconds = _mean(self.seconds, seconds / requests)
        else:
            self._reading = _mean(self._reading, seconds / missing)
        self._ended = time.perf_counter()


class DraftModel(Drafter):
    """Drafts by a smaller model, which has pages of its own."""

    def __init__(self, decoder: Decoder, vocab_size: int) -> None:
        super().__init__()
        if decoder.vocab_size != vocab_size:
            what = f"must have the same vocabulary: it has {decoder.vocab_size} tokens, the model {vocab_size}"
            raise InputError("engine", what, field="draft", advice="use a smaller model of the same family")
        self._decoder = decoder
        self._most = None if decoder.slots is None else decoder.slots.count // SLOTS_EACH  # requests at once
        self._followers: dict[int, _Follower] = {}

    def draft(self, wanted: Mapping[int, Wanted]) -> dict[int, list[int]]:
        ready = {key: self._follow(key, want) for key, want in wanted.items() if want.count > 0}
        going = {key: follower for key, follower in ready.items() if follower is not None}
        drafts: dict[int, list[int]] = {key: [] for key in going}
        while going:
            before = time.perf_counter()
            work = [(follower, [*wanted[key].tokens, *drafts[key]]) for key, follower in going.items()]
            missing = sum(len(text) - len(follower.tokens) for follower, text in work)
            rows = self._step(work)
            self._note(time.perf_counter() - before, len(work), missing)
            for (key, follower), row in zip(list(going.items()), rows):
                if not drafts[key]:
                    follower.save(row)
                drafts[key].append(wanted[key].choose(row, len(drafts[key])))
                if len(drafts[key]) == wanted[key].count:
                    del going[key]
        return drafts

    def _behind(self, key: int, tokens: Sequence[int]) -> int:
        follower = self._followers.get(key)
        return len(tokens) - (len(follower.tokens) if follower else 0)

    def forget(self, key: int) -> None:
        follower = self._followers.pop(key, None)
        if follower is not None:
            follower.holding.release()

    def _follow(self, key: int, want: Wanted) -> _Follower | None:
        """The follower of a request, with pages for its text and drafts; None if they do not fit."""
        follower = self._followers.get(key)
        if follower is None:
            if self._most is not None and len(self._followers) >= self._most:
                return None
            pools = self._decoder.pages, self._decoder.slots, self._decoder.max_pages
            follower = self._followers[key] = _Follower(Holding(*pools))
        follower.keep(min(agreement(follower.tokens, want.tokens), len(want.tokens) - 1))  # wrong drafts go
        total = len(want.tokens) + want.count
        return follower if total <= self._decoder.max_context and follower.holding.grow(total) else None

    def _step(self, work: list[tuple[_Follower, list[int]]]) -> list[np.ndarray]:
        """Compute the missing tokens of each text; logits [vocab] after the last token of each."""
        found = {place: f.row for place, (f, text) in enumerate(work) if f.row is not None and f.tokens == text}
        while len(found) < len(work):
            parts, budget = [], STEP_TOKENS
            for place, (follower, text) in enumerate(work):
                if place not in found and budget > 0:
                    start = len(follower.tokens)
                    stop = min(len(text), start + budget)
                    parts.append((place, follower, text[start:stop]))
                    budget -= stop - start
            for (place, follower, part), row in zip(parts, self._run([(f, part) for _, f, part in parts])):
                follower.tokens += part
                follower.holding.advance()
                if len(follower.tokens) == len(work[place][1]):
                    found[place] = row
        return [found[place] for place in range(len(work))]

    def _run(self, parts: list[tuple[_Follower, list[int]]]) -> np.ndarray:
        holdings = [follower.holding for follower, _ in parts]
        for holding in holdings:
            holding.ready()
        step = build_step(
            [part for _, part in parts],
            starts=[len(follower.tokens) for follower, _ in parts],
            asked=[1] * len(parts),
            pages=[holding.row for holding in holdings],
            slots=slots_of(holdings),
        )
        return self._decoder.run(step)


def _mean(old: float, new: float) -> float:
    """An exponential moving average; `old` 0 means no measurement yet."""
    return new if old == 0 else 0.7 * old + 0.3 * new
