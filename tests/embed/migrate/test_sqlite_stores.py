"""What only a store in a SQLite file does: keeps vectors between searches, waits for others, tells of damage."""

import sqlite3
import subprocess
import sys

import pytest
from fake_embedder import FakeEmbedder

from weft.embed.migrate import Corpus, Migrator
from weft.embed.stores import generations, open_store
from weft.embed.stores.sqlite import Sqlite
from weft.errors import BusyError, InputError, StoreError

OLD = FakeEmbedder("old")


def read_vectors(monkeypatch):
    """A list that gets the number of rows whenever vectors are read for a search."""
    seen = []
    for name in ("read", "chosen"):
        real = getattr(generations, name)

        def counting(*arguments, real=real):
            for rows in real(*arguments):
                seen.append(len(rows))
                yield rows

        monkeypatch.setattr(generations, name, counting)
    return seen


def test_only_rows_that_changed_are_read_again(tmp_path, monkeypatch):
    """PostgreSQL compares vectors itself."""
    monkeypatch.setattr(generations, "READ_ROWS", 8)
    read = read_vectors(monkeypatch)
    with open_store(tmp_path / "a.db", create=True) as store, open_store(tmp_path / "a.db") as other:
        store.adopt(OLD.fingerprint, OLD.dimension)
        corpus, writer = Corpus(store, OLD), Corpus(other, OLD)
        texts = {f"d{i:02}": f"text {i}" for i in range(30)}
        corpus.put(texts)

        def found(*rows):
            """Everything is found as a search from scratch finds it, and so many rows were read for that."""
            read.clear()
            hits = corpus.search("text 7", 100).hits
            assert read == list(rows)
            with open_store(tmp_path / "a.db") as fresh:
                assert [hit.id for hit in Corpus(fresh, OLD).search("text 7", 100).hits] == [hit.id for hit in hits]
            return {hit.id: hit.text for hit in hits}

        assert found(8, 8, 8, 6) == texts and found() == texts
        writer.put({"d03": "changed", "new": "added"})
        assert found(2)["d03"] == "changed"
        corpus.delete(["d05", "d06", "d07", "d08", "d09", "d10"])
        assert len(found()) == 25
        writer.put({"d05": "back again"})
        assert found(1)["d05"] == "back again"
        for i in range(40):  # the same few again and again: no more blocks than before
            writer.put({f"d{i % 3:02}": f"again {i}"})
            found(1)
        assert len(store._scan._blocks) <= 7


def test_a_commit_elsewhere_reads_no_vector_again(tmp_path, monkeypatch):
    read = read_vectors(monkeypatch)
    new = FakeEmbedder("new")
    with open_store(tmp_path / "a.db", create=True) as store, open_store(tmp_path / "a.db") as other:
        store.adopt(OLD.fingerprint, OLD.dimension)
        corpus = Corpus(store, OLD)
        corpus.put({f"d{i}": f"text {i}" for i in range(30)})
        corpus.search("text 7")
        monkeypatch.setattr(generations, "stamps", lambda *_: pytest.fail("the rows were looked through"))
        read.clear()

        def asked(texts):
            assert corpus.search(texts[0], 1).hits[0].text == texts[0]

        new.before = asked  # while a migration commits its batches
        Migrator(other, new, batch=10).run()
        assert len(new.embedded) == 30 and read == []


def test_a_file_that_is_held_while_it_is_made_is_waited_for(tmp_path, monkeypatch):
    """SQLite does not wait by itself before it changes to WAL."""
    holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN EXCLUSIVE")
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            holder.execute("ROLLBACK")

    monkeypatch.setattr("weft.embed.stores.sqlite.time.sleep", sleep)
    with sqlite3.connect(tmp_path / "a.db", timeout=0) as connection:
        made = Sqlite(tmp_path / "a.db", create=True)
        made.connection.close()
        made.connection = connection
        made.adopt(made.session())
    assert len(slept) == 3


def test_how_long_a_file_was_held_is_said_truly(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.embed.stores.sqlite.WAIT_S", 0.2)
    said = r"is locked by another process \(waited 0\.[2-9] s for the lock\)"
    with open_store(tmp_path / "a.db", create=True) as store, open_store(tmp_path / "a.db") as other:
        with store.transaction("alone"), pytest.raises(BusyError, match=said):
            other.put({"a": "one"}, {})
        other.put({"a": "one"}, {})


MAKES_A_STORE = """
import sys
from weft.embed.stores import open_store
sys.stdin.read(1)
for number in range(10):
    with open_store(f"{sys.argv[1]}/{number}.db", create=True) as store:
        store.count()
"""


def test_processes_that_make_a_store_at_once_all_have_it(tmp_path):
    started = [
        subprocess.Popen([sys.executable, "-c", MAKES_A_STORE, tmp_path], stdin=subprocess.PIPE) for _ in range(4)
    ]
    for process in started:
        process.stdin.close()
    assert [process.wait(120) for process in started] == [0] * 4


def test_a_store_is_not_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="a store cannot be in memory"):
        open_store(":memory:", create=True)
    assert list(tmp_path.iterdir()) == []


def test_only_damage_is_called_so(tmp_path):
    with open_store(tmp_path / "a.db", create=True) as store:  # noqa: SIM117 (closed after the error)
        with pytest.raises(StoreError) as caught, store.transaction("read") as session:
            session.rows("SELECT id FROM documents LIMIT ?", 2.5)
    assert "damaged" not in str(caught.value) and "restore" not in str(caught.value)
