"""An embedder meets a store's vectors only where it makes the same ones, and compares them as a store does."""

import json

import numpy as np
import pytest
from fake_embedder import FakeEmbedder, vector_of
from tiny_st import write_st_folder

import weft
from weft.embed.index.canaries import canary_texts
from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import State
from weft.errors import FingerprintError, InputError, StoreError

OLD = FakeEmbedder("old")
DOCUMENTS = {f"d{i}": f"text {i}" for i in range(9)}


class Served(FakeEmbedder):
    """A server's model: its fingerprint stays whatever is behind the name, `weights`, unless the server tells it."""

    cuts = False

    def __init__(self, weights="first", told=None, **options):
        super().__init__("served", 12, **options)
        self.weights = weights
        self.info["server_fingerprint"] = told

    def encode_document(self, texts):
        self.before(texts)
        self.embedded += texts
        return np.stack([vector_of(self.weights, text, 12) for text in texts])


@pytest.fixture
def store(opened):
    made = opened()
    made.adopt(OLD.fingerprint, OLD.dimension, "old")
    Corpus(made, OLD).put(DOCUMENTS)
    return made


@pytest.fixture
def served(store):
    """A store that serves the vectors of a server's model."""
    Migrator(store, Served()).run()
    return store


def test_a_migration_keeps_what_a_server_makes_of_known_texts(served):
    texts, vectors = served.canaries("fake:served")
    assert texts == canary_texts(object()) and len(texts) >= 5
    assert vectors.tobytes() == np.stack([vector_of("first", text, 12) for text in texts]).tobytes()
    assert served.canaries(OLD.fingerprint) is None  # its fingerprint says it all


def test_another_model_behind_the_name_is_neither_asked_nor_written(served):
    corpus = Corpus(served, Served("second"), OLD)
    for work in (lambda: corpus.search("text 5"), lambda: corpus.put({"x": "new"})):
        with pytest.raises(FingerprintError, match=r"\[store\] canary text . .* changed"):
            work()
    assert served.get("x") is None
    assert Corpus(served, Served(), OLD).search("text 5", 1).hits[0].id == "d5"


def test_a_corpus_that_goes_on_compares_once(served):
    embedder = Served()
    corpus = Corpus(served, embedder, OLD)
    for _ in range(3):
        corpus.search("text 5")
        corpus.put({"d5": "text 5"})
    assert embedder.embedded.count(canary_texts(embedder)[0]) == 1


def test_a_migration_is_not_resumed_by_another_model(store):
    def before(texts):
        if "text 4" in texts:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        Migrator(store, Served(before=before), batch=3).run()
    with pytest.raises(FingerprintError, match=r"canary text . .* changed"):
        Migrator(store, Served("second"), batch=3).run()
    assert store.migrations.open().state is State.FAILED
    done = Migrator(store, Served(), batch=3).run()
    assert (done.state, done.processed) == (State.COMPLETED, 9)


def test_a_rollback_and_a_retry_are_not_by_another_model(served):
    served.migrations.finish(now=True)
    Migrator(served, OLD).run()
    Corpus(served, OLD).put({"d5": "changed"})
    with pytest.raises(FingerprintError, match=r"canary text . .* changed"):
        Migrator(served, Served("second")).rollback()
    with pytest.raises(FingerprintError, match=r"canary text . .* changed"):
        Migrator(served, Served("second")).retry()
    assert served.migrations.lease_left() == 0
    assert Migrator(served, Served()).rollback().settled == "rolled back"


def test_an_older_store_learns_what_its_server_makes_when_it_is_written(opened):
    store = opened()
    store.adopt("fake:served", 12)
    Corpus(store, Served()).search("nothing yet")
    assert store.canaries("fake:served") is None  # who asks need not be allowed to write
    Corpus(store, Served()).put({"a": "one"})
    assert store.canaries("fake:served") is not None
    store.keep_canaries("fake:served", ["x"], np.ones((1, 12)))
    assert store.canaries("fake:served")[0] == canary_texts(object())


def test_a_server_that_says_what_it_is_needs_no_comparison(store):
    embedder = Served(told="weft2:0")
    Migrator(store, embedder).run()
    assert store.canaries("fake:served") is None and embedder.embedded == list(DOCUMENTS.values())


@pytest.mark.parametrize(
    "kept", ["{}", "nonsense", '{"texts": ["a"], "vectors": "AAAA"}', '{"texts": 5, "vectors": 5}']
)
def test_damaged_canaries_are_told(served, kept):
    with served.transaction("alone") as session:
        session.run("UPDATE generations SET canaries = ?", kept)
    with pytest.raises(StoreError, match="canaries of a generation are damaged"):
        Corpus(served, Served(), OLD).search("text 5")


class Measured(FakeEmbedder):
    def __init__(self, similarity, length=1.0, **info):
        super().__init__("new", 12)
        self.info |= {"similarity": similarity, **info}
        self.cuts, self.length = False, length

    def encode_document(self, texts):
        made = super().encode_document(texts)
        return made / np.linalg.norm(made, axis=1)[:, None] * self.length


@pytest.mark.parametrize(
    "embedder",
    [Measured("cosine", 3), Measured("dot"), Measured("euclidean"), Measured("dot", normalise=True), Measured(None, 3)],
)
def test_a_measure_that_orders_as_cosine_does_is_taken(store, embedder):
    Migrator(store, embedder).run()
    assert Corpus(store, OLD, embedder).search("text 5", 1).hits[0].id == "d5"


@pytest.mark.parametrize(
    "embedder",
    [Measured("dot", 3), Measured("euclidean", 0.5), Measured("manhattan"), Measured("dot", 2, normalise=False)],
)
def test_a_measure_that_orders_otherwise_is_refused(store, embedder):
    said = f"stores compare by cosine, and this model's similarity is {embedder.info['similarity']}"
    for made in (lambda: Migrator(store, embedder), lambda: Corpus(store, OLD, embedder)):
        with pytest.raises(InputError, match=said):
            made()


def test_a_real_model_that_compares_by_dot_is_refused(tmp_path, store):
    folder = write_st_folder(tmp_path / "model")
    said = json.loads((folder / "config_sentence_transformers.json").read_text())
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**said, "similarity_fn_name": "dot"}))
    Migrator(store, weft.Embedder(str(folder)))  # of unit length
    with pytest.raises(InputError, match="not of unit length"):
        Migrator(store, weft.Embedder(str(folder), normalise=False))


@pytest.mark.parametrize(
    "name, value",
    [("batch", 2.5), ("batch", "5"), ("batch", 0), ("concurrency", None), ("allow_skips", -1), ("allow_skips", 1.5),
     ("lease_s", "x"), ("lease_s", 0)],
)  # fmt: skip
def test_numbers_that_are_none_are_refused_before_anything_is_planned(store, name, value):
    with pytest.raises(InputError, match=f"{name} must be "):
        Migrator(store, Served(), **{name: value})
    assert store.migrations.open() is None


def test_a_name_is_no_embedder(store):
    for made in (lambda: Migrator(store, "minilm"), lambda: Corpus(store, "minilm")):
        with pytest.raises(InputError, match=r"embedder must be a weft\.Embedder, .* got \'minilm\'"):
            made()


@pytest.mark.parametrize("cuts", [True, False])
def test_a_long_question_is_cut_where_the_embedder_can(store, cuts):
    class Cutting(FakeEmbedder):
        def encode_query(self, texts, **options):
            assert options == ({"truncate": "chunk"} if cuts else {})
            return self.encode_document(texts)

    embedder = Cutting("old")
    embedder.cuts = cuts
    assert Corpus(store, embedder).search("text 5", 1, truncate="chunk").hits[0].id == "d5"
