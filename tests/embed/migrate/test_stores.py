"""A store keeps documents and vectors the same way in SQLite and in PostgreSQL, and refuses what is not its own."""

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from fake_embedder import FakeEmbedder, vector_of
from forking import forked

from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import Document, Phase, Route, generations, open_store
from weft.embed.stores.schema import STEPS
from weft.errors import FingerprintError, InputError, NotFoundError, StoreError

OLD = FakeEmbedder("old")


@pytest.fixture
def corpus(store):
    store.adopt(OLD.fingerprint, OLD.dimension, "old")
    return Corpus(store, OLD)


def test_what_is_put_is_there_for_another_connection(corpus, opened):
    corpus.put({"a": "one", "ß/漢\n'; --": "two"})
    other = opened()
    assert other.get("a") == Document("a", "one", 1)
    assert other.get("ß/漢\n'; --") == Document("ß/漢\n'; --", "two", 1)
    assert other.get("b") is None
    assert other.count() == 2


def test_vectors_come_back_bit_by_bit_in_the_order_of_bytes(corpus):
    names = ["b", "a", "Z", "ä", "漢", "a b", "😀", "\ufffd"]
    corpus.put({name: f"text of {name}" for name in names})
    rows = list(corpus.store.vectors(OLD.fingerprint))
    assert [row[0] for row in rows] == sorted(names, key=str.encode)
    for name, revision, vector in rows:
        assert revision == 1
        assert vector.tobytes() == vector_of("old", f"text of {name}").tobytes()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -1e-38, 9e18, 0.1])
def test_every_finite_float_survives(store, value):
    store.adopt("f", 2)
    store.put({"a": "x"}, {"f": np.array([[value, 1]], np.float32)})
    ((_, _, vector),) = store.vectors("f")
    assert vector.tobytes() == np.array([value, 1], np.float32).tobytes()


def test_a_change_and_a_deletion_raise_the_revision(corpus):
    corpus.put({"a": "one"})
    corpus.put({"a": "two"})
    assert corpus.store.get("a") == Document("a", "two", 2)
    assert corpus.delete(["a", "a", "b"]) == 1
    assert corpus.store.get("a") is None
    assert list(corpus.store.vectors(OLD.fingerprint)) == []
    assert corpus.delete(["a"]) == 0
    corpus.put({"a": "three"})
    assert corpus.store.get("a") == Document("a", "three", 4)


def test_a_search_finds_the_nearest_in_order(corpus):
    texts = {f"d{i}": f"text {i}" for i in range(50)}
    corpus.put(texts)
    query = vector_of("old", "text 7")
    answer = corpus.search("text 7", k=5)

    def cosine(text):
        vector = vector_of("old", text)
        return float(vector @ query / np.linalg.norm(vector) / np.linalg.norm(query))

    best = sorted(texts, key=lambda name: -cosine(texts[name]))[:5]
    assert answer.fingerprint == OLD.fingerprint
    assert [hit.id for hit in answer.hits] == best
    assert best[0] == "d7" and answer.hits[0].text == "text 7"
    assert [hit.score for hit in answer.hits] == pytest.approx([cosine(texts[name]) for name in best], abs=1e-5)


def test_equal_scores_come_in_the_order_of_ids(corpus):
    corpus.put({name: "the same" for name in "cab"})
    assert [hit.id for hit in corpus.search("the same", k=2).hits] == ["a", "b"]


def test_more_documents_than_one_page_or_list(corpus):
    corpus.put({f"d{i:04}": f"text {i}" for i in range(2500)})
    assert len(list(corpus.store.vectors(OLD.fingerprint))) == 2500
    assert corpus.search("text 2400", k=1).hits[0].id == "d2400"
    assert corpus.delete([f"d{i:04}" for i in range(0, 2500, 2)]) == 1250
    assert corpus.store.count() == 1250


def test_a_string_is_one_id(corpus):
    corpus.put({"a": "one", "b": "two", "ab": "three"})
    assert corpus.store.delete("ab") == 1
    assert corpus.store.get("a") and corpus.store.get("b") and not corpus.store.get("ab")
    assert corpus.delete("a") == 1 == corpus.store.count()
    assert corpus.delete(iter(["b"])) == 1
    with pytest.raises(InputError, match="ids must be an id or a list of ids: got 3"):
        corpus.delete(3)


def test_whoever_reads_vectors_keeps_nobody_waiting(corpus, opened, monkeypatch):
    """An iterator that is not used up leaves the store to others, this thread and other threads alike."""
    monkeypatch.setattr("weft.embed.stores.generations.READ_ROWS", 2)
    corpus.put({name: name for name in "abcdef"})
    rows = corpus.store.vectors(OLD.fingerprint)
    assert next(rows)[0] == "a"
    corpus.put({"g": "g", "Z": "before all"})
    corpus.delete(["d"])
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(corpus.store.count).result(timeout=30) == 7
        assert [row[0] for row in pool.submit(list, rows).result(timeout=30)] == ["b", "c", "e", "f", "g"]
    rows = corpus.store.vectors(OLD.fingerprint)
    next(rows)
    rows.close()
    assert opened().count() == 7


def test_a_reader_is_told_that_the_vectors_are_dropped(corpus, opened, monkeypatch):
    monkeypatch.setattr("weft.embed.stores.generations.READ_ROWS", 2)
    corpus.put({name: name for name in "abc"})
    rows = corpus.store.vectors(OLD.fingerprint)
    next(rows)
    Migrator(opened(), FakeEmbedder("new")).run()
    opened().migrations.finish(now=True)
    with pytest.raises(FingerprintError, match="has no vectors of fake:old"):
        list(rows)


def test_a_reader_is_told_that_the_vectors_were_dropped_at_this_moment(corpus, opened, monkeypatch):
    """Between the number of their table and the table itself."""
    corpus.put({name: name for name in "abc"})
    Migrator(opened(), FakeEmbedder("new")).run()
    page, others = generations.page, [opened()]

    def late(*arguments):
        while others:
            others.pop().migrations.finish(now=True)
        return page(*arguments)

    monkeypatch.setattr(generations, "page", late)
    with pytest.raises(FingerprintError, match="has no vectors of fake:old"):
        list(corpus.store.vectors(OLD.fingerprint))


@pytest.mark.parametrize("query", [np.zeros(8), np.full(8, np.nan), "abc", None, [[1.0] * 8]])
def test_a_query_that_is_no_vector_is_refused(corpus, query):
    corpus.put({"a": "one"})
    with pytest.raises(InputError):
        corpus.store.search(query, fingerprint=OLD.fingerprint)


@pytest.mark.parametrize("k", [0, -1, 2.5, "3", None, True])
def test_a_number_of_documents_is_a_whole_one(corpus, k):
    corpus.put({"a": "one"})
    with pytest.raises(InputError, match="k must be a whole number"):
        corpus.store.search(vector_of("old", "one"), k, fingerprint=OLD.fingerprint)
    assert len(corpus.search("one", np.int64(3)).hits) == 1


def test_searches_see_every_change(corpus, opened):
    """Vectors that are kept between searches are read again after a change by anybody."""
    other = Corpus(opened(), OLD)
    corpus.put({"a": "one", "b": "two"})
    for at, writer in enumerate((corpus, other, corpus, other)):
        assert corpus.search(f"text {at}", 3) == corpus.search(f"text {at}", 3)
        writer.put({f"c{at}": f"text {at}"})
        assert corpus.search(f"text {at}", 1).hits[0].id == f"c{at}"
        writer.delete(f"c{at}")
        assert {hit.id for hit in corpus.search(f"text {at}", 3).hits} == {"a", "b"}
    new = FakeEmbedder("new")
    Migrator(other.store, new).run()
    answer = Corpus(corpus.store, OLD, new).search("two", 1)
    assert answer.fingerprint == new.fingerprint and answer.hits[0].score == pytest.approx(1)


def test_more_vectors_than_are_kept_are_searched_all_the_same(corpus, monkeypatch):
    monkeypatch.setattr("weft.embed.stores.scan.KEPT_BYTES", 100)
    corpus.put({f"d{i}": f"text {i}" for i in range(20)})
    for _ in range(2):
        assert corpus.search("text 7", 1).hits[0].id == "d7"


@pytest.mark.parametrize("model", [("", 4), ("f", 0), ("f", -3), ("f", "x"), ("f", 2.0), (3, 4), ("f", 4, None)])
def test_a_model_that_is_none_is_refused(store, model):
    for adopted in (store.adopt, store.migrations.plan):
        with pytest.raises(InputError):
            adopted(*model)
    assert store.generations() == {} and store.migrations.open() is None


def test_a_closed_store_says_so(opened):
    store = opened()
    store.close()
    with pytest.raises(StoreError, match="is closed; open it again"):
        store.count()


def test_closing_waits_for_a_thread_at_work(opened):
    """SQLite's connection ends the process where it is closed under a thread."""
    store = opened()
    closing = threading.Thread(target=store.close)
    with store.transaction("read") as session:
        closing.start()
        closing.join(0.2)
        assert closing.is_alive() and session.row("SELECT count(*) FROM documents") == (0,)
    closing.join()
    with pytest.raises(StoreError, match="is closed; open it again"):
        store.count()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_a_connection_of_its_own(corpus, opened):
    """And what it is told is committed outlives the parent's connection, and others that come and go."""
    corpus.put({"a": "one"})
    go_on, told = os.pipe(), os.pipe()

    def work():
        corpus.put({"b": "two"})
        os.write(told[1], b"1")
        os.read(go_on[0], 1)
        corpus.put({"c": "three"})

    def come_and_go():
        with opened() as other:
            assert other.count() == 3

    child = forked(work)
    os.close(told[1])
    assert os.read(told[0], 1)
    corpus.put({"d": "four"})
    corpus.store.close()
    assert os.waitpid(forked(come_and_go), 0)[1] == 0
    os.write(go_on[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    assert opened().count() == 4
    for end in (*go_on, told[0]):
        os.close(end)


def test_nothing_is_served_by_a_new_store(store):
    assert store.route() == Route(Phase.STABLE, None, ())
    with pytest.raises(NotFoundError, match="serves no vectors yet"):
        store.search(np.zeros(8, np.float32), fingerprint="x")
    store.put({"a": "a document without a vector"}, {})
    with pytest.raises(InputError, match="migrate it"):
        store.adopt("f", 8)


def test_a_model_is_adopted_once(corpus):
    corpus.store.adopt(OLD.fingerprint, OLD.dimension)
    with pytest.raises(InputError, match="already has vectors of fake:old"):
        corpus.store.adopt("another", 8)


def test_another_fingerprint_is_neither_written_nor_asked(corpus):
    corpus.put({"a": "one"})
    store, vectors = corpus.store, np.zeros((1, 8), np.float32)
    with pytest.raises(FingerprintError, match="takes vectors of fake:old, not of strange"):
        store.put({"a": "two"}, {OLD.fingerprint: vectors, "strange": vectors})
    with pytest.raises(FingerprintError, match="documents need vectors of fake:old"):
        store.put({"a": "two"}, {})
    with pytest.raises(FingerprintError, match="the query is a vector of strange, but the store serves fake:old"):
        store.search(vectors[0], fingerprint="strange")
    with pytest.raises(FingerprintError, match="no embedder"):
        Corpus(store, FakeEmbedder("new")).search("one")
    with pytest.raises(FingerprintError, match="no vectors of strange"):
        next(store.vectors("strange"))
    assert store.get("a") == Document("a", "one", 1)


@pytest.mark.parametrize(
    "documents, message",
    [
        ({"": "x"}, "id 0 has 0 bytes"),
        ({"i" * 513: "x"}, "513 bytes"),
        ({"a\0": "x"}, "NUL"),
        ({"a": "x\0y"}, "NUL"),
        ({"a": "\ud800"}, "not valid Unicode at character 0"),
        ({3: "x"}, "id 0 must be a string: got 3"),
        ({"a": b"x"}, r"documents\['a'\] must be a string"),
    ],
)
def test_what_a_database_could_not_keep_is_refused_by_all(store, documents, message):
    with pytest.raises(InputError, match=message):
        store.put(documents, {})
    assert store.count() == 0


@pytest.mark.parametrize(
    "vectors, message",
    [
        (np.zeros((1, 7), np.float32), "shape"),
        (np.zeros((2, 8), np.float32), "shape"),
        (np.zeros(8, np.float32), "shape"),
        (np.full((1, 8), np.nan, np.float32), "vector 0 contains NaN or infinity"),
        (np.full((1, 8), np.inf, np.float32), "vector 0 contains NaN or infinity"),
        (np.zeros((1, 8), np.float32), "vector 0 has norm 0"),
        (np.full((1, 8), 1e-30, np.float32), "vector 0 has norm 2.83e-30"),
        (np.full((1, 8), 1e30, np.float32), r"vector 0 has norm 2.83e\+30"),
        ("abcdefgh", "vectors must be numbers of shape"),
    ],
)
def test_wrong_vectors_are_refused_and_the_document_with_them(corpus, vectors, message):
    with pytest.raises(InputError, match=message):
        corpus.store.put({"a": "x"}, {OLD.fingerprint: vectors})
    assert corpus.store.get("a") is None


def test_a_store_is_not_made_by_accident(address):
    with pytest.raises((NotFoundError, StoreError)):
        open_store(**address)


def test_eight_threads_make_one_store(address):
    def make(_):
        with open_store(create=True, **address) as store:
            store.adopt("f", 4)
            return store.route()

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(make, range(8))) == {Route(Phase.STABLE, "f", ("f",))}


def put_as_before(store, texts):
    """What weft did before documents had fields."""
    with store.transaction("shared") as session:
        insert = "INSERT INTO documents (id, text, revision, deleted) VALUES (?, ?, 1, 0)"
        session.each(insert, list(texts.items()))
        rows = [(name, 1, vector_of("old", text)) for name, text in texts.items()]
        generations.write(store.dialect, session, generations.find(session, OLD.fingerprint), rows)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_earlier_version_is_brought_up(opened, monkeypatch, version):
    with monkeypatch.context() as patched:
        patched.setattr("weft.embed.stores.schema.STEPS", STEPS[:version])
        if version == 1:
            patched.setattr("weft.embed.stores.sqlite.Sqlite.watch", lambda *_: ())
        old = opened()
        old.adopt(OLD.fingerprint, OLD.dimension)
        put_as_before(old, {"a": "one", "b": "two"})
    corpus, other = Corpus(opened(), OLD), Corpus(opened(), OLD)
    assert corpus.search("two", 1).hits[0].id == "b"
    for writer, name in ((other, "three"), (Corpus(old, OLD), "four")):  # one that was opened before it, too
        writer.put({name: name})
        assert corpus.search(name, 1).hits[0].id == name
    assert corpus.store.canaries(OLD.fingerprint) is None


def test_a_newer_store_is_refused(store, opened):
    with store.transaction("alone") as session:
        session.run("UPDATE weft_store SET version = ?", len(STEPS) + 1)
    with pytest.raises(StoreError, match="update weft"):
        opened()


def test_a_foreign_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "theirs.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE songs (name TEXT)")
    theirs.commit()
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match=r"not a weft store: it has the tables of another program \(songs\)"):
        open_store(path, create=True)
    assert path.read_bytes() == before


def test_a_foreign_schema_is_refused(postgres):
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA theirs")
        connection.execute("CREATE TABLE theirs.songs (name TEXT)")
    with pytest.raises(StoreError, match=r"not a weft store: it has the tables of another program \(songs\)"):
        open_store(postgres, schema="theirs", create=True)
    with pytest.raises(InputError, match="schema must be a name of"):
        open_store(postgres, schema="weft; DROP TABLE x", create=True)


def test_an_index_of_pgvectors_is_used_and_gives_as_many_as_were_asked_for(postgres):
    import psycopg

    from weft.embed.stores.postgres import NEAREST

    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((5000, 64)).astype(np.float32)
    with open_store(postgres, schema="graph", create=True) as store, psycopg.connect(postgres, autocommit=True) as sql:
        store.adopt("f", 64)
        store.put({f"d{i:04}": "x" for i in range(5000)}, {"f": vectors})
        exact = store.search(vectors[7], 10, fingerprint="f")
        number = store.generations()["f"].number
        sql.execute(f"CREATE INDEX ON graph.vectors_{number} USING hnsw (vector public.vector_cosine_ops)")
        sql.execute(f"ANALYZE graph.vectors_{number}")
        with store.transaction("read") as session:
            packed = store.dialect.pack(vectors[7])
            plan = session.rows("EXPLAIN " + NEAREST.format(number=number), packed, packed, 10, 10)
        assert f"Index Scan using vectors_{number}_vector_idx" in "".join(line for (line,) in plan)
        assert store.search(vectors[7], 10, fingerprint="f")[0] == exact[0]
        for k in (100, 999, 2000):
            assert len(store.search(vectors[7], k, fingerprint="f")) == k
        store.delete([f"d{i:04}" for i in range(4000)])
        assert len(store.search(vectors[7], 900, fingerprint="f")) == 900


def test_a_password_is_not_repeated(postgres):
    for address in ("postgresql://weft:s3cret@h:port/notes", "postgresql://weft@h/notes?password=s3cret&x=1"):
        with pytest.raises(StoreError) as caught:
            open_store(address)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(InputError, match=r"begin with postgresql\+psycopg://") as refused:
        open_store("postgresql+psycopg://weft:s3cret@h/notes")
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("name", [["a"], 3, None, "", "\ud800", "a\0b"])
def test_what_is_no_id_is_the_caller_s_mistake(corpus, name):
    with pytest.raises(InputError, match="id"):
        corpus.store.get(name)
    with pytest.raises(InputError, match="documents must be a dict"):
        corpus.put(["x"])


def test_a_folder_is_no_store(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        open_store(tmp_path)


def test_a_server_that_is_not_there_is_one_clear_error(postgres, tmp_path):
    with pytest.raises(StoreError, match="cannot connect"):
        open_store(f"postgresql:///weft?host={tmp_path}")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database, " * 100)
    with pytest.raises(StoreError, match="is not a SQLite file"):
        open_store(path, create=True)
    assert path.read_text() == "not a database, " * 100


def test_a_damaged_file_never_gives_a_wrong_vector(tmp_path):
    """Bytes are changed anywhere in the file: reading it ends in an error, or in rows as they were written."""
    path = tmp_path / "store.db"
    texts = {f"d{i:03}": f"text {i}" for i in range(300)}
    with open_store(path, create=True) as store:
        store.adopt(OLD.fingerprint, OLD.dimension)
        Corpus(store, OLD).put(texts)
    whole = path.read_bytes()
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(len(data), size=int(rng.choice([1, 8, 64]))):
            data[at] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        for leftover in ("-wal", "-shm"):
            path.with_name(path.name + leftover).unlink(missing_ok=True)
        try:
            with open_store(path) as store:
                for name, _, vector in store.vectors(OLD.fingerprint):
                    assert vector.tobytes() == vector_of("old", texts[name]).tobytes()
        except (StoreError, FingerprintError, NotFoundError):
            refused += 1
    assert refused > 50
