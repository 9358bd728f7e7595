"""Documents that a model cannot embed: how many may be missing, what is said, and how they get vectors after all."""

import numpy as np
import pytest
from fake_embedder import FakeEmbedder, vector_of

from weft.embed.migrate import Corpus, Migrator, Progress
from weft.embed.stores import Reason, State
from weft.errors import FingerprintError, InputError, TooLongError

OLD = FakeEmbedder("old")
DOCUMENTS = {f"d{i}": f"text {i}" if i % 3 else f"a long text {i}" for i in range(9)}
LONG = ["d0", "d3", "d6"]


def refuse_long(texts):
    for at, text in enumerate(texts):
        if "long" in text:
            raise TooLongError("embed", "has 900 tokens", length=900, limit=512, field="text", index=at)


def new(truncate="error"):
    """A model whose fingerprint does not say what it does with long texts."""
    return FakeEmbedder("new", 12, **({"before": refuse_long} if truncate == "error" else {}))


@pytest.fixture
def store(opened):
    made = opened()
    made.adopt(OLD.fingerprint, OLD.dimension, "old")
    Corpus(made, OLD).put(DOCUMENTS)
    return made


def check(store, *missing):
    """Every document has the new model's vector of its text, but for `missing`."""
    rows = {name: vector for name, _, vector in store.vectors("fake:new")}
    assert rows.keys() == DOCUMENTS.keys() - set(missing)
    for name, vector in rows.items():
        assert vector.tobytes() == vector_of("new", DOCUMENTS[name], 12).tobytes()


@pytest.mark.parametrize("batch", [1, 4, 100])
@pytest.mark.parametrize(
    "error", [TooLongError("embed", "long"), UnicodeError("bytes"), InputError("embed", "refused")], ids=repr
)
def test_too_many_that_are_missing_are_not_served(store, batch, error):
    def before(texts):
        if any("long" in text for text in texts):
            raise error

    embedder = FakeEmbedder("new", 12, before=before)
    with pytest.raises(
        InputError, match=r"3 of 9 documents .* at most 0 may be skipped; the old vectors are still served"
    ):
        Migrator(store, embedder, batch=batch).run()
    found = store.migrations.open()
    assert (found.state, found.processed, found.missing) == (State.FAILED, 6, 3)
    assert store.route().query == OLD.fingerprint
    with pytest.raises(InputError, match="at most 2 may be skipped"):
        Migrator(store, embedder, batch=batch, allow_skips=2).run()
    done = Migrator(store, embedder, batch=batch, allow_skips=3).run()
    assert (done.state, done.processed, done.skipped) == (State.COMPLETED, 6, 3)
    check(store, *LONG)


def test_a_model_that_takes_nothing_is_not_served(store):
    def before(texts):
        raise InputError("embed", "no such prompt")

    with pytest.raises(InputError, match="9 of 9 documents "):
        Migrator(store, FakeEmbedder("new", 12, before=before), batch=1).run()
    assert store.route().query == OLD.fingerprint


def test_one_in_a_hundred_may_be_missing(opened):
    store = opened()
    store.put({f"d{i:03}": "long" if i < 2 else f"text {i}" for i in range(200)}, {})
    assert Migrator(store, new()).run().skips == {"ContentTooLarge": 2}


def test_what_was_left_out_by_hand_or_deleted_is_not_missing(store):
    Migrator(store, new()).plan()
    store.migrations.start("me")
    store.migrations.skip("d0")
    store.migrations.skip(["d3"])
    store.delete("d6")
    done = Migrator(store, new()).run(take_over=True)
    assert (done.state, done.skips) == (State.COMPLETED, {"ContentDeleted": 1, "ManualSkip": 2})


def test_what_is_deleted_after_it_was_skipped_is_not_missing(store):
    with pytest.raises(InputError):
        Migrator(store, new()).run()
    store.delete(LONG)
    done = Migrator(store, new()).run()
    assert (done.state, done.skips) == (State.COMPLETED, {"ContentDeleted": 3})
    Corpus(store, OLD, new()).put({"d0": "short"})
    assert store.migrations.open().skips == {"ContentDeleted": 2}


def test_a_migration_goes_on_once_its_skips_are_embedded(store):
    with pytest.raises(InputError):
        Migrator(store, new()).run()
    assert [row[0] for row in store.migrations.skipped()] == LONG
    assert Migrator(store, new("head"), batch=2).retry() == Progress(3, 0, 0)
    done = Migrator(store, new()).run()
    assert (done.state, done.processed, done.total, done.skips) == (State.COMPLETED, 9, 9, {})
    check(store)


@pytest.mark.parametrize("settled", [False, True])
def test_skips_of_what_is_served_are_embedded_after_all(store, settled):
    Migrator(store, new(), allow_skips=3).run()
    if settled:
        store.migrations.finish(now=True)
    assert store.migrations.skipped() == [
        (name, Reason.CONTENT_TOO_LARGE.value, "[embed] text 0 has 900 tokens") for name in LONG
    ]
    assert Migrator(store, new()).retry() == Progress(0, 3, 0)  # and stay skipped, by the same model
    assert Migrator(store, new("head")).retry(ids="d3") == Progress(1, 0, 0)
    check(store, "d0", "d6")
    assert Migrator(store, new("head")).retry() == Progress(2, 0, 0)
    check(store)
    assert store.migrations.skipped() == []
    last = store.migrations.history()[-1]
    assert (last.processed, last.total, last.skips) == (9, 9, {})
    assert Corpus(store, OLD, new("head")).search("a long text 3", 1).hits[0].id == "d3"


def test_a_retry_leaves_alone_what_changed_meanwhile(store, opened):
    Migrator(store, new(), allow_skips=3).run()
    other = Corpus(opened(), OLD, new())

    def before(texts):
        other.put({"d0": "short"})
        other.delete("d3")

    migrator = Migrator(store, FakeEmbedder("new", 12, before=before))
    assert migrator.retry().processed == 1
    vectors = {name: vector for name, _, vector in store.vectors("fake:new")}
    assert vectors.keys() == DOCUMENTS.keys() - {"d3"}
    assert vectors["d0"].tobytes() == vector_of("new", "short", 12).tobytes()


def test_only_what_is_skipped_is_retried(store):
    Migrator(store, new(), allow_skips=3).run()
    with pytest.raises(InputError, match="cannot retry document 'd1': it is not skipped"):
        Migrator(store, new("head")).retry(ids=["d0", "d1"])
    with pytest.raises(FingerprintError, match="no vectors of fake:third"):
        Migrator(store, FakeEmbedder("third")).retry()


def test_what_was_left_out_by_hand_is_retried_by_name_alone(store):
    Migrator(store, new("head")).plan()
    store.migrations.start("me")
    store.migrations.skip("d0")
    Migrator(store, new("head")).run(take_over=True)
    assert Migrator(store, new("head")).retry() == Progress(0, 0, 0)
    assert Migrator(store, new("head")).retry(ids=["d0"]) == Progress(1, 0, 0)
    check(store)


def test_a_name_that_changes_is_kept(store):
    Migrator(store, new(), allow_skips=3).run()
    store.migrations.rename("fake:new", "new --truncate head")
    assert store.generations()["fake:new"].model == store.migrations.open().model == "new --truncate head"
    with pytest.raises(FingerprintError):
        store.migrations.rename("fake:third", "x")


def test_a_write_does_not_fail_for_the_model_that_is_not_asked(store):
    """Before the cut-over the new model cannot take a text, and after it the old one: both times it waits or is
    skipped with a reason, and the model that is asked has it."""
    Migrator(store, new()).plan()
    store.migrations.start("me")
    Corpus(store, OLD, new()).put({"e": "another long text", "f": "short"})
    assert store.get("e") and store.get("f")
    assert Corpus(store, OLD, new()).search("another long text", 1).hits[0].id == "e"
    done = Migrator(store, new(), allow_skips=4).run(take_over=True)
    assert done.skips == {"ContentTooLarge": 4}
    assert [row[0] for row in store.migrations.skipped()] == [*LONG, "e"]

    picky = FakeEmbedder("old", before=refuse_long)
    after = Corpus(store, picky, new("head"))
    after.put({"g": "a third long text"})
    assert after.search("a third long text", 1).hits[0].id == "g"
    assert Migrator(store, picky, allow_skips=1).rollback().settled == "rolled back"
    assert [row[0] for row in store.migrations.skipped()] == ["g"]


@pytest.mark.parametrize("way_out", ["retry", "allowed", "deleted"])
def test_a_rollback_does_not_serve_what_too_many_documents_lack(store, way_out):
    """Documents that the old model cannot take came after the cut-over."""
    Migrator(store, new("head")).run()
    picky = FakeEmbedder("old", before=refuse_long)
    Corpus(store, picky, new("head")).put({f"late {i}": f"a long text {i}" for i in range(20)})
    with pytest.raises(InputError, match="20 of 29 documents exceed the model's token limit"):
        Migrator(store, picky).rollback()
    assert store.route().query == "fake:new" and store.migrations.lease_left() == 0
    assert store.migrations.skips("fake:old") == {"ContentTooLarge": 20}
    assert len(Corpus(store, new("head")).search("a long text", 100).hits) == 29
    with pytest.raises(InputError, match="at most 19 may be skipped; the new vectors are still served"):
        store.migrations.rollback(allow_skips=19)
    if way_out == "retry":
        assert Migrator(store, OLD).retry() == Progress(20, 0, 0)
    elif way_out == "deleted":
        store.delete([f"late {i}" for i in range(20)])
    allowed = 20 if way_out == "allowed" else None
    assert Migrator(store, picky, allow_skips=allowed).rollback().settled == "rolled back"
    left = 29 if way_out == "retry" else 9
    assert len(Corpus(store, OLD).search("a long text", 100).hits) == left


def test_a_write_fails_for_the_model_that_is_asked_and_names_the_document(store):
    store.migrations.plan("fake:new", 12)
    store.migrations.start("me")
    with pytest.raises(TooLongError, match=r"document 1 \('e'\) has 900 tokens") as caught:
        Corpus(store, FakeEmbedder("old", before=refuse_long), new("head")).put({"f": "short", "e": "long"})
    assert caught.value.index == 1 and store.get("f") is None


@pytest.mark.parametrize("number, said", [(0, "has norm 0"), (np.nan, "NaN or infinity"), (np.inf, "NaN or infinity")])
def test_a_text_that_a_model_makes_nothing_of_is_skipped(store, number, said):
    class Knows(FakeEmbedder):
        def encode_document(self, texts):
            known = np.array([[number if "4" in text else 1] for text in texts], np.float32)
            return super().encode_document(texts) * known

    done = Migrator(store, Knows("new", 12), allow_skips=1).run()
    ((name, reason, detail),) = store.migrations.skipped()
    assert (done.processed, name, reason) == (8, "d4", "PermanentApiError") and said in detail
