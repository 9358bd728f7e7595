"""A migration gives every document the new model's vector of its current text, whatever happens while it runs."""

import threading
from itertools import count

import pytest
from fake_embedder import FakeEmbedder, vector_of

from weft.embed.migrate import Corpus, Migrator, Progress
from weft.embed.stores import Phase, Reason, State, open_store
from weft.errors import (
    BackendError,
    BusyError,
    FingerprintError,
    InputError,
    InvalidTransitionError,
    LeaseError,
    StoreError,
    TooLongError,
)

OLD, NEW = FakeEmbedder("old"), FakeEmbedder("new", 12)
DOCUMENTS = {f"d{i:03}": f"text {i}" for i in range(250)}


@pytest.fixture
def store(opened):
    made = opened()
    made.adopt(OLD.fingerprint, OLD.dimension, "old")
    Corpus(made, OLD).put(DOCUMENTS)
    return made


def check(store, *embedders, missing=()):
    """The store has exactly these models' vectors, each of the current text of every document."""
    assert set(store.generations()) == {embedder.fingerprint for embedder in embedders}
    for embedder in embedders:
        rows = {name: (revision, vector) for name, revision, vector in store.vectors(embedder.fingerprint)}
        assert len(rows) == store.count() - len(missing)
        for name, (revision, vector) in rows.items():
            document = store.get(name)
            assert document.revision == revision
            assert vector.tobytes() == vector_of(embedder.model, document.text, embedder.dimension).tobytes()
        assert not rows.keys() & set(missing)


def test_a_migration_embeds_everything_once_and_cuts_over(store):
    new, seen = FakeEmbedder("new", 12), []
    done = Migrator(store, new).run(seen.append)
    assert (done.state, done.processed, done.total, done.skipped) == (State.COMPLETED, 250, 250, 0)
    assert new.embedded == list(DOCUMENTS.values())
    assert seen == [Progress(0, 0, 250), Progress(100, 0, 150), Progress(200, 0, 50), Progress(250, 0, 0)]
    check(store, OLD, NEW)
    assert store.route().phase is Phase.ROLLBACK_WINDOW
    assert Corpus(store, OLD, NEW).search("text 9", 1).hits[0].id == "d009"
    store.migrations.finish(now=True)
    check(store, NEW)


def test_documents_without_vectors_get_their_first_by_a_migration(opened):
    store = opened()
    store.put(DOCUMENTS, {})
    done = Migrator(store, NEW).run()
    assert (done.state, done.source, done.settled) == (State.COMPLETED, None, "kept")
    assert store.route().phase is Phase.STABLE
    check(store, NEW)


def test_an_empty_store_is_migrated_at_once(opened):
    store = opened()
    store.adopt(OLD.fingerprint, OLD.dimension)
    assert Migrator(store, NEW).run().total == 0
    assert store.route().query == NEW.fingerprint


def test_batches_are_of_the_size_that_was_asked_for(store):
    sizes = []
    Migrator(store, FakeEmbedder("new", 12, before=lambda texts: sizes.append(len(texts))), batch=64).run()
    assert sizes == [64, 64, 64, 58]


def test_an_embedder_that_takes_several_calls_gets_them(store):
    together = threading.Barrier(4, timeout=30)
    parts = []

    def before(texts):
        parts.append(len(texts))
        if len(texts) == 25:  # of a whole batch: all four calls are under way at once
            together.wait()

    new = FakeEmbedder("new", 12, before=before, concurrent=True)
    Migrator(store, new, concurrency=4).run()
    assert sorted(parts) == [11, 13, 13, 13, *[25] * 8]
    check(store, OLD, NEW)


def test_a_pause_from_another_connection_ends_the_run_and_resuming_goes_on(store, opened):
    other, calls = opened(), count(1)

    def before(texts):
        if next(calls) == 2:
            other.migrations.pause()

    new = FakeEmbedder("new", 12, before=before)
    paused = Migrator(store, new).run()
    assert (paused.state, paused.processed, paused.remaining) == (State.PAUSED, 100, 150)
    assert store.route().phase is Phase.MIGRATING
    done = Migrator(store, new).run()
    assert done.processed == 250 and len(new.embedded) == 350  # the batch under way was done twice, and no other
    check(store, OLD, NEW)


def test_a_cancel_from_another_connection_ends_the_run(store, opened):
    other = opened()
    done = Migrator(store, FakeEmbedder("new", 12, before=lambda texts: other.migrations.cancel())).run()
    assert done.state is State.CANCELLED
    check(store, OLD)


@pytest.mark.parametrize("left", [250, 150, 0])
@pytest.mark.parametrize("move, state", [("pause", State.PAUSED), ("cancel", State.CANCELLED)])
def test_a_migration_may_be_stopped_between_any_two_batches(store, opened, move, state, left):
    other = opened()

    def stop(seen):
        if seen.remaining == left:
            getattr(other.migrations, move)()

    assert Migrator(store, NEW).run(stop).state is state
    assert store.route().query == OLD.fingerprint


def test_a_migration_that_is_paused_before_its_cut_over_does_not_cut_over(store, opened, monkeypatch):
    other, real = opened(), store.migrations.complete

    def complete(owner, **options):
        other.migrations.pause()
        return real(owner, **options)

    monkeypatch.setattr(store.migrations, "complete", complete)
    assert Migrator(store, NEW).run().state is State.PAUSED
    assert store.route().query == OLD.fingerprint


def test_ctrl_c_keeps_the_batch_and_pauses(store, monkeypatch):
    from weft.embed.migrate import migrator

    calls, real = count(1), migrator.waited

    def waited(*args):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(migrator, "waited", waited)
    new = FakeEmbedder("new", 12)
    paused = Migrator(store, new).run()
    assert (paused.state, paused.processed) == (State.PAUSED, 200)
    assert Migrator(store, new).run().processed == 250 == len(new.embedded)


def test_a_second_ctrl_c_drops_the_batch_and_pauses(store, monkeypatch):
    from weft.embed.migrate import migrator

    def waited(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(migrator, "waited", waited)
    paused = Migrator(store, NEW).run()
    assert (paused.state, paused.processed, paused.lease_owner) == (State.PAUSED, 0, None)


def test_a_failure_is_kept_raised_and_resumed_from(store):
    calls = count(1)

    def before(texts):
        if next(calls) == 2:
            raise ConnectionError("the network is gone")

    new = FakeEmbedder("new", 12, before=before)
    with pytest.raises(ConnectionError):
        Migrator(store, new).run()
    failed = store.migrations.open()
    assert (failed.state, failed.error, failed.processed) == (State.FAILED, "ConnectionError: the network is gone", 100)
    assert Migrator(store, new).run().processed == 250 == len(new.embedded)
    check(store, OLD, NEW)


@pytest.mark.parametrize("kind", [InputError, ConnectionError])
def test_whatever_an_error_says_can_be_kept(store, kind):
    def before(texts):
        if "text 7" in texts:
            what = "a \0 and\n\ud800, " + "long " * 1000
            raise kind("embed", what) if kind is InputError else kind(what)

    migrator = Migrator(store, FakeEmbedder("new", 12, before=before))
    if kind is InputError:
        migrator.run()
        kept = store.migrations.skipped()[0][2]
    else:
        with pytest.raises(kind):
            migrator.run()
        kept = store.migrations.open().error
    assert "a and ?, long" in kept and len(kept) <= 2000


class PermanentError(Exception):
    permanent = True


@pytest.mark.parametrize(
    "error, reason",
    [
        (TooLongError("embed", "900 tokens"), Reason.CONTENT_TOO_LARGE),
        (UnicodeError("bytes"), Reason.INVALID_ENCODING),
        (InputError("api", "refused"), Reason.PERMANENT_API_ERROR),
        (PermanentError("400 refused"), Reason.PERMANENT_API_ERROR),
    ],
)
def test_documents_that_cannot_be_embedded_are_skipped_with_a_reason(store, error, reason):
    def before(texts):
        if {"text 7", "text 211"} & set(texts):
            raise error

    done = Migrator(store, FakeEmbedder("new", 12, before=before)).run()
    assert (done.state, done.processed, done.skips, done.total) == (State.COMPLETED, 248, {reason.value: 2}, 250)
    assert store.migrations.skipped() == [(name, reason.value, str(error)) for name in ("d007", "d211")]
    assert {name for name, _, _ in store.vectors(NEW.fingerprint)} == DOCUMENTS.keys() - {"d007", "d211"}


def test_a_model_that_refuses_everything_is_not_served(store):
    def before(texts):
        raise InputError("embed", "no such prompt")

    with pytest.raises(InputError, match=r"refused all 100 documents of a batch; the first error: .* no such prompt"):
        Migrator(store, FakeEmbedder("new", 12, before=before)).run()
    assert store.migrations.open().state is State.FAILED
    assert store.migrations.skipped() == []


def test_an_error_after_a_pause_is_raised_as_it_is(store, opened):
    other = opened()

    def before(texts):
        other.migrations.pause()
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        Migrator(store, FakeEmbedder("new", 12, before=before)).run()
    assert store.migrations.open().state is State.PAUSED


def test_a_skipped_document_that_changes_is_embedded_after_all(store):
    def before(texts):
        if "text 7" in texts:
            raise TooLongError("embed", "too long")
        if "text 249" in texts:  # the last batch: by now d007 is skipped
            Corpus(store, OLD).put({"d007": "short"})

    done = Migrator(store, FakeEmbedder("new", 12, before=before)).run()
    assert (done.skipped, done.processed) == (0, 250)
    check(store, OLD, NEW)


def test_bytes_that_are_not_utf_8_are_skipped(tmp_path):
    """PostgreSQL cannot hold such a text; a SQLite file that another program wrote can."""
    with open_store(tmp_path / "store.db", create=True) as store:
        store.put({"a": "fine", "b": "bad"}, {})
        with store.transaction("alone") as session:
            session.run("UPDATE documents SET text = CAST(x'ff20' AS TEXT) WHERE id = 'b'")
        done = Migrator(store, NEW, allow_skips=1).run()
        assert (done.processed, done.skips) == (1, {"InvalidEncoding": 1})


@pytest.mark.parametrize("vectors", ["shape", "nan"])
def test_an_embedder_that_gives_nonsense_fails_the_migration(store, vectors):
    class Broken(FakeEmbedder):
        def encode_document(self, texts):
            made = super().encode_document(texts)
            return made[1:] if vectors == "shape" else made * float("nan")

    said = "for 100 documents from 'd000' on" if vectors == "shape" else "refused all .* contains NaN or infinity"
    with pytest.raises(BackendError if vectors == "shape" else InputError, match=said):
        Migrator(store, Broken("new", 12)).run()
    assert store.migrations.open().state is State.FAILED
    assert store.route().query == OLD.fingerprint


@pytest.mark.parametrize("embedders", [(OLD,), (OLD, NEW)], ids=["old alone", "both"])
def test_what_is_written_meanwhile_is_migrated_too(store, opened, embedders):
    """Changed, added and deleted between reading a batch and committing it: before, inside and after that batch."""
    writer, calls = Corpus(opened(), *embedders), count()

    def before(texts):
        at = next(calls)
        if at == 1:
            writer.put({"d000": "changed behind", "d150": "changed inside", "d249": "changed ahead"})
            writer.put({"a": "new behind", "d150x": "new inside", "z": "new ahead"})
            assert writer.delete(["d001", "d151", "d248"]) == 3
            writer.put({"d152": "twice"})
            writer.put({"d152": "changed"})
            writer.delete(["d153"])
            writer.put({"d153": "back again"})

    done = Migrator(store, FakeEmbedder("new", 12, before=before)).run()
    assert done.state is State.COMPLETED
    check(store, OLD, NEW)
    assert store.count() == 250
    deleted = {"ContentDeleted": 2} if done.skips else {}
    assert done.skips == deleted  # those that were waiting when they went: d151 and d248


def test_a_writer_with_the_old_model_alone_cannot_go_on_after_the_cut_over(store):
    Migrator(store, NEW).run()
    with pytest.raises(FingerprintError, match="fake:new, which is served"):
        Corpus(store, OLD).put({"x": "y"})
    assert store.get("x") is None


def test_a_rollback_has_what_was_written_in_the_window(store):
    Migrator(store, NEW).run()
    Corpus(store, OLD, NEW).put({"d000": "by both"})
    Corpus(store, NEW).put({"d001": "by the new one", "x": "another"})
    Corpus(store, NEW).delete(["d002"])
    with pytest.raises(InvalidTransitionError, match="2 documents that changed"):
        store.migrations.rollback()
    old = FakeEmbedder("old")
    done = Migrator(store, old).rollback()
    assert done.settled == "rolled back" and sorted(old.embedded) == ["another", "by the new one"]
    check(store, OLD)


def test_an_open_migration_is_resumed_with_its_own_model(store):
    Migrator(store, NEW).plan()
    with pytest.raises(FingerprintError, match="the open migration is to fake:new"):
        Migrator(store, FakeEmbedder("third")).run()
    with pytest.raises(FingerprintError, match="two models have the same fingerprint"):
        Migrator(store, FakeEmbedder("new", 13)).run()
    assert Migrator(store, NEW).run().state is State.COMPLETED
    for model in (NEW, FakeEmbedder("third")):
        with pytest.raises(
            InvalidTransitionError, match=r"is completed, but not finished; finish it or roll it back first"
        ):
            Migrator(store, model).run()


def test_two_migrators_do_not_run_one_migration(store, opened):
    other = Migrator(opened(), NEW)
    with pytest.raises(LeaseError, match="is running this migration"):
        Migrator(store, FakeEmbedder("new", 12, before=lambda texts: other.run())).run()
    # the error above went through the first migrator's embedder: a busy one is not a failed migration
    assert store.migrations.open().state is State.RUNNING
    assert other.run(take_over=True).state is State.COMPLETED


def test_a_migrator_that_was_taken_over_commits_nothing_more(store, opened):
    other, calls, seen = opened(), count(1), []

    def before(texts):
        if next(calls) == 2:
            seen.append(Migrator(other, NEW).run(take_over=True))

    assert Migrator(store, FakeEmbedder("new", 12, before=before)).run() == seen[0]
    assert seen[0].state is State.COMPLETED and seen[0].processed == 250
    check(store, OLD, NEW)


def test_a_migrator_that_lost_its_lease_says_so(store, opened):
    other = opened()
    new = FakeEmbedder("new", 12, before=lambda texts: other.migrations.resume("you", take_over=True))
    with pytest.raises(LeaseError, match="you took this migration over"):
        Migrator(store, new).run()
    assert store.migrations.open().processed == 0


def test_the_lease_is_renewed_while_a_batch_takes_long(store, opened):
    other, seen = opened(), []

    def before(texts):
        first = other.migrations.open().lease_until
        while other.migrations.open().lease_until == first:
            pass
        seen.append(first)

    Migrator(store, FakeEmbedder("new", 12, before=before), batch=250, lease_s=0.3).run()
    assert len(seen) == 1


@pytest.mark.parametrize("options", [{"batch": 0}, {"concurrency": 0}, {"lease_s": 0}])
def test_impossible_settings_are_refused(store, options):
    with pytest.raises(InputError):
        Migrator(store, NEW, **options)


def test_an_embedder_without_a_fingerprint_is_refused(store):
    new = FakeEmbedder("new")
    new.info = {"model": "new"}
    with pytest.raises(FingerprintError, match="has no info"):
        Migrator(store, new)


def test_a_full_disk_stops_a_migration_and_room_lets_it_go_on(tmp_path):
    wide = FakeEmbedder("wide", 512)
    with open_store(tmp_path / "store.db", create=True) as store:
        store.put(DOCUMENTS, {})
        with store.transaction("read") as session:
            (pages,) = session.row("PRAGMA page_count")
        store.dialect.connection.execute(f"PRAGMA max_page_count = {pages + 60}")
        with pytest.raises(StoreError, match="full"):
            Migrator(store, wide).run()
        assert store.migrations.open().state is State.RUNNING
        store.dialect.connection.execute("PRAGMA max_page_count = 1000000")
        assert Migrator(store, wide).run(take_over=True).processed == 250
        check(store, wide)


def lose(store, other):
    """End a store's connection at the server."""
    with other.transaction("read") as session:
        session.run("SELECT pg_terminate_backend(?)", store.dialect.connection.info.backend_pid)


def test_a_connection_that_is_lost_between_batches_is_made_again(postgres):
    store, other = (open_store(postgres, schema="lost", create=True) for _ in range(2))
    with store, other:
        store.put(DOCUMENTS, {})
        done = Migrator(store, FakeEmbedder("new", 12, before=lambda texts: lose(store, other))).run()
        assert (done.state, done.processed) == (State.COMPLETED, 250)
        check(store, NEW)


def test_a_transaction_whose_connection_is_lost_is_not_kept_and_the_next_one_is(postgres):
    store, other = (open_store(postgres, schema="lost2", create=True) for _ in range(2))

    def write():
        with store.transaction("shared") as session:
            session.run("INSERT INTO documents VALUES ('a', 'lost', 1, 0)")
            lose(store, other)
            session.run("INSERT INTO documents VALUES ('b', 'lost', 1, 0)")

    with store, other:
        with pytest.raises(StoreError, match="PostgreSQL failed"):
            write()
        assert store.count() == 0
        store.put({"c": "kept"}, {})
        assert other.count() == 1
    with pytest.raises(StoreError, match="is closed"):
        store.count()


def test_a_store_that_is_busy_is_not_a_failed_migration(store, monkeypatch):
    from weft.embed.stores.work import Work

    def busy(*_):
        raise BusyError("store", "held")

    monkeypatch.setattr(Work, "commit", busy)
    with pytest.raises(BusyError):
        Migrator(store, NEW).run()
    assert store.migrations.open().state is State.RUNNING
