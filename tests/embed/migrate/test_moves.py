"""A migration moves between its states as the table says, each move is one commit, and one process has the lease."""

import itertools

import pytest
from fake_embedder import FakeEmbedder

from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import Phase, Route, State
from weft.embed.stores.states import MOVES, Open, moved, route
from weft.errors import FingerprintError, InputError, InvalidTransitionError, LeaseError, NotFoundError, StoreError

OLD, NEW = FakeEmbedder("old"), FakeEmbedder("new", 12)
DOCUMENTS = {f"d{i}": f"text {i}" for i in range(5)}


class Clock:
    """Seconds that pass when a test says so."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(opened, clock):
    made = opened(clock=clock)
    made.adopt(OLD.fingerprint, OLD.dimension, "old")
    Corpus(made, OLD).put(DOCUMENTS)
    return made


@pytest.fixture
def ledger(store):
    return store.migrations


def bring(ledger, state):
    """A new migration in `state`."""
    ledger.plan(NEW.fingerprint, NEW.dimension, "new")
    if state is State.CANCELLED:
        return ledger.cancel()
    if state is not State.PLANNED:
        ledger.start("me")
    if state is State.PAUSED:
        ledger.pause()
    if state is State.FAILED:
        ledger.fail("me", "the network is gone")
    if state is State.COMPLETED:
        Migrator(ledger._database, NEW).run(take_over=True)
    return ledger.open()


CALLS = {
    "start": lambda ledger: ledger.start("me"),
    "resume": lambda ledger: ledger.resume("me"),
    "pause": lambda ledger: ledger.pause(),
    "fail": lambda ledger: ledger.fail("me", "why"),
    "skip": lambda ledger: ledger.skip(["d0"]),
    "cancel": lambda ledger: ledger.cancel(),
    "complete": lambda ledger: ledger.complete("me"),
    "rollback": lambda ledger: ledger.rollback(),
    "finish": lambda ledger: ledger.finish(now=True),
}


@pytest.mark.parametrize("action, state", list(itertools.product(MOVES, State)), ids=str)
def test_every_move_from_every_state(ledger, action, state):
    before = bring(ledger, state)
    starts, end = MOVES[action]
    if state in starts:
        CALLS[action](ledger)
        after = ledger.get(before.id)
        waits = action == "complete"  # nothing was embedded yet
        assert after.state is (state if end is None or waits else end)
    else:
        routed = ledger._database.route()
        with pytest.raises(InvalidTransitionError, match=rf"cannot {action}: "):
            CALLS[action](ledger)
        assert ledger.get(before.id) == before and ledger._database.route() == routed


def test_calls_cover_the_moves():
    assert CALLS.keys() == MOVES.keys()


@pytest.mark.parametrize("action", [name for name in CALLS])
def test_no_move_without_a_migration(ledger, action):
    with pytest.raises(InvalidTransitionError, match="no migration is open"):
        CALLS[action](ledger)


@pytest.mark.parametrize("state", [s for s in State if s is not State.CANCELLED])
def test_one_migration_is_open_at_a_time(ledger, state):
    bring(ledger, state)
    with pytest.raises(InvalidTransitionError, match="is already"):
        ledger.plan("third", 4)


def test_what_is_served_is_not_migrated_to(ledger):
    with pytest.raises(InputError, match="is already served"):
        ledger.plan(OLD.fingerprint, OLD.dimension)
    with pytest.raises(InputError, match="window_s must be 0 to"):
        ledger.plan("x", 4, window_s=-1)
    with pytest.raises(NotFoundError, match="no migration 7"):
        ledger.get(7)


def test_the_messages_name_the_way_out():
    with pytest.raises(InvalidTransitionError, match=r"cannot pause: .* is completed, and must be running"):
        moved("pause", State.COMPLETED)


OPEN = {state: Open(state, "old", "new") for state in State}


@pytest.mark.parametrize(
    "served, migration, wanted",
    [
        (None, None, Route(Phase.STABLE, None, ())),
        ("old", None, Route(Phase.STABLE, "old", ("old",))),
        ("old", OPEN[State.PLANNED], Route(Phase.STABLE, "old", ("old",))),
        ("old", OPEN[State.RUNNING], Route(Phase.MIGRATING, "old", ("old", "new"))),
        ("old", OPEN[State.PAUSED], Route(Phase.MIGRATING, "old", ("old", "new"))),
        ("old", OPEN[State.FAILED], Route(Phase.MIGRATING, "old", ("old", "new"))),
        ("new", OPEN[State.COMPLETED], Route(Phase.ROLLBACK_WINDOW, "new", ("new", "old"))),
        (None, Open(State.RUNNING, None, "new"), Route(Phase.MIGRATING, None, ("new",))),
    ],
)
def test_a_state_has_one_route(served, migration, wanted):
    assert route(served, migration) == wanted


@pytest.mark.parametrize("served, state", [("new", State.RUNNING), ("old", State.COMPLETED), (None, State.PAUSED)])
def test_a_pointer_that_contradicts_the_state_is_refused(served, state):
    with pytest.raises(StoreError, match="its migration is in a state that serves"):
        route(served, OPEN[state])


def test_the_store_is_routed_by_its_state(ledger):
    seen = []
    for step in (
        lambda: ledger.plan(NEW.fingerprint, NEW.dimension),
        lambda: ledger.start("me"),
        ledger.pause,
        lambda: Migrator(ledger._database, NEW).run(),
        lambda: ledger.finish(now=True),
    ):
        step()
        now = ledger._database.route()
        seen.append((now.phase, now.query))
    old, new = OLD.fingerprint, NEW.fingerprint
    migrating = (Phase.MIGRATING, old)
    assert seen == [(Phase.STABLE, old), migrating, migrating, (Phase.ROLLBACK_WINDOW, new), (Phase.STABLE, new)]


def test_a_second_process_waits_for_the_lease_to_end(ledger, clock):
    bring(ledger, State.RUNNING)
    clock.now += 29
    with pytest.raises(LeaseError, match="me is running this migration; its lease expires in 1 s") as caught:
        ledger.resume("you")
    assert caught.value.until == clock.now + 1
    ledger.renew("me", 30)
    clock.now += 29
    with pytest.raises(LeaseError):
        ledger.resume("you")
    clock.now += 2
    assert ledger.resume("you").lease_owner == "you"


def test_who_lost_the_lease_moves_nothing(ledger):
    bring(ledger, State.RUNNING)
    ledger.resume("you", take_over=True)
    for call in (lambda: ledger.renew("me", 30), lambda: ledger.complete("me"), lambda: ledger.fail("me", "x")):
        with pytest.raises(LeaseError, match="you took this migration over"):
            call()
    ledger.release("me")
    assert ledger.open().lease_owner == "you"


def test_a_paused_migration_has_no_lease(ledger):
    bring(ledger, State.PAUSED)
    assert not ledger.renew("me", 30)
    assert ledger.resume("you").lease_owner == "you"


def test_the_old_vectors_stay_for_the_whole_window(ledger, clock):
    bring(ledger, State.COMPLETED)
    clock.now += 86_399
    with pytest.raises(InvalidTransitionError, match="cannot finish yet: 1 s left in the rollback window"):
        ledger.finish()
    clock.now += 1
    done = ledger.finish()
    assert (done.state, done.settled) == (State.COMPLETED, "kept")
    assert list(ledger._database.generations()) == [NEW.fingerprint]
    assert ledger.open() is None


def test_a_rollback_is_possible_until_the_old_vectors_go(ledger, clock):
    bring(ledger, State.COMPLETED)
    clock.now += 1e6
    assert ledger.rollback().settled == "rolled back"
    assert list(ledger._database.generations()) == [OLD.fingerprint]
    assert ledger._database.route() == Route(Phase.STABLE, OLD.fingerprint, (OLD.fingerprint,))


def test_a_failure_keeps_its_text_until_it_is_resumed(ledger):
    failed = bring(ledger, State.FAILED)
    assert failed.error == "the network is gone"
    assert ledger.resume("me").error is None


def test_times_are_written_down(ledger, clock):
    planned = ledger.plan(NEW.fingerprint, NEW.dimension)
    clock.now += 10
    ledger.start("me")
    ledger.pause()
    clock.now += 10
    done = Migrator(ledger._database, NEW).run()
    assert (planned.planned_at, done.started_at, done.ended_at) == (clock.now - 20, clock.now - 10, clock.now)
    assert done.window_ends_at == clock.now + 86_400
    assert 0 < done.worked_s < 10


def test_the_history_keeps_what_was(ledger):
    for state in (State.CANCELLED, State.RUNNING):
        bring(ledger, state)
    ledger.skip(["d3"])
    ledger.cancel()
    bring(ledger, State.COMPLETED)
    ledger.rollback()
    first, second, third = ledger.history()
    assert [m.id for m in (first, second, third)] == [1, 2, 3]
    assert [m.state for m in (first, second, third)] == [State.CANCELLED, State.CANCELLED, State.COMPLETED]
    assert second.skips == {"ManualSkip": 1}
    assert (third.processed, third.total, third.settled) == (5, 5, "rolled back")


def test_a_cancelled_migration_leaves_nothing_behind(ledger):
    bring(ledger, State.PAUSED)
    ledger.cancel()
    assert list(ledger._database.generations()) == [OLD.fingerprint]
    with ledger._database.transaction("read") as session:
        assert session.rows("SELECT * FROM todo") == session.rows("SELECT * FROM skips") == []
        assert "vectors_2" not in ledger._database.dialect.tables(session)


def test_only_what_waits_can_be_skipped(ledger):
    bring(ledger, State.RUNNING)
    ledger.skip(["d0", "d1"])
    assert ledger.skipped() == [("d0", "ManualSkip", ""), ("d1", "ManualSkip", "")]
    with pytest.raises(InputError, match="cannot skip document 'd0'"):
        ledger.skip(["d2", "d0"])
    with pytest.raises(InputError, match="cannot skip document 'no'"):
        ledger.skip(["no"])
    found = ledger.open()
    assert (found.total, found.skipped, found.remaining) == (5, 2, 3)


def test_a_rollback_needs_the_old_models_embedder(ledger):
    bring(ledger, State.COMPLETED)
    with pytest.raises(FingerprintError, match="a rollback needs the embedder of the old vectors"):
        Migrator(ledger._database, FakeEmbedder("third")).rollback()
    assert ledger.open().lease_owner is None
