"""The schedule: which tokens of which requests are computed in the next step. Pure: no device, no clock, no pool.

One rule: a request's `computed` catches up with its `tokens`. A request that decodes lacks one token, one that is new
lacks its prompt, one that was preempted lacks everything; there are no other kinds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from weft.runtime.pages import PAGE_TOKENS, pages_for


class Progress(NamedTuple):
    """Where one request stands."""

    key: int
    tokens: int  # known: the prompt and what was generated
    computed: int  # the first so many of them are in the state
    pages: int  # held; a request that holds none is waiting, the others are running


class State(NamedTuple):
    """Unfinished requests, oldest first (as many as may run at once), and the pages that nobody holds."""

    requests: Sequence[Progress]
    free_pages: int


class Work(NamedTuple):
    """Compute tokens start to stop of request `key`, after taking `new_pages` more pages for it."""

    key: int
    start: int
    stop: int
    new_pages: int


class Plan(NamedTuple):
    """What the next step does: first the preempted give back all their pages, then the work, oldest first."""

    work: tuple[Work, ...]
    preempted: tuple[int, ...]


def schedule(state: State, budget: int) -> Plan:
    """Give each request the tokens it may compute this step, oldest first, at most `budget` in all.

    When pages run out the youngest running request is returned to the queue; one that nobody is younger than keeps
    what it has and waits. A waiting request starts when all its tokens and one more fit in the free pages, so that it
    is not thrown out at once; nobody overtakes it. The oldest can therefore always go on, which is why everyone
    finishes, and those that run are always the oldest.

    Decoding comes before prompts without a rule of its own: a request that is left with part of its prompt has taken
    the rest of the budget or of the pages, so everyone younger has at most its prompt to compute as well.
    """
    requests = list(state.requests)
    free = state.free_pages
    work: list[Work] = []
    preempted: list[int] = []
    position = 0
    while position < len(requests) and budget:
        request = requests[position]
        wanted = min(request.tokens - request.computed, budget)
        if not request.pages and pages_for(request.tokens + 1) > free:
            break
        needed = pages_for(request.computed + wanted) - request.pages
        while needed > free and len(requests) > position + 1:
            youngest = requests.pop()
            if youngest.pages:
                preempted.append(youngest.key)
                free += youngest.pages
        grown = max(0, min(needed, free))
        stop = min(request.computed + wanted, (request.pages + grown) * PAGE_TOKENS)
        if stop > request.computed:
            work.append(Work(request.key, request.computed, stop, grown))
        free -= grown
        budget -= stop - request.computed
        position += 1
    return Plan(tuple(work), tuple(preempted))
