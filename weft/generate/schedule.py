"""The schedule: which tokens of which requests are computed in the next step. Pure: no device, no clock, no pool.

One rule: a request's `computed` catches up with its `tokens`. A request that decodes lacks one token and its drafts, a
new one lacks its prompt, a preempted one lacks all its tokens; there are no other kinds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from weft.runtime.paged.pages import PAGE_TOKENS, pages_for

AGING = 256  # steps of waiting that raise the priority by one
SHORT_TOKENS = 256  # a prompt that lacks no more than this is short
LONG_SHARE = 1 / 4  # of the tokens and of the time for prompts, for long ones while short ones are computed
LEAST_TOKENS = 1  # for the first short and the first long prompt of a step, whatever they cost
PART_TOKENS = 4  # fewer are not worth a part of a step, nor a step more


class Progress(NamedTuple):
    """The progress of one request. Lower keys were submitted earlier."""

    key: int
    tokens: int  # the prompt, generated tokens and drafts
    computed: int  # how many of them, from the first, are in its pages or in pages it can share
    pages: int  # held; a request that holds none is waiting, the others are running
    decodes: bool = False  # only the last token and drafts are not computed
    shared: int = 0  # of a waiting request: pages in the prefix cache that it can use
    idle: int = 0  # of these, pages that no request uses: they count as free until it takes them
    own: int = 0  # of the pages held, those no other request uses: preempting it frees them
    held_up: bool = False  # waiting for pages that another request is computing
    priority: int = 0  # higher goes first
    waited: int = 0  # steps in which no token of its prompt was computed, in total
    tenant: str = ""
    scored: bool = False  # its prompt's log probabilities are wanted, so every token costs a row of logits
    pause: int = 0  # its part of a step ends here at the latest, for a checkpoint; 0: anywhere
    wholes: tuple[tuple[int, int], ...] = ()  # first and end of tokens that one step computes: they see each other

    @property
    def urgency(self) -> int:
        """Priority plus a bonus for waiting, so that no request waits for ever."""
        return self.priority + self.waited // AGING

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the most urgent first, then the oldest."""
        return -self.urgency, self.key

    @property
    def missing(self) -> int:
        return self.tokens - self.computed

    @property
    def short(self) -> bool:
        return self.missing <= SHORT_TOKENS


class Cost(NamedTuple):
    """Seconds of the parts of a step, as measured; zeros, before anything was measured, set no limit."""

    step: float = 0.0  # of every step
    row: float = 0.0  # of every token of a request that decodes
    token: float = 0.0  # of every prompt token
    attended: float = 0.0  # of every token that a prompt token attends to
    scored: float = 0.0  # of every prompt token whose logits are wanted too

    @property
    def known(self) -> bool:
        return self.step + self.row > 0

    def prompt(self, start: int, stop: int, scored: bool) -> float:
        """Seconds of the tokens start to stop of a prompt."""
        each = self.token + self.attended * (start + stop) / 2 + (self.scored if scored else 0.0)
        return (stop - start) * each

    def reach(self, start: int, most: int, scored: bool, seconds: float) -> int:
        """How many prompt tokens from `start` on, at most `most`, take no longer than `seconds`."""
        return bisect_right(range(1, most + 1), seconds, key=lambda count: self.prompt(start, start + count, scored))


class State(NamedTuple):
    """Unfinished requests, free pages, how many more requests may run, and tokens computed by tenant."""

    requests: Sequence[Progress]
    free_pages: int
    vacancies: int = 1 << 30
    served: Mapping[str, int] = {}
    cost: Cost = Cost()
    seconds: float = inf  # of prompts, in a step in which no request decodes


class Work(NamedTuple):
    """Compute tokens start to stop of request `key`, after taking its `shared` pages and `new_pages` fresh ones."""

    key: int
    start: int
    stop: int
    new_pages: int
    shared: int = 0


class Plan(NamedTuple):
    """What the next step does: first preempted requests release their pages, then the work runs."""

    work: tuple[Work, ...]
    preempted: tuple[int, ...]


def schedule(state: State, budget: int) -> Plan:
    """Give requests the tokens they may compute this step, at most `budget` in all.

    1. Every request that decodes gets its token; its drafts leave a quarter of the budget to prompts.
    2. Prompts get the rest of the budget, but no more time than the decoding part of the step takes: a prompt at most
       doubles the time between two tokens of the others. Where nobody decodes they get `state.seconds`. Time is
       predicted from measured costs (`state.cost`).
    3. Short prompts (at most SHORT_TOKENS are missing) go first, with three quarters of that; long ones get one
       quarter, or everything while no short one is computed. What short prompts leave is not used up: the step is
       shorter, and their first tokens come sooner. A short prompt of a lower priority than a long one counts as long.
       The first of each kind gets at least LEAST_TOKENS tokens.
    4. Within a kind the most urgent prompt goes first (its priority, and one more for each AGING steps without a
       token), then the one whose tenant has had the fewest tokens; then the oldest of the short ones, and of the long
       ones the one that lacks least. Begun and waiting prompts take turns alike.

    A part of a prompt does not end inside tokens that see each other, such as those of a picture (`wholes`): it ends
    before them, or where they are next, after them, even if that is more than its share.

    When pages run out, the running request that ranks last is preempted and returns to the queue; if that is the one
    that needs pages, it keeps its pages and pauses. A waiting request starts when all its tokens, and one more if
    others run, fit in the free pages, so that it is not preempted at once; no request that comes after it overtakes it
    when it is its turn.

    Every request finishes: the running request that ranks first can always get pages, so it ends, and the next one
    becomes first. While there are pages and vacancies, and the budget leaves prompts 4 * PART_TOKENS tokens or more:

    - A prompt that has gone without a token for AGING * (1 + d) steps, d being how far its priority is below the
      highest, goes before all that come later. From then on it is computed within ceil(m / LEAST_TOKENS) steps, summed
      over itself and the prompts that are there, where m is what each lacks.
    - A short prompt among requests of one tenant and one priority waits only for older ones, and of these only for
      their last SHORT_TOKENS tokens: it is computed within ceil(min(m, SHORT_TOKENS) / LEAST_TOKENS) steps, summed over
      itself and the older ones, as long as that is less than AGING.
    """
    step = _Step(state, budget)
    running = sorted((r for r in state.requests if r.pages), key=lambda r: r.rank)
    prompts = [r for r in state.requests if not r.decodes and not r.held_up and r.missing > 0]
    step.decode([r for r in running if r.decodes], running, spare=budget // 4 if prompts else 0)
    step.compute(prompts, running)
    known = {r.key: r for r in state.requests}

    def place(work: Work) -> tuple[int, tuple[int, int]]:
        request = known[work.key]
        return (0 if request.decodes else 1, request.rank) if request.pages else (2, (0, 0))

    return Plan(tuple(sorted(step.work.values(), key=place)), tuple(step.preempted))


def _before(request: Progress, end: int) -> int:
    """`end`, or the first of the tokens that it would part."""
    return next((first for first, last in request.wholes if first < end < last), end)


def _around(request: Progress, end: int) -> int:
    """`end`, or where that would part tokens that see each other: before them, or after them if they are next."""
    if not request.wholes or end <= request.computed:
        return end
    before = _before(request, end)
    return before if before > request.computed else next((b for a, b in request.wholes if a < end < b), end)


class _Share:
    """The tokens and seconds that prompts of one kind may still use."""

    def __init__(self, tokens: int, seconds: float) -> None:
        self.tokens, self.seconds = tokens, seconds
        self.used = False

    @property
    def spent(self) -> bool:
        return self.tokens <= 0 or (self.used and self.seconds <= 0)


class _Step:
    """A plan under construction."""

    def __init__(self, state: State, budget: int) -> None:
        self.budget = budget
        self.cost = state.cost
        self.seconds = state.seconds
        self.runs = any(r.pages for r in state.requests)
        self.free = state.free_pages
        self.vacancies = state.vacancies
        self.served = dict(state.served)
        self.work: dict[int, Work] = {}
        self.preempted: dict[int, None] = {}
        self.closed = False  # a waiting request lacks pages: none after it may start

    def decode(self, decoding: list[Progress], running: list[Progress], spare: int) -> None:
        """Plan one token for each, and its drafts while more than `spare` tokens of the budget are left."""
        for request in decoding:
            if self.budget and request.key not in self.preempted:
                most = max(1, min(request.missing, self.budget - spare))
                self._go_on(request, self._end(request, most), running)
        if self.work:
            rows = sum(work.stop - work.start for work in self.work.values())
            self.seconds = self.cost.step + self.cost.row * rows if self.cost.known else inf

    def compute(self, prompts: list[Progress], running: list[Progress]) -> None:
        """Plan the prompts: the short ones, then the long ones."""
        highest = max((r.priority for r in prompts if not r.short), default=-inf)
        short = [r for r in prompts if r.short and r.priority >= highest]
        long = [r for r in prompts if not r.short or r.priority < highest]
        for_long = max(1, int(LONG_SHARE * self.budget)) if long and self.budget > 1 else 0
        before, first_long = len(self.work), min(long, key=self._turn_of_long, default=None)
        share = _Share(self.budget - for_long, self.seconds * (1 - LONG_SHARE if long else 1))
        claim = first_long if first_long is not None and not first_long.pages else None
        self._take_turns(short, share, self._turn, running, claim)
        if len(self.work) > before:
            share = _Share(min(for_long, self.budget), self.seconds * LONG_SHARE)
        else:
            share = _Share(self.budget, self.seconds)
        self._take_turns(long, share, self._turn_of_long, running)

    def _take_turns(
        self,
        prompts: list[Progress],
        share: _Share,
        turn: Callable[[Progress], tuple[int, ...]],
        running: list[Progress],
        claim: Progress | None = None,
    ) -> None:
        """Give the share to prompts in turn. `claim` is a waiting one of the other kind, whose pages are left to it."""
        while prompts and not share.spent:
            request = min(prompts, key=turn)
            prompts.remove(request)
            stop = self._stop(request, share)
            if request.key in self.preempted or stop == request.computed:
                continue
            if request.pages:
                self._go_on(request, stop, running)
            elif not self.closed and not (claim and self._yields(request, claim)):
                self._start(request, stop)
            else:
                prompts = [r for r in prompts if r.pages]  # nobody overtakes it
            if work := self.work.get(request.key):
                share.tokens -= work.stop - work.start
                share.seconds -= self.cost.prompt(work.start, work.stop, request.scored)
                share.used = True

    def _turn(self, request: Progress) -> tuple[int, ...]:
        return -request.urgency, self.served.get(request.tenant, 0), request.key

    def _turn_of_long(self, request: Progress) -> tuple[int, ...]:
        return -request.urgency, self.served.get(request.tenant, 0), request.missing, request.key

    def _stop(self, request: Progress, share: _Share) -> int:
        """The end of the tokens that it may compute with what is left of the share."""
        most = min(request.missing, share.tokens)
        count = self.cost.reach(request.computed, most, request.scored, share.seconds)
        if count < LEAST_TOKENS and not share.used:
            count = LEAST_TOKENS
        elif share.used and count < min(PART_TOKENS, request.missing):
            count = 0
        elif count >= PART_TOKENS and request.missing - count < PART_TOKENS:
            count = request.missing
        return self._end(request, min(count, most))

    def _end(self, request: Progress, count: int) -> int:
        """The end of `count` tokens, or of those up to its next checkpoint."""
        end = request.computed + count
        return _around(request, min(end, request.pause) if request.pause else end)

    def _go_on(self, request: Progress, stop: int, running: list[Progress]) -> None:
        """Plan the tokens up to `stop` of a running request; preempts requests that rank behind it for their pages."""
        needed = pages_for(stop) - request.pages
        while needed > self.free and running[-1].key != request.key:
            self._preempt(running.pop())
        grown = max(0, min(needed, self.free))
        stop = _before(request, min(stop, (request.pages + grown) * PAGE_TOKENS))
        if stop > request.computed:
            self._give(request, Work(request.key, request.computed, stop, grown))

    def _preempt(self, last: Progress) -> None:
        undone = self.work.pop(last.key, None)
        if undone:
            self.budget += undone.stop - undone.start
            self.free += undone.new_pages
        self.preempted[last.key] = None
        self.free += last.own

    def _start(self, request: Progress, stop: int) -> None:
        """Start a waiting request if there are pages for all of it."""
        if self.vacancies < 1 or self.preempted or self._pages_to_start(request) > self.free:
            self.closed = True
            return
        grown = pages_for(stop) - request.shared
        self.free -= request.idle
        self.vacancies -= 1
        self._give(request, Work(request.key, request.computed, stop, grown, request.shared))

    def _pages_to_start(self, request: Progress) -> int:
        beside_others = self.runs or bool(self.work)
        return pages_for(request.tokens + beside_others) - request.shared + request.idle

    def _yields(self, request: Progress, claim: Progress) -> bool:
        """Whether `request` must wait, since `claim` comes before it and there is no room for both."""
        if self._turn(request) < self._turn(claim):
            return False
        pages = self._pages_to_start(request) + self._pages_to_start(claim)
        return pages > self.free or self.vacancies < 2

    def _give(self, request: Progress, work: Work) -> None:
        self.work[request.key] = work
        self.free -= work.new_pages
        self.budget -= work.stop - work.start
        self.served[request.tenant] = self.served.get(request.tenant, 0) + work.stop - work.start
