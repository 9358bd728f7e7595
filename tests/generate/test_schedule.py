"""On random traces the schedule keeps its budget and its pages, starves nobody, and everyone finishes."""

import random
from dataclasses import dataclass, field

import pytest
from soaking import times

from weft.generate.schedule import AGING, Plan, Progress, State, Work, schedule
from weft.runtime.paged.pages import PAGE_TOKENS, PagePool, pages_for


@dataclass
class Job:
    key: int
    tokens: int
    final: int  # tokens at which it finishes; the last is never computed
    priority: int
    tenant: str
    family: int | None  # jobs of a family begin with the same tokens, as far as both go
    computed: int = 0
    drafts: int = 0
    waited: int = 0
    pages: list[int] = field(default_factory=list)


class Trace:
    """Requests that arrive, decode, share pages, draft, are cancelled and finish, over a real page pool."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(self.rng.randint(1, 12))
        self.budget = self.rng.choice([1, 3, 16, 40, 100, 512])
        self.max_running = self.rng.randint(1, 6)
        self.stride = self.rng.choice([0, 0, 32, 96])
        self.jobs: dict[int, Job] = {}
        self.known: dict[tuple[int, int], int] = {}  # (family, which page) -> a full page that holds it
        self.served: dict[str, int] = {}
        self.to_come = self.rng.randint(1, 8)
        self.cancel_rate = self.rng.choice([0, 0, 0.02])
        self.keys = 0
        self.preemptions = self.shares = 0

    def forget(self, page: int) -> None:
        self.known = {place: held for place, held in self.known.items() if held != page}

    def arrive(self) -> None:
        final = self.rng.randint(2, self.pool.count * PAGE_TOKENS + 1)
        self.jobs[self.keys] = Job(
            self.keys,
            self.rng.randint(1, final - 1),
            final,
            self.rng.choice([0, 0, 0, 1, 5]),
            self.rng.choice("abc"),
            self.rng.choice([None, 1, 2]),
        )
        self.keys += 1
        self.to_come -= 1

    def leave(self, job: Job) -> None:
        self.pool.release(job.pages)
        del self.jobs[job.key]

    def shareable(self, job: Job) -> list[int]:
        pages: list[int] = []
        while job.family and (page := self.known.get((job.family, len(pages)))) is not None:
            if (len(pages) + 1) * PAGE_TOKENS >= job.tokens:
                break
            pages.append(page)
        return pages

    def progress(self, job: Job) -> Progress:
        shared = [] if job.pages else self.shareable(job)
        return Progress(
            job.key,
            job.tokens + job.drafts,
            len(shared) * PAGE_TOKENS or job.computed,
            len(job.pages),
            decodes=bool(job.pages) and job.computed == job.tokens - 1,
            shared=len(shared),
            idle=sum(not self.pool.users(page) for page in shared),
            own=sum(self.pool.users(page) == 1 for page in job.pages),
            priority=job.priority,
            waited=job.waited,
            tenant=job.tenant,
        )

    def step(self) -> None:
        if self.to_come and (not self.jobs or self.rng.random() < 0.3):
            self.arrive()
        if self.jobs and self.rng.random() < self.cancel_rate:
            self.leave(self.rng.choice(list(self.jobs.values())))
        for job in self.jobs.values():
            if job.pages and job.computed == job.tokens - 1:
                job.drafts = self.rng.choice([0, 0, min(3, job.final - 1 - job.tokens)])
            job.waited += not job.pages
        requests = [self.progress(job) for job in self.jobs.values()]
        running = sum(bool(job.pages) for job in self.jobs.values())
        state = State(requests, self.pool.free_count, self.max_running - running, self.served, self.stride)
        plan = schedule(state, self.budget)
        assert plan == schedule(state, self.budget), "not a function of its arguments"
        self.check(plan, requests)
        self.apply(plan)

    def check(self, plan: Plan, requests: list[Progress]) -> None:
        known = {r.key: r for r in requests}
        planned = [w.key for w in plan.work]
        assert len(planned) == len(set(planned)), "one twice"
        assert 0 < sum(w.stop - w.start for w in plan.work) <= self.budget or not requests
        assert not set(planned) & set(plan.preempted)
        kinds = [0 if known[key].decodes else 1 if known[key].pages else 2 for key in planned]
        assert kinds == sorted(kinds), "a prompt goes before one that decodes, or a new one before one that runs"
        for kind in (0, 1):
            ranks = [known[key].rank for key, its in zip(planned, kinds) if its == kind]
            assert ranks == sorted(ranks), "the lower rank goes first"
        survivors = [r.rank for r in requests if r.pages and r.key not in plan.preempted]
        gone = [known[key].rank for key in plan.preempted]
        assert not gone or not survivors or max(survivors) < min(gone), "not the last by rank"
        for w in plan.work:
            request = known[w.key]
            assert request.computed == w.start < w.stop <= request.tokens
            assert not self.stride or w.start // self.stride == (w.stop - 1) // self.stride, "past a checkpoint"
            held = request.pages + w.shared  # wrong drafts may have left a page more than the tokens need
            assert w.new_pages == max(0, pages_for(w.stop) - held)

    def apply(self, plan: Plan) -> None:
        for key in plan.preempted:
            job = self.jobs[key]
            self.pool.release(job.pages)
            job.pages, job.computed, job.drafts = [], 0, 0
            self.preemptions += 1
        for w in plan.work:
            job = self.jobs[w.key]
            if w.shared:
                shared = self.shareable(job)[: w.shared]
                self.pool.share(shared)
                job.pages += shared
                self.shares += 1
            job.pages += self.pool.take(w.new_pages)  # raises where the plan took more than there are
            right = self.rng.randint(0, max(0, w.stop - job.tokens))  # drafts that turned out right
            if w.stop >= job.tokens:
                job.tokens += right + 1
                job.computed = job.tokens - 1
            else:
                job.computed = w.stop
            job.drafts = 0
            self.served[job.tenant] = self.served.get(job.tenant, 0) + w.stop - w.start
            self.publish(job)
        for job in list(self.jobs.values()):
            if job.tokens >= job.final:
                self.leave(job)
        self.check_pages()

    def publish(self, job: Job) -> None:
        for index, page in enumerate(job.pages[: job.computed // PAGE_TOKENS]):
            if job.family and (job.family, index) not in self.known:
                self.known[job.family, index] = page
                self.pool.keep(page, self.forget)

    def check_pages(self) -> None:
        held = [page for job in self.jobs.values() for page in job.pages]
        assert all(held.count(page) == self.pool.users(page) for page in range(self.pool.count)), "a user is missing"
        assert len(set(held)) + self.pool.free_count == self.pool.count, "a page leaked"
        assert sum(bool(job.pages) for job in self.jobs.values()) <= self.max_running


def run_trace(seed: int) -> Trace:
    trace = Trace(seed)
    for _ in range(200_000):
        if not (trace.jobs or trace.to_come):
            break
        trace.step()
    assert not trace.jobs and trace.pool.free_count == trace.pool.count
    return trace


@pytest.mark.soak
@pytest.mark.parametrize("block", range(times(10, 2)))
def test_random_traces_keep_the_invariants(block: int) -> None:
    traces = [run_trace(seed) for seed in range(block * 50, block * 50 + 50)]  # soak.py runs ten thousand
    assert any(t.preemptions for t in traces) and any(t.shares for t in traces), "the traces are too tame"


def test_a_prompt_is_cut_to_the_budget_behind_those_that_decode() -> None:
    state = State([Progress(1, 300, 0, 0), Progress(2, 5, 0, 0), Progress(3, 40, 39, 2, decodes=True)], 100)
    assert schedule(state, 64).work == (Work(3, 39, 40, 0), Work(1, 0, 63, 2))


def running(key: int, tokens: int, pages: int, **more: object) -> Progress:
    return Progress(key, tokens, tokens - 1, pages, decodes=True, own=pages, **more)  # type: ignore[arg-type]


def test_the_last_by_rank_gives_way() -> None:
    state = State([running(0, 33, 1), running(1, 10, 1), running(2, 20, 1), Progress(3, 9, 0, 0)], 0)
    assert schedule(state, 64) == Plan((Work(0, 32, 33, 1), Work(1, 9, 10, 0)), (2,))
    state = State([running(0, 33, 1), running(1, 10, 1), running(2, 20, 1, priority=1)], 0)
    assert schedule(state, 64) == Plan((Work(2, 19, 20, 0), Work(0, 32, 33, 1)), (1,))


def test_the_last_itself_keeps_its_pages_and_waits() -> None:
    state = State([running(0, 10, 1), running(1, 33, 1)], 0)
    assert schedule(state, 64) == Plan((Work(0, 9, 10, 0),), ())


def test_pages_that_others_use_too_are_not_counted_on() -> None:
    state = State([running(0, 33, 1), running(1, 10, 1), running(2, 20, 2)._replace(own=0)], 0)
    assert schedule(state, 64) == Plan((Work(0, 32, 33, 1),), (2, 1))


def test_a_waiting_request_starts_only_where_it_can_stay_and_is_not_overtaken() -> None:
    state = State([running(0, 10, 1), Progress(1, 64, 0, 0), Progress(2, 3, 0, 0)], 2)
    assert schedule(state, 512) == Plan((Work(0, 9, 10, 0),), ())
    assert [w.key for w in schedule(State(state.requests, 4), 512).work] == [0, 1, 2]


def test_shared_pages_are_not_taken_again_and_unused_ones_are_no_longer_free() -> None:
    new = Progress(1, 100, 64, 0, shared=2, idle=1)  # 100 tokens and one: four pages
    assert schedule(State([new], 2), 512).work == ()
    assert schedule(State([new], 3), 512).work == (Work(1, 64, 100, 2, 2),)
    second = Progress(2, 1, 0, 0)
    assert [w.key for w in schedule(State([new, second], 4), 512).work] == [1, 2]
    assert [w.key for w in schedule(State([new, second], 3), 512).work] == [1]


def test_a_request_that_waits_for_anothers_pages_holds_nobody_up() -> None:
    state = State([Progress(0, 90, 0, 0), Progress(1, 90, 0, 0, held_up=True), Progress(2, 5, 0, 0)], 100)
    assert [w.key for w in schedule(state, 512).work] == [0, 2]


def test_priority_goes_first_and_waiting_becomes_priority() -> None:
    state = State([Progress(0, 5, 0, 0), Progress(1, 5, 0, 0, priority=2)], 100, vacancies=1)
    assert [w.key for w in schedule(state, 512).work] == [1]
    state = State([Progress(0, 5, 0, 0, waited=2 * AGING), Progress(1, 5, 0, 0, priority=2)], 100, vacancies=1)
    assert [w.key for w in schedule(state, 512).work] == [0]


def test_tenants_take_turns_by_what_they_have_had() -> None:
    requests = [Progress(i, 10, 0, 0, tenant="a" if i < 4 else "b") for i in range(6)]
    order = [w.key for w in schedule(State(requests, 100, served={"a": 0, "b": 5}), 512).work]
    assert order == [0, 4, 1, 5, 2, 3]
