"""The schedule: which tokens of which requests are computed in the next step. Pure: no device, no clock, no pool.

One rule: a request's `computed` catches up with its `tokens`. A request that decodes lacks one token (and the drafts it
wants checked), one that is new lacks its prompt, one that was preempted lacks everything; there are no other kinds.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.runtime.paged.pages import PAGE_TOKENS, pages_for

AGING = 256  # steps of waiting that are worth one step of priority


class Progress(NamedTuple):
    """Where one request stands. Keys count up: the lower came first."""

    key: int
    tokens: int  # known: the prompt, what was generated, and drafts
    computed: int  # the first so many of them are in the state, or in pages that a waiting one may share
    pages: int  # held; a request that holds none is waiting, the others are running
    decodes: bool = False  # nothing is missing but the last token and drafts
    shared: int = 0  # of one that waits: pages with its beginning that are there already
    idle: int = 0  # of these, the ones that nobody uses: they are free until it takes them
    own: int = 0  # of the pages held: those that nobody else uses, which are free when it is preempted
    held_up: bool = False  # waits for pages that another request is computing
    priority: int = 0  # the higher goes first
    waited: int = 0  # steps that it was waiting, all its life
    tenant: str = ""

    @property
    def urgency(self) -> int:
        """Priority, which grows with waiting, so that nobody waits for ever."""
        return self.priority + self.waited // AGING

    @property
    def rank(self) -> tuple[int, int]:
        """Sorts those that go on first to the front."""
        return -self.urgency, self.key


class State(NamedTuple):
    """Unfinished requests, the pages without users, how many more requests may run, and tokens computed by tenant."""

    requests: Sequence[Progress]
    free_pages: int
    vacancies: int = 1 << 30
    served: Mapping[str, int] = {}
    stride: int = 0  # tokens between two places where a step has to end, 0 for none


class Work(NamedTuple):
    """Compute tokens start to stop of request `key`, after taking its `shared` pages and `new_pages` fresh ones."""

    key: int
    start: int
    stop: int
    new_pages: int
    shared: int = 0


class Plan(NamedTuple):
    """What the next step does: first the preempted give back all their pages, then the work."""

    work: tuple[Work, ...]
    preempted: tuple[int, ...]


def schedule(state: State, budget: int) -> Plan:
    """Give requests the tokens they may compute this step, at most `budget` in all.

    Those that decode come first, then prompts that have begun, then those that wait; each kind by urgency and age, and
    those that wait also by how much their tenant has had. When pages run out, the last by rank of those that run is
    returned to the queue; one that nobody ranks behind keeps what it has and waits. A waiting request starts when all
    its tokens and, beside others, one more fit in the free pages, so that it is not thrown out at once; nobody
    overtakes it.

    Everyone finishes: the first by rank of those that run can always get pages, so it ends, and then the next is first.
    The first of those that wait starts at the latest when nobody runs, and by waiting it becomes the first.
    """
    step = _Step(state, budget)
    running = sorted((r for r in state.requests if r.pages), key=lambda r: r.rank)
    for request in [r for r in running if r.decodes] + [r for r in running if not r.decodes]:
        if request.key not in step.preempted:
            step.go_on(request, running)
    step.admit([r for r in state.requests if not r.pages and not r.held_up])
    return Plan(tuple(step.work.values()), tuple(step.preempted))


class _Step:
    """A plan while it is made."""

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
        """The next tokens of a running request, with the pages of those that rank behind it where need be."""
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
        """Where the tokens end that it may compute."""
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
        """Start requests in their order until budget, pages or vacancies are used up."""
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
