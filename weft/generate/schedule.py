"""The schedule: which tokens of which requests are computed in the next step. Pure: no device, no clock, no pool.

One rule: a request's `computed` catches up with its `tokens`. A request that decodes lacks one token and its drafts, a
new one lacks its prompt, a preempted one lacks all its tokens; there are no other kinds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.runtime.paged.pages import PAGE_TOKENS, pages_for

AGING = 256  # steps of waiting that raise the priority by one


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
    waited: int = 0  # steps spent waiting, in total
    tenant: str = ""

    @property
    def urgency(self) -> int:
        """Priority plus a bonus for waiting, so that no request waits for ever."""
        return self.priority + self.waited // AGING

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the most urgent first, then the oldest."""
        return -self.urgency, self.key


class State(NamedTuple):
    """Unfinished requests, free pages, how many more requests may run, and tokens computed by tenant."""

    requests: Sequence[Progress]
    free_pages: int
    vacancies: int = 1 << 30
    served: Mapping[str, int] = {}
    stride: int = 0  # a request's part of a step ends at multiples of this many tokens; 0: anywhere


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

    Requests that decode come first, then prompts that have begun, then waiting requests; each kind by urgency and age,
    and waiting requests also by how many tokens their tenant has had. When pages run out, the running request that
    ranks last is preempted and returns to the queue; if that is the one that needs pages, it keeps its pages and
    pauses. A waiting request starts when all its tokens, and one more if others run, fit in the free pages, so that it
    is not preempted at once; no request overtakes it.

    Every request finishes: the running request that ranks first can always get pages, so it ends, and the next one
    becomes first. A waiting request gains urgency until it is first, and starts at the latest when none runs.
    """
    step = _Step(state, budget)
    running = sorted((r for r in state.requests if r.pages), key=lambda r: r.rank)
    for request in [r for r in running if r.decodes] + [r for r in running if not r.decodes]:
        if request.key not in step.preempted:
            step.go_on(request, running)
    step.admit([r for r in state.requests if not r.pages and not r.held_up])
    return Plan(tuple(step.work.values()), tuple(step.preempted))


class _Step:
    """A plan under construction."""

    def __init__(self, state: State, budget: int) -> None:
        self.budget = budget
        self.runs = any(r.pages for r in state.requests)
        self.free = state.free_pages
        self.vacancies = state.vacancies
        self.served = dict(state.served)
        self.stride = state.stride
        self.work: dict[int, Work] = {}
        self.preempted: dict[int, None] = {}

    def go_on(self, request: Progress, running: list[Progress]) -> None:
        """Plan the next tokens of a running request; preempts requests that rank behind it if it needs their pages."""
        wanted = self._end(request) - request.computed
        if wanted <= 0:
            return
        needed = pages_for(request.computed + wanted) - request.pages
        while needed > self.free and running[-1].key != request.key:
            self._preempt(running.pop())
        grown = max(0, min(needed, self.free))
        stop = min(request.computed + wanted, (request.pages + grown) * PAGE_TOKENS)
        if stop > request.computed:
            self._give(request, Work(request.key, request.computed, stop, grown))

    def _end(self, request: Progress) -> int:
        """The end of the tokens that it may compute in this step."""
        end = min(request.tokens, request.computed + self.budget)
        return min(end, (request.computed // self.stride + 1) * self.stride) if self.stride else end

    def _preempt(self, last: Progress) -> None:
        undone = self.work.pop(last.key, None)
        if undone:
            self.budget += undone.stop - undone.start
            self.free += undone.new_pages
        self.preempted[last.key] = None
        self.free += last.own

    def admit(self, waiting: list[Progress]) -> None:
        """Start waiting requests in order until budget, pages or vacancies are used up."""
        while waiting and self.budget and self.vacancies and not self.preempted:
            request = min(waiting, key=lambda r: (-r.urgency, self.served.get(r.tenant, 0), r.key))
            waiting.remove(request)
            beside_others = self.runs or bool(self.work)
            if pages_for(request.tokens + beside_others) - request.shared + request.idle > self.free:
                return
            stop = self._end(request)
            grown = pages_for(stop) - request.shared
            self.free -= request.idle
            self.vacancies -= 1
            self._give(request, Work(request.key, request.computed, stop, grown, request.shared))

    def _give(self, request: Progress, work: Work) -> None:
        self.work[request.key] = work
        self.free -= work.new_pages
        self.budget -= work.stop - work.start
        self.served[request.tenant] = self.served.get(request.tenant, 0) + work.stop - work.start
