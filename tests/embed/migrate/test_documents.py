"""Stores keep fields of documents, choose by them, and keep long documents in chunks; older stores can do so too."""

import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fake_embedder import FakeEmbedder, vector_of
from soaking import times

from weft.embed.migrate import Corpus, Migrator
from weft.embed.migrate.corpus import in_parts
from weft.embed.pipeline.folder import Chunking
from weft.embed.stores import Chunk, Content, Document, open_store
from weft.errors import InputError, StoreError

OLD, NEW = FakeEmbedder("old"), FakeEmbedder("new", 4)
FIELDS = {"a": {"lang": "en", "year": 1999}, "b": {"lang": "de", "year": 2005}, "c": {"lang": "en", "year": 2010}}


class Words:
    """A tokenizer whose tokens are words."""

    def encode_offsets(self, text, add_special):
        places, at = [], 0
        for word in text.split():
            start = text.index(word, at)
            at = start + len(word)
            places.append((start, at))

        class Located:
            offsets = np.array(places or np.empty((0, 2)), np.int32)

        return Located


@pytest.fixture
def corpus(store):
    store.adopt(OLD.fingerprint, OLD.dimension, "old")
    cutting = FakeEmbedder("old")
    cutting.tokenizer, cutting.max_tokens = Words(), 100
    return Corpus(store, cutting)


@pytest.fixture
def fielded(corpus):
    corpus.put({name: Content(f"text {name}", fields) for name, fields in FIELDS.items()} | {"d": "no fields"})
    return corpus


def found(corpus, where, text="text a"):
    return [hit.id for hit in corpus.search(text, 10, where=where).hits]


def test_fields_come_back_as_they_were_given(corpus, opened):
    fields = {"n": 3, "x": 0.5, "none": None, "deep": {"list": [1, "ä\0\ud800", True]}, "": "empty"}
    corpus.put({"a": Content("one", fields)})
    assert opened().get("a") == Document("a", "one", 1, fields)
    (hit,) = corpus.search("one").hits
    assert hit.fields == fields and hit.chunk is None
    corpus.put({"a": "one without"})
    assert corpus.store.get("a") == Document("a", "one without", 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": object()}, "cannot be written as JSON"),
        ({"a": float("nan")}, "cannot be written as JSON"),
        ({3: "x"}, "must be a dict with strings as keys"),
        (["x"], "must be a dict with strings as keys"),
        ({"a": "x" * (1 << 20)}, "must have at most 1024 KiB"),
    ],
)
def test_fields_that_are_no_json_are_refused(corpus, fields, message):
    with pytest.raises(InputError, match=rf"documents\['a'\].fields {message}"):
        corpus.put({"a": Content("one", fields)})
    assert corpus.store.count() == 0


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({"lang": "en"}, "ac"),
        ({"year": {"gte": 2000}}, "bc"),
        ({"lang": "en", "year": {"gte": 2000, "lt": 2020}}, "c"),
        ({"lang": {"nin": ["en"]}}, "b"),
        ({"lang": {"in": ["fr"]}}, ""),
        (lambda fields: not fields, "d"),
    ],
)
def test_a_search_chooses_by_fields_as_an_index_does(fielded, where, wanted):
    assert sorted(found(fielded, where)) == list(wanted)
    assert [one.id for one in fielded.store.documents(where)] == list(wanted)


def test_the_nearest_of_those_that_match_are_found(corpus):
    corpus.put({f"d{i:03}": Content(f"text {i}", {"even": i % 2 == 0}) for i in range(300)})
    everything = corpus.search("text 7", 300).hits
    even = corpus.search("text 7", 20, where={"even": True}).hits
    assert even == [hit for hit in everything if hit.fields["even"]][:20]
    assert corpus.search("text 7", 400, where={"even": False}).hits[0].id == "d007"
    with pytest.raises(InputError, match=r"\[store\] where has an unknown condition for 'even'.*got 'like'"):
        corpus.search("text 7", where={"even": {"like": 3}})


def test_fields_stay_through_a_migration(fielded):
    Migrator(fielded.store, NEW).run()
    assert found(Corpus(fielded.store, OLD, NEW), {"lang": "de"}) == ["b"]


LONG = "zero one two three four five six seven eight nine ten eleven twelve\n\nthirteen fourteen fifteen  "


def test_a_long_document_is_stored_in_chunks_and_is_whole_again(corpus, opened):
    corpus.put({"long": Content(LONG, {"lang": "en"}), "short": "a few words"}, chunking=Chunking.of(8, 2))
    store = opened()
    assert store.count() == 2 and [one.id for one in store.documents()] == ["long", "short"]
    kept = store.get("long")
    assert (kept.text, kept.fields, kept.chunks) == (LONG, {"lang": "en"}, 3)
    assert store.get("short") == Document("short", "a few words", 1)
    assert store.get("long#0") is None or store.get("long#0").text != LONG
    for hit in corpus.search("six", 10, where={"lang": "en"}).hits:
        document, start, end = hit.chunk
        assert document == "long" and hit.text == LONG[start:end] and hit.fields == {"lang": "en"}
        assert len(hit.text.split()) <= 8
    assert len(list(store.vectors(OLD.fingerprint))) == 4


def test_a_document_replaces_all_its_chunks(corpus):
    store = corpus.store

    def stored():
        rows = [name for name, _, _ in store.vectors(OLD.fingerprint)]
        hits = [hit.id for hit in corpus.search("one", 20).hits]
        assert sorted(hits) == rows
        return rows

    corpus.put({"a": LONG}, chunking=Chunking.of(8, 2))
    assert stored() == ["a#0", "a#1", "a#2"] and store.get("a").revision == 1
    corpus.put({"a": "one two three four five six seven eight nine"}, chunking=Chunking.of(8, 2))
    assert stored() == ["a#0", "a#1"] and store.get("a").revision == 2
    corpus.put({"a": "short"})
    assert stored() == ["a"] and store.get("a") == Document("a", "short", 3)
    corpus.put({"a": LONG}, chunking=Chunking.of(8, 2))
    assert stored() == ["a#0", "a#1", "a#2"] and store.get("a").chunks == 3
    assert corpus.delete(["a", "b"]) == 1
    assert stored() == [] and store.get("a") is None and store.count() == 0


def test_chunks_move_to_another_model_with_their_documents(corpus, opened):
    corpus.put({"a": LONG, "b": "short"}, chunking=Chunking.of(8, 2))
    store = opened()
    store.migrations.plan(NEW.fingerprint, NEW.dimension, "new")
    store.migrations.start("me", 60.0)  # documents wait for the new model
    corpus.put({"a": "now short"})
    corpus.delete("b")
    Migrator(store, NEW).run(take_over=True)
    both = Corpus(store, OLD, NEW)
    assert [hit.id for hit in both.search("now short").hits] == ["a"]
    assert [row[0] for row in store.vectors(NEW.fingerprint)] == ["a"]
    both.put({"c": LONG})
    both.delete("c")
    assert Migrator(store, OLD).rollback().settled == "rolled back"
    assert [row[0] for row in store.vectors(OLD.fingerprint)] == ["a"]


def test_an_id_cannot_be_taken_from_a_chunk_or_by_one(corpus):
    corpus.put({"a": LONG}, chunking=Chunking.of(8, 2))
    for refused in (lambda: corpus.put({"a#1": "mine"}), lambda: corpus.delete("a#1")):
        with pytest.raises(InputError, match="the id 'a#1' belongs to the document 'a', which is stored in chunks"):
            refused()
    corpus.put({"b#0": "first"})
    with pytest.raises(InputError, match="the id 'b#0' belongs to the document 'b#0'"):
        corpus.put({"b": LONG}, chunking=Chunking.of(8, 2))
    with pytest.raises(InputError, match="is also the id of a chunk of the document 'c'"):
        corpus.put({"c": LONG, "c#0": "x"}, chunking=Chunking.of(8, 2))
    vectors = {OLD.fingerprint: np.stack([vector_of("old", "x")] * 2)}
    with pytest.raises(InputError, match="is given both whole and in chunks"):
        corpus.store.put({"d": "x", "d#0": Content("x", {}, Chunk("d", 0, 1))}, vectors)
    for wrong in (Chunk("e", 3, 1), Chunk("e", 0, 1.5), ("e", 0, 1), Chunk("e#0", 0, 1)):
        with pytest.raises(InputError, match=r"documents\['e#0'\].chunk must"):
            corpus.store.put({"e#0": Content("x", {}, wrong)}, {})
    assert sorted(one.id for one in corpus.store.documents()) == ["a", "b#0"]


def test_writers_at_once_leave_one_form_of_a_document(corpus, opened):
    """Whole or in chunks: whoever comes last replaces all of it."""
    words = LONG.split()

    def write(seed):
        mine = FakeEmbedder("old")
        mine.tokenizer, mine.max_tokens = Words(), 100
        own, rng = Corpus(opened(), mine), np.random.default_rng(seed)
        for _ in range(times(40, 8)):
            if rng.random() < 0.2:
                own.delete("a")
            else:
                own.put({"a": " ".join(words[: rng.integers(1, 16)]), "b": LONG}, chunking=Chunking.of(8, 2))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    kept = corpus.store.get("a")
    names = [row[0] for row in corpus.store.vectors(OLD.fingerprint) if row[0].startswith("a")]
    whole = [] if kept is None else [f"a#{i}" for i in range(kept.chunks)] or ["a"]
    assert names == whole and (kept is None or LONG.split()[: len(kept.text.split())] == kept.text.split())


def test_chunks_need_a_tokenizer(store):
    with pytest.raises(InputError, match=r"since the store has no model.*--model"):
        Corpus(store).put({"a": LONG}, chunking=Chunking.of(8))
    with pytest.raises(InputError, match="this embedder has no tokenizer"):
        Corpus(store, OLD).put({"a": LONG}, chunking=Chunking.of(8))


def test_many_documents_are_listed_in_order(corpus, monkeypatch):
    monkeypatch.setattr("weft.embed.stores.store.LISTED", 3)
    corpus.put({f"d{i}": f"text {i}" for i in range(8)} | {"d3x": LONG}, chunking=Chunking.of(8, 2))
    corpus.delete("d5")
    names = [one.id for one in corpus.store.documents()]
    assert names == ["d0", "d1", "d2", "d3", "d3x", "d4", "d6", "d7"] and corpus.store.count() == 8


def test_rows_keep_their_other_fields():
    rows = [{"id": 1, "text": "a", "lang": "en", "tags": ["x"]}, {"id": "2", "text": "b"}]
    (part,) = in_parts(rows, "id", "text")
    assert part == {"1": Content("a", {"lang": "en", "tags": ["x"]}), "2": Content("b", {})}


def test_a_file_of_an_earlier_weft_gets_fields_and_chunks(tmp_path):
    """old_store.sql was written by weft before there were any: make_old_store.py."""
    path = tmp_path / "old.db"
    connection = sqlite3.connect(path)
    connection.executescript((Path(__file__).parent / "old_store.sql").read_text(encoding="utf-8"))
    connection.close()
    with open_store(path) as store:
        assert [(one.id, one.text) for one in store.documents()] == [
            ("d0", "text 0"), ("d1", "text 1, changed"), ("d2", "text 2"), ("d3", "text 3"), ("d4", "text 4"),
        ]  # fmt: skip
        assert store.get("d1") == Document("d1", "text 1, changed", 2) and store.get("d5") is None
        cutting = FakeEmbedder("new", 4)
        cutting.tokenizer, cutting.max_tokens = Words(), 100
        corpus = Corpus(store, OLD, cutting)
        assert corpus.search("text 3", 1).hits[0].id == "d3" and found(corpus, {"lang": "en"}) == []
        corpus.put(
            {"d2": Content(LONG, {"lang": "en"}), "d0": Content("text 0", {"lang": "de"})}, chunking=Chunking.of(8)
        )
        assert set(found(corpus, {"lang": "en"})) == {"d2#0", "d2#1", "d2#2"} and store.count() == 5
        assert Migrator(store, OLD).rollback().settled == "rolled back"  # of the migration that was open in the file
        assert found(Corpus(store, OLD), {"lang": "de"}) == ["d0"]


def test_damaged_fields_are_told(tmp_path):
    with open_store(tmp_path / "a.db", create=True) as store:
        store.put({"a": Content("one", {"x": 1})}, {})
        for damage in ("{", json.dumps([1])):
            with store.transaction("shared") as session:
                session.run("UPDATE documents SET fields = ?", damage)
            with pytest.raises(StoreError, match="the fields of a document are damaged"):
                store.get("a")
