"""A folder of notes becomes an index, and questions find the notes they are about."""

import json
import shutil
from pathlib import Path

import pytest
from running import Run
from tiny_st import write_st_folder

import weft

FILES = {"ROWS": "rows.jsonl", "EMBEDDED": "embedded.sqlite"}
NOTES = {
    "cats.txt": "the cat sat on the mat and the cat slept",
    "numbers.md": "one two three four five six seven",
    "deep/foxes.txt": "the quick brown fox jumps over the lazy dog",
}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with a row for every token: an index embeds texts of its own too."""
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model", vocab_size=240)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    for name, text in NOTES.items():
        path = tmp_path / "notes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "notes"


@pytest.fixture
def index(run: Run, embedder: Path, notes: Path, tmp_path: Path) -> Path:
    place = tmp_path / "notes.index"
    result = run("index", "build", str(notes), "-m", str(embedder), "--output", str(place), "--chunk-tokens", "16")
    assert result.exit_code == 0, result.stderr
    return place


def test_the_nearest_chunk_comes_first(run: Run, index: Path, embedder: Path) -> None:
    result = run("search", str(index), NOTES["numbers.md"], "-k", "2", "--json")
    assert result.exit_code == 0, result.stderr
    hits = [json.loads(line) for line in result.stdout.splitlines()]
    library = weft.Embedder(str(embedder))
    with_texts = weft.Index.open(index, embedder=library).search_texts(NOTES["numbers.md"], 2)
    assert [hit["id"] for hit in hits] == [hit.id for hit in with_texts] and hits[0]["score"] >= hits[1]["score"]
    assert all(hit["text"] in NOTES[hit["metadata"]["path"]] for hit in hits)
    shown = run("search", str(index), "one two three").stdout
    assert "numbers.md:1" in shown and shown.count("\n") >= 2


def test_vectors_are_the_documents(run: Run, index: Path, embedder: Path) -> None:
    opened = weft.Index.open(index)
    library = weft.Embedder(str(embedder), truncate="chunk")
    for id in opened.ids:
        text = opened.get(id).text
        assert text and abs(float(opened.vector(id) @ library.encode_document(text)) - 1) <= 1e-6
    found = json.loads(run("index", "show", str(index), "--json").stdout)
    assert found["count"] == len(opened.ids) and found["model"] == str(embedder)
    assert found["fingerprint"] == library.info["fingerprint"]


def test_another_model_is_refused(run: Run, index: Path, tmp_path: Path) -> None:
    other = write_st_folder(tmp_path / "other", vocab_size=240)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.5}))
    result = run("search", str(index), "a cat", "-m", str(other))
    assert (
        result.exit_code != 0
        and result.stdout == ""
        and "another model than the one that built the index" in result.stderr
    )
    modules = json.loads((other / "modules.json").read_text())
    (other / "modules.json").write_text(json.dumps([module for module in modules if "Dense" not in module["path"]]))
    assert weft.Embedder(str(other)).dimension == 36  # of which the index's 24 cannot be cut
    result = run("search", str(index), "a cat", "-m", str(other))
    assert result.exit_code == 2 and "is not the model of notes.index" in result.stderr


def test_what_an_index_says_of_its_model_makes_nobody_connect(
    run: Run, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEFT_OFFLINE")
    (index / "embedder.json").write_text(json.dumps({"model": "someone/else"}))
    monkeypatch.setattr("socket.create_connection", lambda *a, **k: pytest.fail("a connection"))
    monkeypatch.setattr("socket.getaddrinfo", lambda *a, **k: pytest.fail("a name was looked up"))
    assert run("search", str(index), "a cat").exit_code != 0
    for damaged in ("", "[]", "{}"):
        (index / "embedder.json").write_text(damaged)
        result = run("search", str(index), "a cat")
        assert result.exit_code == 1 and "--model" in result.stderr


def test_rows_of_a_file_keep_their_ids(run: Run, embedder: Path, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"id": f"n{i}", "body": f"the cat {i}", "n": i}) + "\n" for i in range(5)))
    place = tmp_path / "rows.index"
    result = run("embed", "-m", str(embedder), "--input", str(source), "--field", "body", "--output", str(place))
    assert result.exit_code == 0, result.stderr
    hits = weft.Index.open(place, embedder=weft.Embedder(str(embedder))).search_texts("the cat 3", 5, where={"n": 3})
    assert [(hit.id, hit.text) for hit in hits] == [("n3", "the cat 3")]


@pytest.fixture
def rows(run: Run, embedder: Path, tmp_path: Path) -> Path:
    """An index of rows whose fields have the names of what a search gives, made with other options than the default."""
    source = tmp_path / "rows.jsonl"
    fields = [{"id": f"n{i}", "body": f"the cat {i}", "n": i, "score": 42, "text": "mine"} for i in range(5)]
    source.write_text("".join(json.dumps(row) + "\n" for row in fields))
    place = tmp_path / "rows.index"
    options = ("--field", "body", "--compute", "int8", "--no-normalise")
    result = run("embed", "-m", str(embedder), "--input", str(source), "--output", str(place), *options)
    assert result.exit_code == 0, result.stderr
    return place


def test_a_row_s_fields_do_not_hide_the_score(run: Run, rows: Path) -> None:
    hits = [json.loads(line) for line in run("search", str(rows), "the cat 3", "--json").stdout.splitlines()]
    assert len(hits) == 5 and all(set(hit) == {"id", "score", "text", "metadata", "match"} for hit in hits)
    assert all(hit["score"] != 42 and hit["text"].startswith("the cat") for hit in hits)
    assert all(hit["metadata"]["score"] == 42 and hit["metadata"]["text"] == "mine" for hit in hits)


def test_a_model_that_was_moved_is_named_and_keeps_the_index_s_options(
    run: Run, rows: Path, embedder: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(embedder, tmp_path / "moved")
    before = run("search", str(rows), "the cat 3")
    after = run("search", str(rows), "the cat 3", "--model", str(moved))
    assert after.exit_code == 0 and after.stdout == before.stdout and "n3" in after.stdout, after.stderr


@pytest.mark.parametrize("command", ["embed", "index"])
def test_an_index_has_documents_whichever_command_made_it(
    run: Run, embedder: Path, tmp_path: Path, command: str
) -> None:
    source, place = tmp_path / "in.txt", tmp_path / "x.index"
    source.write_text("the cat sat\n")
    arguments = {"embed": ["embed", "-i", str(source)], "index": ["index", "build", str(source)]}[command]
    assert run(*arguments, "-m", str(embedder), "-o", str(place)).exit_code == 0
    opened, library = weft.Index.open(place), weft.Embedder(str(embedder))
    vector = opened.vector(opened.ids[0])
    assert abs(float(vector @ library.encode_document("the cat sat")) - 1) <= 1e-6
    assert float(vector @ library.encode("the cat sat")) < 0.9999


@pytest.mark.parametrize(
    "condition, ids",
    [("n=3", {"n3"}), ('n={"gte": 3}', {"n3", "n4"}), ("text=mine", {"n0", "n1", "n2", "n3", "n4"}), ("n=9", set())],
)
def test_a_condition_leaves_rows_out(run: Run, rows: Path, condition: str, ids: set[str]) -> None:
    result = run("search", str(rows), "the cat", "--where", condition, "--json")
    assert result.exit_code == 0 and {json.loads(line)["id"] for line in result.stdout.splitlines()} == ids


@pytest.mark.parametrize(
    "conditions, ids",
    [
        (['n={"gte": 1}', 'n={"lt": 3}'], {"n1", "n2"}),
        (['n={"gte": 1}', 'n={"gte": 3}'], {"n3", "n4"}),
        (["n=3", 'n={"lt": 4}', "text=mine"], {"n3"}),
        (["n=3", "n=4"], set()),
        (["id=n1", "id=n2"], set()),
    ],
)
def test_every_condition_must_hold_though_several_are_on_one_field(
    run: Run, rows: Path, conditions: list[str], ids: set[str]
) -> None:
    given = [word for condition in conditions for word in ("--where", condition)]
    result = run("search", str(rows), "the cat", *given, "--json")
    assert result.exit_code == 0 and {json.loads(line)["id"] for line in result.stdout.splitlines()} == ids


@pytest.fixture
def table(run: Run, embedder: Path, tmp_path: Path) -> Path:
    """An index of a CSV file, whose numbers are texts."""
    source = tmp_path / "table.csv"
    years = [("a", "1999", "02139"), ("b", "2000", "1.10"), ("c", "2000.5", "1.1"), ("d", "20010", "x")]
    source.write_text("id,text,year,code\n" + "".join(f"{id},the cat,{year},{code}\n" for id, year, code in years))
    result = run("index", "build", str(source), "-m", str(embedder), "-o", str(tmp_path / "table.index"))
    assert result.exit_code == 0, result.stderr
    return tmp_path / "table.index"


@pytest.mark.parametrize(
    "condition, ids",
    [
        ('year={"gte": 2000}', "bcd"),
        ('year={"gte": 2000, "lt": 2001}', "bc"),
        ("year=2000", "b"),
        ('year={"eq": 2000}', "b"),
        ('year={"in": [1999, 2000]}', "ab"),
        ('year={"ne": 2000}', "acd"),
        ('year={"nin": [1999, 2000]}', "cd"),
        ('year={"lt": "2"}', "a"),
        ("code=1.10", "b"),
        ("code=02139", "a"),
        ('code={"lt": 2}', "bc"),
    ],
)
def test_numbers_of_a_csv_file_are_numbers_to_conditions(run: Run, table: Path, condition: str, ids: str) -> None:
    result = run("search", str(table), "the cat", "--where", condition, "--json")
    assert {json.loads(line)["id"] for line in result.stdout.splitlines()} == set(ids), result.stderr


@pytest.mark.parametrize(
    "condition, told",
    [
        ("yaer=2000", "no results: no row has a field 'yaer'; the fields are 'id', 'year', 'code'"),
        ('id={"gte": 2000}', "no results: 'id' is text in this index, but 2000 is a number"),
        ("year=1850", "no results: no row matches --where\n"),
    ],
)
def test_what_no_row_can_be_is_told(run: Run, table: Path, condition: str, told: str) -> None:
    result = run("search", str(table), "the cat", "--where", condition)
    assert result.exit_code == 0 and result.stdout == "" and told in result.stderr


@pytest.mark.parametrize(
    "condition, told",
    [
        ("year>=2000", 'write a range as \'year={"gte": 2000, "lt": 2010}\''),
        ("year<2000", "write a range as 'year="),
        ("year!=2000", "write a range as 'year="),
        ('year={"gte":2000', "is not JSON; write a condition as"),
        ("year={}", "empty condition"),
        ('year={"like": 1}', "got 'like'"),
        ('year={"in": 3}', "must have a list of values"),
    ],
)
def test_a_condition_that_is_none_is_a_mistake(run: Run, table: Path, condition: str, told: str) -> None:
    result = run("search", str(table), "the cat", "--where", condition)
    assert result.exit_code == 2 and told in result.stderr


def test_what_cannot_be_searched_says_what_to_do(run: Run, notes: Path, index: Path, tmp_path: Path) -> None:
    result = run("search", str(notes), "a cat")
    assert result.exit_code == 2 and f"weft index build {notes}" in result.stderr
    result = run("search", str(index), " ")
    assert result.exit_code == 2 and "the query is empty" in result.stderr
    result = run("search", str(index), "a cat", "--where", "path")
    assert result.exit_code == 2 and "is not NAME=VALUE" in result.stderr
    (index / "embedder.json").write_text(json.dumps({"model": "all-MiniLM-L6-v2"}))
    result = run("search", str(index), "a cat")
    assert result.exit_code == 2 and "weft pull all-MiniLM-L6-v2" in result.stderr


def test_files_that_are_left_out_are_named(run: Run, embedder: Path, notes: Path, tmp_path: Path) -> None:
    (notes / "old.txt").write_bytes("na\xefve".encode("latin-1"))
    result = run("index", "build", str(notes), "-m", str(embedder), "-o", str(tmp_path / "x.index"))
    assert result.exit_code == 0 and "left out: old.txt (not UTF-8)" in result.stderr, result.stderr


def test_every_command_shows_how_it_is_called(run: Run) -> None:
    for name in (["embed"], ["search"], ["index"], ["index", "build"], ["index", "show"]):
        assert f"weft {' '.join(name)} " in run(*name, "--help").stdout.split("Examples:")[1]


def test_an_index_is_verified_with_its_model(run: Run, index: Path) -> None:
    result = run("verify", str(index))
    assert result.exit_code == 0 and "checksums right" in result.stdout and "canary texts" in result.stdout
    told = json.loads(run("verify", str(index), "--json").stdout)
    assert told["passed"] is True and told["canaries"] > 0 and told["fingerprint"].startswith("weft2:")
    damaged = max((path for path in index.iterdir() if path.suffix == ".bin"), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    result = run("verify", str(index))
    assert result.exit_code == 1 and "is damaged" in result.stderr


def test_an_index_of_python_is_verified_with_the_model_that_is_named(run: Run, embedder: Path, tmp_path: Path) -> None:
    made = weft.Index.from_embedder(weft.Embedder(str(embedder)))
    made.add_texts(["a"], ["the cat sat"])
    made.save(tmp_path / "py.index")
    silent = run("verify", str(tmp_path / "py.index"))
    assert silent.exit_code == 2 and "name it with --model" in silent.stderr
    result = run("verify", str(tmp_path / "py.index"), "--model", str(embedder))
    assert result.exit_code == 0 and "1 row, checksums right" in result.stdout, result.stderr
    for wrong in (("--compute", "f32"), ("--golden", "all-MiniLM-L6-v2")):
        result = run("verify", str(tmp_path / "py.index"), *wrong)
        assert result.exit_code == 2 and f"{wrong[0]} applies to a model" in result.stderr
    result = run("verify", str(embedder), "--model", str(embedder))
    assert result.exit_code == 2 and "--model applies to an index" in result.stderr


def test_the_graph_of_an_index_is_shown_and_verified(run: Run, index: Path) -> None:
    pytest.importorskip("usearch", reason="usearch is not installed: pip install weft-engine[hnsw]")
    assert json.loads(run("index", "show", str(index), "--json").stdout)["graph"] is False
    weft.Index.open(index).save(index, graph=True)
    shown = json.loads(run("index", "show", str(index), "--json").stdout)
    assert shown["graph"] is True and "read_only" not in shown
    assert run("verify", str(index)).exit_code == 0
    graph = next(index.glob("graph-*.bin"))
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)
    result = run("verify", str(index))
    assert result.exit_code == 1 and f"{graph.name}] the file is damaged" in result.stderr


def test_a_group_of_commands_alone_shows_its_help(run: Run) -> None:
    for name in ("index", "store", "migrate"):
        result = run(name)
        assert result.exit_code == 0 and "Commands:\n" in result.stdout and "Examples:\n" in result.stdout


def test_an_index_of_a_server_s_vectors_is_searched_with_it(run: Run, server: str, notes: Path, tmp_path: Path) -> None:
    rows, place = tmp_path / "rows.jsonl", str(tmp_path / "rows.index")
    rows.write_text("".join(json.dumps({"id": f"r{n}", "text": "x" * n}) + "\n" for n in (1, 5, 90)))
    key = ("--base-url", server, "--api-key-env", "MY_KEY")
    built = run("index", "build", str(rows), "-m", "lengths", "-o", place, *key)
    assert built.exit_code == 0, built.stderr
    found = run("search", place, "1234567", "-k", "2", "--json", *key)
    assert found.exit_code == 0, found.stderr
    assert [json.loads(line)["id"] for line in found.stdout.splitlines()] == ["r5", "r90"]
    assert run("search", place, "1234567", "--model", "lengths", *key).exit_code == 0
    checked = run("verify", place, *key)
    assert checked.exit_code == 0 and "3 rows, checksums right" in checked.stdout
    assert json.loads(run("index", "show", place, "--json").stdout)["model"] == "lengths"
    silent, other = run("search", place, "a"), run("search", place, "a", "--base-url", "http://127.0.0.1:1/v1")
    assert silent.exit_code == 2 and f"give --base-url {server}" in silent.stderr
    assert other.exit_code == 2 and f"base_url must be {server}" in other.stderr
    folder = run("index", "build", str(notes), "-m", "lengths", "-o", place, *key)
    assert folder.exit_code == 2 and "no tokenizer" in folder.stderr


def test_a_server_is_not_asked_about_a_model_of_this_machine(run: Run, index: Path, server: str) -> None:
    result = run("search", str(index), "a cat", "--base-url", server)
    assert result.exit_code == 2 and "a local model" in result.stderr
    tried = run("verify", "lengths", "--base-url", server)
    assert tried.exit_code == 2 and "cannot be verified" in tried.stderr


@pytest.mark.parametrize("arguments", [("nowhere.db", "a"), ("nowhere.index", "a", "--where", "x=1")])
def test_what_is_not_there_is_said(run: Run, arguments: tuple[str, ...]) -> None:
    result = run("search", *arguments)
    assert result.exit_code == 2 and "does not exist; build an index with `weft index build`" in result.stderr
