"""On random traces the schedule keeps its budget and its pages, starves nobody, and everyone finishes."""

import random
from dataclasses import dataclass, field

import pytest
from soaking import times

from weft.generate.schedule import (
    AGING,
    LEAST_TOKENS,
    LONG_SHARE,
    SHORT_TOKENS,
    Cost,
    Plan,
    Progress,
    State,
    Work,
    schedule,
)
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
    scored: bool = False
    wholes: tuple[tuple[int, int], ...] = ()
    pages: list[int] = field(default_factory=list)

    @property
    def decodes(self) -> bool:
        return bool(self.pages) and self.computed == self.tokens - 1


def random_cost(rng: random.Random) -> Cost:
    """Prices that are unknown, plausible, or far from it."""
    if rng.random() < 0.3:
        return Cost()
    return Cost(*(10 ** rng.uniform(-6, 0) for _ in Cost._fields))


class Trace:
    """Requests that arrive, decode, share pages, draft, are cancelled and finish, over a real page pool."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pool = PagePool(self.rng.randint(1, 12))
        self.budget = self.rng.choice([1, 3, 16, 40, 100, 512])
        self.max_running = self.rng.randint(1, 6)
        self.stride = self.rng.choice([0, 0, 32, 96])
        self.cost = random_cost(self.rng)
        self.seconds = self.rng.choice([float("inf"), 8 * self.cost.step])
        self.jobs: dict[int, Job] = {}
        self.known: dict[tuple[int, int], int] = {}  # (family, which page) -> a full page that holds it
        self.served: dict[str, int] = {}
        self.to_come = self.rng.randint(1, 8)
        self.cancel_rate = self.rng.choice([0, 0, 0.02])
        self.sights = random.Random(seed) if seed % 3 == 0 and not self.stride else None  # prompts with pictures
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
            scored=self.rng.random() < 0.2,
        )
        self.jobs[self.keys].wholes = self.wholes(self.jobs[self.keys].tokens)
        self.keys += 1
        self.to_come -= 1

    def wholes(self, tokens: int) -> tuple[tuple[int, int], ...]:
        """Parts of a prompt that see each other, one after another."""
        if self.sights is None:
            return ()
        places = sorted(self.sights.sample(range(tokens + 1), 2 * self.sights.randint(0, min(3, (tokens + 1) // 2))))
        return tuple(zip(places[::2], places[1::2]))

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
        computed = len(shared) * PAGE_TOKENS or job.computed
        return Progress(
            job.key,
            job.tokens + job.drafts,
            computed,
            len(job.pages),
            decodes=job.decodes,
            shared=len(shared),
            idle=sum(not self.pool.users(page) for page in shared),
            own=sum(self.pool.users(page) == 1 for page in job.pages),
            priority=job.priority,
            waited=job.waited,
            tenant=job.tenant,
            scored=job.scored,
            pause=(computed // self.stride + 1) * self.stride if self.stride else 0,
            wholes=job.wholes,
        )

    def step(self) -> None:
        if self.to_come and (not self.jobs or self.rng.random() < 0.3):
            self.arrive()
        if self.jobs and self.rng.random() < self.cancel_rate:
            self.leave(self.rng.choice(list(self.jobs.values())))
        for job in self.jobs.values():
            if job.decodes:
                job.drafts = self.rng.choice([0, 0, min(3, job.final - 1 - job.tokens)])
        requests = [self.progress(job) for job in self.jobs.values()]
        running = sum(bool(job.pages) for job in self.jobs.values())
        vacancies = self.max_running - running
        state = State(requests, self.pool.free_count, vacancies, self.served, self.cost, self.seconds)
        plan = schedule(state, self.budget)
        assert plan == schedule(state, self.budget), "not a function of its arguments"
        self.check(plan, requests)
        planned = {work.key for work in plan.work}
        for job in self.jobs.values():
            job.waited += job.key not in planned and not job.decodes
        self.apply(plan)

    def check(self, plan: Plan, requests: list[Progress]) -> None:
        known = {r.key: r for r in requests}
        planned = [w.key for w in plan.work]
        assert len(planned) == len(set(planned)), "one twice"
        beyond = [last - first for r in requests for first, last in r.wholes]
        assert 0 < sum(w.stop - w.start for w in plan.work) <= self.budget + sum(beyond) or not requests
        parted = [w for w in plan.work for first, last in known[w.key].wholes if first < w.stop < last]
        assert not parted, "ends inside tokens that see each other"
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
    state = State([Progress(1, 300, 0, 0), Progress(3, 40, 39, 2, decodes=True)], 100)
    assert schedule(state, 64).work == (Work(3, 39, 40, 0), Work(1, 0, 63, 2))


def test_short_prompts_go_first_and_a_long_one_gets_a_quarter_whether_it_has_begun_or_not() -> None:
    short, decoding = Progress(2, 5, 0, 0), Progress(3, 40, 39, 2, decodes=True)
    for long in (Progress(1, 300, 0, 0), Progress(1, 300, 0, 1)):
        plan = schedule(State([long, short, decoding], 100), 64)
        assert {(w.key, w.start, w.stop) for w in plan.work} == {(3, 39, 40), (2, 0, 5), (1, 0, 15)}


def test_tokens_that_see_each_other_are_computed_in_one_step() -> None:
    def works(budget: int, **more: object) -> list[Work]:
        request = Progress(1, 600, 0, 0, wholes=((100, 356), (400, 500)))._replace(**more)  # type: ignore[arg-type]
        return list(schedule(State([request], 100), budget).work)

    assert works(512) == [Work(1, 0, 512, 16)]
    assert works(450) == [Work(1, 0, 400, 13)]  # before the second
    assert works(64, computed=100, pages=4) == [Work(1, 100, 356, 8)]  # it is next: all of it, whatever the budget
    assert works(64, computed=128, pages=4) == [Work(1, 128, 356, 8)]  # its first tokens are from the cache
    state = State([Progress(1, 600, 128, 4, wholes=((100, 356),)), running(0, 40, 2)], 3)
    assert [work.key for work in schedule(state, 512).work] == [0]  # five pages are missing, so none of it is computed


def test_a_long_prompt_of_a_higher_priority_goes_before_short_ones() -> None:
    long, short = Progress(1, 3000, 0, 0, priority=1), Progress(2, 60, 0, 0)
    assert [(w.key, w.stop) for w in schedule(State([long, short], 200), 64).work] == [(1, 64)]


PRICES = Cost(step=0.010, row=0.002, token=0.001, attended=2e-7, scored=0.0005)


def seconds_of_prompts(plan: Plan, state: State) -> float:
    known = {r.key: r for r in state.requests}
    prompts = [w for w in plan.work if not known[w.key].decodes]
    return sum(state.cost.prompt(w.start, w.stop, known[w.key].scored) for w in prompts)


@pytest.mark.parametrize("computed", [0, 2000, 8000])
@pytest.mark.parametrize("scored", [False, True])
def test_prompts_take_no_more_time_than_those_that_decode_beside_them(computed: int, scored: bool) -> None:
    long = Progress(1, computed + 4000, computed, pages_for(computed), scored=scored)
    decoding = [Progress(10 + i, 40, 39, 2, decodes=True) for i in range(3)]
    state = State([long, *decoding], 1000, cost=PRICES)
    plan = schedule(state, 512)
    limit, least = PRICES.step + 3 * PRICES.row, PRICES.prompt(computed, computed + LEAST_TOKENS, scored)
    assert 0.8 * limit < seconds_of_prompts(plan, state) <= max(limit, least)
    with_short = state._replace(requests=[*state.requests, Progress(2, 7, 0, 0)])
    plan = schedule(with_short, 512)
    (work,) = (w for w in plan.work if w.key == 1)
    assert 2 in {w.key for w in plan.work}
    assert PRICES.prompt(work.start, work.stop, scored) <= max(limit * LONG_SHARE, least)


def test_a_prompt_alone_gets_the_whole_budget_unless_its_time_is_limited() -> None:
    state = State([Progress(1, 9000, 4000, 125)], 1000, cost=PRICES)
    assert schedule(state, 512).work[0].stop == 4512
    limited = state._replace(seconds=0.08)
    assert 0.06 < seconds_of_prompts(schedule(limited, 512), limited) <= 0.08


def test_a_long_prompt_waits_for_no_pages_that_later_short_ones_take() -> None:
    """While it is a long prompt's turn, requests that came after it leave it the pages it needs to start."""
    long, short = Progress(1, 600, 0, 0), [Progress(2 + i, 60, 0, 0) for i in range(4)]
    running_one = running(0, 40, 2)
    state = State([running_one, long, *short], 21)  # the long one needs 19
    assert {w.key for w in schedule(state, 512).work} == {0, 1, 2}
    assert {w.key for w in schedule(state._replace(free_pages=18), 512).work} == {0}


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


class Crowd:
    """Prompts that arrive for ever, with pages for all: how many steps each needs, beside what the rule promises."""

    def __init__(self, seed: int, *, tenants: str, priorities: tuple[int, ...]) -> None:
        self.rng = random.Random(seed)
        self.budget = self.rng.choice([128, 512])
        self.cost, self.seconds = random_cost(self.rng), self.rng.choice([0.0, 0.01, float("inf")])
        self.rate = self.rng.uniform(0.05, 0.6)
        self.longest = self.rng.choice([60, 600, 3000])
        self.tenants, self.priorities = tenants, priorities
        self.served: dict[str, int] = {}
        self.jobs: dict[int, Job] = {}
        self.age: dict[int, int] = {}
        self.limit: dict[int, int] = {}  # steps within which a prompt must be computed, once that is known
        self.keys = 0

    def lacking(self, jobs: list[Job], most: int = 1 << 30) -> int:
        """Steps for what prompts lack, each counted up to `most` tokens, if every step computes the least."""
        return sum(-(-min(job.tokens - job.computed, most) // LEAST_TOKENS) for job in jobs)

    def arrive(self) -> None:
        tokens = self.rng.randint(1, self.rng.choice([40, self.longest]))
        tenant, priority = self.rng.choice(self.tenants), self.rng.choice(self.priorities)
        job = Job(self.keys, tokens, tokens + self.rng.randint(1, 30), priority, tenant, None)
        self.jobs[job.key], self.age[job.key] = job, 0
        ahead = self.lacking(self.prompts(), SHORT_TOKENS)
        if len(self.tenants) == len(self.priorities) == 1 and tokens <= SHORT_TOKENS and ahead < AGING:
            self.limit[job.key] = ahead
        self.keys += 1

    def prompts(self) -> list[Job]:
        return [job for job in self.jobs.values() if not job.decodes]

    def step(self) -> None:
        if self.rng.random() < self.rate and len(self.prompts()) < 30:
            self.arrive()
        requests = [
            Progress(
                job.key, job.tokens, job.computed, len(job.pages), decodes=job.decodes,
                priority=job.priority, waited=job.waited, tenant=job.tenant,
            )
            for job in self.jobs.values()
        ]  # fmt: skip
        state = State(requests, 10**6, 10**6, self.served, self.cost, self.seconds)
        work = {w.key: w for w in schedule(state, self.budget).work}
        for job in list(self.jobs.values()):
            patience = AGING * (1 + max(self.priorities) - job.priority)
            if not job.decodes:
                self.age[job.key] += 1
                if job.waited == patience and job.key not in self.limit:
                    self.limit[job.key] = self.age[job.key] + self.lacking(self.prompts())
                assert self.age[job.key] <= self.limit.get(job.key, 1 << 30), f"prompt {job.key} of {job.tokens} waits"
            if job.key not in work:
                assert not job.decodes, "one that decodes lacks its token"
                job.waited += 1
                continue
            item = work[job.key]
            job.pages = [0] * pages_for(item.stop)
            job.computed = item.stop
            self.served[job.tenant] = self.served.get(job.tenant, 0) + item.stop - item.start
            if item.stop >= job.tokens:
                job.tokens += 1
            if job.tokens >= job.final:
                del self.jobs[job.key]


@pytest.mark.soak
@pytest.mark.parametrize("block", range(times(10, 2)))
def test_a_prompt_is_computed_within_the_steps_that_the_rule_promises(block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        alike = Crowd(seed, tenants="a", priorities=(0,))
        mixed = Crowd(seed, tenants="abc", priorities=(0, 0, 1, 2))
        for crowd in (alike, mixed):
            for _ in range(1500):
                crowd.step()
            assert crowd.keys > 20, "the crowd is too small"
