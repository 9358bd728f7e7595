"""On random traces the schedule keeps its budget and its pages, starves nobody, and everyone finishes."""

import random
from dataclasses import dataclass, field

import pytest

from weft.generate.schedule import Plan, Progress, State, Work, schedule
from weft.runtime.pages import PAGE_TOKENS, PagePool, pages_for


@dataclass
class Job:
    key: int
    tokens: int
    final: int  # tokens at which it finishes; the last is never computed
    computed: int = 0
    pages: list[int] = field(default_factory=list)


class Trace:
    """Requests that arrive, decode, are cancelled and finish, over a real page pool."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(self.rng.randint(1, 12))
        self.budget = self.rng.choice([1, 3, 16, 40, 100, 512])
        self.max_running = self.rng.randint(1, 6)
        self.jobs: dict[int, Job] = {}
        self.to_come = self.rng.randint(1, 8)
        self.cancel_rate = self.rng.choice([0, 0, 0.02])
        self.keys = 0
        self.preemptions = 0

    def arrive(self) -> None:
        final = self.rng.randint(2, self.pool.count * PAGE_TOKENS + 1)
        self.jobs[self.keys] = Job(self.keys, self.rng.randint(1, final - 1), final)
        self.keys += 1
        self.to_come -= 1

    def leave(self, job: Job) -> None:
        self.pool.release(job.pages)
        del self.jobs[job.key]

    def step(self) -> None:
        if self.to_come and (not self.jobs or self.rng.random() < 0.3):
            self.arrive()
        if self.jobs and self.rng.random() < self.cancel_rate:
            self.leave(self.rng.choice(list(self.jobs.values())))
        oldest = list(self.jobs.values())[: self.max_running]
        state = State([Progress(j.key, j.tokens, j.computed, len(j.pages)) for j in oldest], self.pool.free_count)
        plan = schedule(state, self.budget)
        assert plan == schedule(state, self.budget), "not a function of its arguments"
        self.check(plan, oldest)
        self.apply(plan)

    def check(self, plan: Plan, oldest: list[Job]) -> None:
        planned = [w.key for w in plan.work]
        assert planned == sorted(set(planned)), "not oldest first, or one twice"
        assert sum(w.stop - w.start for w in plan.work) <= self.budget
        assert not set(planned) & set(plan.preempted)
        if oldest:
            assert planned[:1] == [oldest[0].key], "the oldest does not go on"
        decoding = [self.jobs[w.key].tokens - w.start == 1 for w in plan.work if w.start > 0]
        assert decoding == sorted(decoding, reverse=True), "a prompt goes before one that decodes"
        survivors = [j.key for j in oldest if j.pages and j.key not in plan.preempted]
        assert not plan.preempted or not survivors or max(survivors) < min(plan.preempted), "not the youngest"
        for w in plan.work:
            job = self.jobs[w.key]
            assert job.computed == w.start < w.stop <= job.tokens
            assert pages_for(w.stop) == len(job.pages) + w.new_pages

    def apply(self, plan: Plan) -> None:
        for key in plan.preempted:
            self.pool.release(self.jobs[key].pages)
            self.jobs[key].pages, self.jobs[key].computed = [], 0
            self.preemptions += 1
        for w in plan.work:
            job = self.jobs[w.key]
            job.pages += self.pool.take(w.new_pages)  # raises where the plan took more than there are
            job.computed = w.stop
            job.tokens += job.computed == job.tokens
        for job in list(self.jobs.values()):
            if job.tokens == job.final:
                self.leave(job)
        held = [page for job in self.jobs.values() for page in job.pages]
        assert len(held) == len(set(held)), "a page in two places"
        assert len(held) + self.pool.free_count == self.pool.count, "a page leaked"
        running = [j.key for j in self.jobs.values() if j.pages]
        assert len(running) <= self.max_running
        assert running == list(self.jobs)[: len(running)], "somebody was overtaken"


@pytest.mark.parametrize("block", range(20))
def test_random_traces_keep_the_invariants(block: int) -> None:
    preemptions = 0
    for seed in range(block * 50, block * 50 + 50):
        trace = Trace(seed)
        for _ in range(200_000):
            if not (trace.jobs or trace.to_come):
                break
            trace.step()
        assert not trace.jobs and trace.pool.free_count == trace.pool.count
        preemptions += trace.preemptions
    assert preemptions > 0, "the traces are too tame"


def test_a_prompt_is_cut_to_the_budget_behind_those_that_decode() -> None:
    state = State([Progress(0, 40, 39, 2), Progress(1, 300, 0, 0), Progress(2, 5, 0, 0)], 100)
    assert schedule(state, 64).work == (Work(0, 39, 40, 0), Work(1, 0, 63, 2))


def test_the_youngest_running_gives_way() -> None:
    state = State([Progress(0, 33, 32, 1), Progress(1, 10, 9, 1), Progress(2, 20, 19, 1), Progress(3, 9, 0, 0)], 0)
    assert schedule(state, 64) == Plan((Work(0, 32, 33, 1), Work(1, 9, 10, 0)), (2,))


def test_the_youngest_itself_keeps_its_pages_and_waits() -> None:
    state = State([Progress(0, 10, 9, 1), Progress(1, 33, 32, 1)], 0)
    assert schedule(state, 64) == Plan((Work(0, 9, 10, 0),), ())


def test_a_waiting_request_starts_only_where_it_can_stay_and_is_not_overtaken() -> None:
    state = State([Progress(0, 10, 9, 1), Progress(1, 64, 0, 0), Progress(2, 3, 0, 0)], 2)
    assert schedule(state, 512) == Plan((Work(0, 9, 10, 0),), ())
    assert [w.key for w in schedule(State(state.requests, 4), 512).work] == [0, 1, 2]
