"""weft store: documents are added, searched by text and fields, listed and deleted; what is no store is told."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.embed.stores import open_store

Run = Callable[..., Any]
ROWS = {
    "cats": ("The cat sat on the mat.", {"lang": "en", "year": 1999}),
    "katzen": ("the quick brown fox jumps over the lazy dog", {"lang": "de", "year": 2005}),
    "numbers": ("one two three four five six", {"lang": "en", "year": "2010"}),
    "plain": ("hello world", {}),
}
LONG = "the cat sat on the mat and the dog jumps over the fox. " * 30


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"id": name, "text": text, **fields}) for name, (text, fields) in ROWS.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def store(run: Run, embedder: Path, rows: Path, tmp_path: Path) -> str:
    place = str(tmp_path / "notes.db")
    added = run("store", "add", place, str(rows), "--model", str(embedder))
    assert added.exit_code == 0 and "4 documents added; the store has 4" in added.stderr, added.stderr
    return place


def hits(result: Any) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_new_store_has_vectors_of_the_model_given(run: Run, store: str, embedder: Path) -> None:
    text = ROWS["numbers"][0]
    found = hits(run("store", "search", store, text, "-k", "2", "--json"))
    assert found[0]["id"] == "numbers" and found[0]["metadata"] == ROWS["numbers"][1] and found[0]["chunk"] is None
    library = weft.Embedder(str(embedder))
    documents = [text for text, _ in ROWS.values()]
    scores = library.similarity(library.encode_query(text), library.encode_document(documents))[0]
    assert [hit["score"] for hit in found] == pytest.approx(sorted(scores, reverse=True)[:2], abs=1e-5)
    assert run("store", "search", store, text).stdout.startswith(f"{max(scores):.3f}  numbers\n")
    again = run("store", "add", store, "-", "--model", str(embedder), input="")
    assert again.exit_code == 2 and "--model is for a new store" in again.stderr and "weft migrate" in again.stderr


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (("lang=en",), ["cats", "numbers"]),
        (('year={"gte": 2000}',), ["katzen", "numbers"]),  # a text that is a number counts as one
        (("lang=en", "year=2010"), ["numbers"]),
        (('lang={"nin": ["en"]}',), ["katzen"]),
    ],
)
def test_documents_are_chosen_by_their_fields(run: Run, store: str, where: tuple[str, ...], wanted: list[str]) -> None:
    asked = [word for one in where for word in ("--where", one)]
    assert sorted(hit["id"] for hit in hits(run("store", "search", store, "cat", "--json", *asked))) == wanted
    assert [one["id"] for one in hits(run("store", "list", store, "--json", *asked))] == wanted
    assert f"{len(wanted)} document{'s' * (len(wanted) > 1)} deleted" in run("store", "delete", store, *asked).stderr
    with open_store(store) as opened:
        assert sorted(one.id for one in opened.documents()) == sorted(set(ROWS) - set(wanted))


def test_why_nothing_is_found_is_said(run: Run, store: str) -> None:
    for name in ("search", "list"):
        query = ("cat",) if name == "search" else ()
        none = run("store", name, store, *query, "--where", "nolang=en")
        assert none.exit_code == 0 and "no row has a field 'nolang'" in none.stderr
        wrong = run("store", name, store, *query, "--where", 'lang={"gt": 3}')
        assert "'lang' is text in this store, but 3 is a number" in wrong.stderr


def test_long_documents_are_stored_in_chunks(run: Run, store: str) -> None:
    line = json.dumps({"id": "long", "text": LONG, "lang": "en"}) + "\n"
    refused = run("store", "add", store, "-", input=line)
    assert refused.exit_code == 2 and "use --chunk-tokens N, or --truncate" in refused.stderr
    assert run("store", "add", store, "-", "--chunk-tokens", "20", "--overlap", "4", input=line).exit_code == 0
    found = hits(run("store", "search", store, "the dog jumps over the fox", "-k", "40", "--json"))
    chunks = [hit for hit in found if hit["chunk"]]
    assert len(chunks) > 10 and all(hit["metadata"] == {"lang": "en"} for hit in chunks)
    for hit in chunks:
        assert hit["text"] == LONG[hit["chunk"]["start"] : hit["chunk"]["end"]] and hit["chunk"]["document"] == "long"
    assert "long (" in run("store", "search", store, LONG[:60], "-k", "1").stdout
    (kept,) = [one for one in hits(run("store", "list", store, "--json")) if one["id"] == "long"]
    assert kept["text"] == LONG and kept["chunks"] == len(chunks)
    assert "1 document deleted; the store has 4" in run("store", "delete", store, "long").stderr
    assert run("store", "add", store, "-", "--overlap", "4", input=line).exit_code == 2


def test_documents_are_listed(run: Run, store: str) -> None:
    shown = run("store", "list", store)
    assert "4 of 4 documents" in shown.stderr and all(name in shown.stdout for name in ROWS)
    assert '"lang": "de"' in shown.stdout
    assert "2 of 4 documents" in run("store", "list", store, "--limit", "2").stderr


def test_what_is_deleted_is_gone_and_a_wrong_id_deletes_nothing(run: Run, store: str) -> None:
    wrong = run("store", "delete", store, "cats", "dogs")
    assert wrong.exit_code == 2 and "1 document of 2 does not exist: 'dogs'" in wrong.stderr
    assert "2 documents deleted; the store has 2" in run("store", "delete", store, "cats", "plain").stderr
    assert [hit["id"] for hit in hits(run("store", "search", store, "cat", "-k", "9", "--json"))] != []
    for given in ((), ("cats", "--where", "lang=en")):
        assert run("store", "delete", store, *given).exit_code == 2


def test_a_store_is_searched_with_the_model_that_it_serves(
    run: Run, rows: Path, embedder: Path, tmp_path: Path
) -> None:
    store = str(tmp_path / "later.db")
    assert run("store", "add", store, str(rows)).exit_code == 0
    early = run("store", "search", store, "a cat")
    assert early.exit_code == 2 and "have no vectors yet; run `weft migrate STORE --to MODEL`" in early.stderr
    cut = run("store", "add", store, str(rows), "--chunk-tokens", "20")
    assert cut.exit_code == 2 and "since the store has no model; give a model (--model)" in cut.stderr
    assert run("migrate", store, "--to", str(embedder)).exit_code == 0
    assert hits(run("store", "search", store, ROWS["plain"][0], "--json"))[0]["id"] == "plain"
    shutil.move(embedder, tmp_path / "moved")
    try:
        gone = run("store", "search", store, "a cat")
        assert gone.exit_code == 2 and "does not exist any more; give its new path with --model" in gone.stderr
        assert run("store", "search", store, "a cat", "--model", str(tmp_path / "moved")).exit_code == 0
    finally:
        shutil.move(tmp_path / "moved", embedder)


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("nowhere.db", 2, "nowhere.db does not exist; create a store with `weft store add`"),
        ("rows.jsonl", 1, "is not a SQLite file"),
        ("embedded.sqlite", 1, "is not a weft store"),
        ("embedded.sqlite", 1, "create a store with `weft store add`"),
    ],
)
def test_what_is_no_store_is_said(run: Run, rows: Path, place: str, code: int, said: str) -> None:
    with closing(sqlite3.connect(rows.parent / "embedded.sqlite")) as made:  # as `weft embed --output` names its tables
        made.execute("CREATE TABLE vectors (embedding BLOB)")
    result = run("store", "search", str(rows.parent / place), "a")
    assert result.exit_code == code and said in result.stderr


def test_an_index_s_search_points_to_the_store_s(run: Run, store: str) -> None:
    result = run("search", store, "a cat")
    assert result.exit_code == 2 and f"run: weft store search {store}" in result.stderr
    secret = run("search", "postgresql://weft:s3cret@host/notes", "a cat")
    assert secret.exit_code == 2 and "weft store search" in secret.stderr and "s3cret" not in secret.stderr
