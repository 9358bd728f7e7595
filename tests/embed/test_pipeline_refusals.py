"""What cannot work is refused before anything is embedded, by name; what lies there already is not lost."""

import json
import os
import sqlite3
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.embed.pipeline import Chunking, embed_file, open_source, sources, spool
from weft.errors import BusyError, FormatError, InputError, NotFoundError, TooLongError, WeftError

RECORD = np.dtype("<f4")


@pytest.fixture
def untouched(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> weft.Embedder:
    """An embedder that must not be asked for a vector."""
    embedder = weft.Embedder(str(tiny_folder), threads=1)
    monkeypatch.setattr(embedder, "embed", lambda *a, **k: pytest.fail("something was embedded"))
    return embedder


def lines(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def append(made: spool.Spool, *numbers: int) -> None:
    """Rows with these numbers as vectors; the digest of each is its number."""
    made.append(np.array(numbers, RECORD), [n.to_bytes(16, "little") for n in numbers], np.zeros(len(numbers), int))


def filled(place: Path, rows: int, **settings: Any) -> None:
    with spool.Spool(place, settings, RECORD) as made:
        append(made, *range(rows))


def test_a_restart_leaves_a_run_that_is_alive_alone(tmp_path: Path) -> None:
    place = tmp_path / "a.part"
    with spool.Spool(place, {}, RECORD) as alive:
        append(alive, *range(5))
        with pytest.raises(BusyError, match="another run"):
            spool.Spool(place, {}, RECORD, restart=True)
        append(alive, *range(5, 9))
        assert np.concatenate(list(alive.batches(4))).tolist() == list(range(9))
    with spool.Spool(place, {}, RECORD, restart=True) as again:
        assert again.rows == 0 and (place / "vectors").stat().st_size == 0


def test_vectors_are_read_from_the_file_that_was_locked(tmp_path: Path) -> None:
    with spool.Spool(tmp_path / "a.part", {}, RECORD) as alive:
        append(alive, *range(5))
        (tmp_path / "a.part" / "vectors").unlink()
        (tmp_path / "a.part" / "vectors").write_bytes(b"of somebody else")
        assert alive.records(0, 5).tolist() == [0, 1, 2, 3, 4]
        with pytest.raises(FormatError, match="shorter"):
            alive.records(4, 2)


def test_what_is_not_ours_stays_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.part").mkdir()
    (tmp_path / "a.part" / "letters.txt").write_text("dear")
    with spool.Spool(tmp_path / "a.part", {}, RECORD) as made:
        append(made, 0)
        made.remove()
    assert [path.name for path in (tmp_path / "a.part").iterdir()] == ["letters.txt"]


def test_what_changed_and_what_would_be_lost_is_said(tmp_path: Path) -> None:
    filled(tmp_path / "a.part", 7, truncate="head", prompt_name=None, source={"path": "/a/x.txt", "bytes": 1})
    now = {"truncate": "tail", "prompt_name": "query", "source": {"path": "/a/y.txt", "bytes": 2}}
    with pytest.raises(
        InputError, match=r"7 rows .* truncate \(head before, tail now\) and .*x.txt before, .*y.txt now"
    ):
        spool.Spool(tmp_path / "a.part", now, RECORD)


def test_the_advice_of_a_failed_run_can_be_followed(tiny_folder: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), threads=1)
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("the cat " * 99 + "\na\n")
    with pytest.raises(TooLongError, match=r"^\[in\.txt\] row 1 has .* --truncate head"):
        embed_file(embedder, source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]
    assert embed_file(embedder, source, target, truncate="head").rows == 2


def test_rows_that_fitted_are_kept_when_others_are_to_be_cut(tiny_folder: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), threads=1)
    source, target = tmp_path / "in.txt", tmp_path / "out.npy"
    source.write_text("the cat sat\n" * 2048 + "the cat " * 99 + "\n")
    with pytest.raises(TooLongError, match="row 2049"):
        embed_file(embedder, source, target)
    report = embed_file(embedder, source, target, truncate="head")
    assert 0 < report.resumed <= 2048 and (report.rows, report.dropped_texts) == (2049, 1)
    texts = source.read_text().splitlines()
    assert np.array_equal(np.load(target), embedder.encode(texts, truncate="head"))


@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "link.txt"])
def test_the_input_is_not_written_over(untouched: weft.Embedder, tmp_path: Path, name: str) -> None:
    source = lines(tmp_path / "in.txt", {"text": "a"})
    if name == "link.txt":
        (tmp_path / name).symlink_to(source)
    elif name != "in.txt":
        source = source.rename(tmp_path / name)
    before = source.read_bytes()
    with pytest.raises(InputError, match="the output is also the input"):
        embed_file(untouched, source, tmp_path / name)
    assert source.read_bytes() == before


def test_a_database_of_another_program_is_not_replaced(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    source, target = lines(tmp_path / "in.jsonl", {"text": "a"}), tmp_path / "notes.db"
    with sqlite3.connect(target) as connection:
        connection.execute("CREATE TABLE documents (id)")
    connection.close()
    for content in (target.read_bytes(), b"a letter"):
        target.write_bytes(content)
        with pytest.raises(InputError, match="was not written by weft embed"):
            embed_file(tiny_embedder, source, target)
        assert target.read_bytes() == content
    target.write_bytes(b"")
    for _ in range(2):  # what a run wrote, another may replace
        assert embed_file(tiny_embedder, source, target).rows == 1
    (tmp_path / "notes.db-wal").write_bytes(b"")
    with pytest.raises(InputError, match=r"notes\.db-wal; choose another"):
        embed_file(tiny_embedder, source, target)


def test_a_database_that_is_opened_during_the_run_is_not_replaced(
    tiny_embedder: weft.Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = lines(tmp_path / "in.jsonl", {"text": "a"}), tmp_path / "notes.db"
    with pytest.raises(InputError, match=r"notes\.db-wal"):
        embed_file(tiny_embedder, source, target, on_progress=lambda rows: (tmp_path / "notes.db-wal").touch())
    assert not target.exists()
    (tmp_path / "notes.db-wal").unlink()
    assert embed_file(tiny_embedder, source, target).resumed == 1


@pytest.mark.parametrize(
    "rows, target, said",
    [
        ([{"text": "a"}, {"text": "b", "embedding": 1}], "out.jsonl", "row 2 already has a field 'embedding'"),
        ([{"text": "a", "embedding": 1}], "out.parquet", "row 1 already has a field 'embedding'"),
        ([{"text": "a", "id": 5}, {"text": "b", "id": 5}], "out.index", "row 2 has the same id as row 1 .* got 5"),
        ([{"text": "a"}, {"text": "b", "id": 0}], "out.index", "row 2 has the same id as row 1 .* got 0"),
        ([{"text": "a"}, {"text": "b", "id": 2**70}], "out.index", "row 2 .* fit .*64 bits"),
        (
            [{"text": "a"}, {"title": "b", "body": "c"}],
            "out.npy",
            "line 2 has no field 'text'; its fields are 'title', 'body'",
        ),
        ([{"text": "a"}, {"text": 5}], "out.npy", "line 2 has no text in the field 'text': got 5"),
        ([{"text": "a"}, {"text": "b", "n": "\ud800"}], "out.npy", r"line 2 has half of a surrogate pair, \\ud800"),
        ([{"text": "a"}], "folder.npy", "is a folder"),
        ([{"text": "a"}], "other.index", "other files in it"),
        ([{"text": "a"}], "file.index", "an index is a folder"),
    ],
)
def test_a_row_or_a_target_that_cannot_work_is_told_at_once(
    untouched: weft.Embedder, tmp_path: Path, rows: list[dict[str, Any]], target: str, said: str
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    source = lines(tmp_path / "in.jsonl", *rows)
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "other.index").mkdir()
    (tmp_path / "other.index" / "a.txt").write_text("a")
    (tmp_path / "file.index").write_text("a")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=said):
        embed_file(untouched, source, tmp_path / target)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "name, dtype", [("a.index", "int8"), ("a.index", "binary"), ("a.txt", "int8"), ("a.npy", "f64")]
)
def test_numbers_that_a_target_has_no_place_for_are_told_at_once(
    untouched: weft.Embedder, tmp_path: Path, name: str, dtype: str
) -> None:
    with pytest.raises(InputError, match=dtype):
        embed_file(untouched, lines(tmp_path / "in.jsonl", {"text": "a"}), tmp_path / name, output_dtype=dtype)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_name_is_taken_only_where_the_output_has_it(
    tiny_embedder: weft.Embedder, tmp_path: Path, ending: str
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    source = lines(tmp_path / "in.jsonl", {"text": "a", "scale": 1})
    assert embed_file(tiny_embedder, source, tmp_path / f"out.{ending}").rows == 1
    with pytest.raises(InputError, match="row 1 already has a field 'scale'"):
        embed_file(tiny_embedder, source, tmp_path / f"int8.{ending}", output_dtype="int8")


def test_a_column_of_a_file_without_rows_is_not_there_twice(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    import pyarrow.parquet as parquet

    columns = {name: arrow.array([], arrow.string()) for name in ("text", "embedding")}
    parquet.write_table(arrow.table(columns), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="already has a field 'embedding'"):
        embed_file(tiny_embedder, tmp_path / "in.parquet", tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["in.txt", "in.jsonl", "in.csv", "in.md"])
def test_a_pipe_is_no_source(untouched: weft.Embedder, tmp_path: Path, name: str) -> None:
    """It is empty when it is read again, or waits for a writer for ever."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=rf"{name} is a pipe or a device, .*`-i -`"):
        embed_file(untouched, tmp_path / name, tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_source_that_ends_earlier_than_it_did_is_told(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    class Shrinking(sources.Source):
        times = 0

        def _rows(self) -> Iterator[dict[str, Any]]:
            self.times += 1
            return iter([{"text": "a"}] * (4 - self.times))

    (tmp_path / "in.txt").write_text("a\n")
    with pytest.raises(InputError, match="changed while it was read"):
        embed_file(tiny_embedder, Shrinking(tmp_path / "in.txt"), tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
@pytest.mark.parametrize("ending", ["npy", "jsonl", "txt", "parquet", "sqlite"])
def test_a_pipe_is_no_target_and_stays_one(untouched: weft.Embedder, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    source = lines(tmp_path / "in.jsonl", {"text": "a"})
    os.mkfifo(tmp_path / f"out.{ending}")
    os.mkfifo(tmp_path / "scaled.scales.npy")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InputError, match=r"out.* is a pipe, a device .*`-o -`"):
        embed_file(untouched, source, tmp_path / f"out.{ending}")
    with pytest.raises(InputError, match=r"scaled.* is a pipe"):
        embed_file(untouched, source, tmp_path / "scaled.npy", output_dtype="int8")
    assert (tmp_path / f"out.{ending}").is_fifo() and sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("ending", ["npy", "jsonl", "txt", "parquet", "sqlite"])
def test_an_output_is_written_through_a_link_and_keeps_its_mode(
    tiny_embedder: weft.Embedder, tmp_path: Path, ending: str
) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    source = lines(tmp_path / "in.jsonl", {"text": "a"})
    real, link = tmp_path / "real" / f"x.{ending}", tmp_path / f"out.{ending}"
    real.parent.mkdir()
    link.symlink_to(real)
    embed_file(tiny_embedder, source, link)
    real.chmod(0o600)
    first = real.stat()
    embed_file(tiny_embedder, source, link)
    second = real.stat()
    assert link.is_symlink() and [path.name for path in real.parent.iterdir()] == [real.name]
    assert second.st_mode == first.st_mode and second.st_ino != first.st_ino


def test_a_database_that_is_open_is_seen_through_a_link(untouched: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "x.db-wal").write_bytes(b"not played yet")
    (tmp_path / "out.db").symlink_to("real/x.db")
    with pytest.raises(InputError, match=r"there is x\.db-wal"):
        embed_file(untouched, lines(tmp_path / "in.jsonl", {"text": "a"}), tmp_path / "out.db")


def test_other_chunks_are_told_as_such(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("the cat sat on one mat")
    was, now = (
        open_source(tmp_path / "notes", embedder=tiny_embedder, chunking=Chunking(n, 2)).identity() for n in (10, 12)
    )
    filled(tmp_path / "out.npy.part", 3, source=was)
    with pytest.raises(InputError, match=r"chunks of \[10, 2\] tokens before, \[12, 2\] now"):
        spool.Spool(tmp_path / "out.npy.part", {"source": now}, RECORD)
    (tmp_path / "notes" / "a.txt").write_text("another text")
    later = open_source(tmp_path / "notes", embedder=tiny_embedder, chunking=Chunking(10, 2)).identity()
    with spool.Spool(tmp_path / "out.npy.part", {"source": later}, RECORD) as again:
        assert (again.rows, again.earlier) == (0, 3)  # the same chunks of a folder that has changed


def test_the_scales_of_a_matrix_lie_beside_it(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\na dog\n")
    embed_file(tiny_embedder, tmp_path / "in.txt", tmp_path / "out.npy", output_dtype="int8")
    wide = np.load(tmp_path / "out.npy") / np.load(tmp_path / "out.scales.npy")[:, None]
    assert np.abs(wide - tiny_embedder.encode(["the cat", "a dog"])).max() < 0.01


def test_numbers_of_any_size_and_fields_of_any_type_are_written(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed; pip install weft-engine[parquet]"
    )
    rows = [
        {"text": "a", "wide": 2**70, "mixed": 1.5, "near": 1, "large": 2**60, "odd": float("nan")},
        {"text": "b", "wide": 1, "mixed": 9007199254740993, "near": 2.5, "large": 3, "odd": [1, float("inf")]},
    ]
    source = lines(tmp_path / "in.jsonl", *rows)
    embed_file(tiny_embedder, source, tmp_path / "out.parquet")
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table["wide"].to_pylist() == [str(2**70), "1"] and table["large"].to_pylist() == [2**60, 3]
    assert table["mixed"].to_pylist() == ["1.5", "9007199254740993"] and table["near"].to_pylist() == [1.0, 2.5]
    embed_file(tiny_embedder, source, tmp_path / "out.jsonl")
    found = [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["odd"] for row in found] == [None, [1, "inf"]] and found[0]["wide"] == 2**70
    empty = lines(tmp_path / "empty.jsonl")
    embed_file(tiny_embedder, empty, tmp_path / "empty.parquet")
    assert parquet.read_table(tmp_path / "empty.parquet").column_names == ["text", "embedding"]


def test_columns_of_every_type_come_through(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
    import pyarrow.parquet as parquet

    moment = datetime(2024, 5, 6, 7, 8, 9)
    table = arrow.table(
        {
            "text": ["a", "b", "c"],
            "when": arrow.array([moment] * 3, arrow.timestamp("us")),
            "fine": arrow.array([1, 2, None], arrow.time64("ns")),
            "far": arrow.array([10_000_000, 1, 2], arrow.date32()),
            "exact": [Decimal("1.50")] * 3,
            "kind": arrow.array(["x", "y", "x"]).dictionary_encode(),
            "in": [{"when": moment, "n": float("nan")}] * 3,
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    embed_file(tiny_embedder, tmp_path / "in.parquet", tmp_path / "out.parquet")
    made = parquet.read_table(tmp_path / "out.parquet")
    for name in set(table.column_names) - {"in"}:
        assert made[name].equals(table[name]) and made.schema.field(name).type == table.schema.field(name).type
    for target in ("out.jsonl", "out.sqlite"):
        embed_file(tiny_embedder, tmp_path / "in.parquet", tmp_path / target)
    row = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert (row["when"], row["fine"], row["far"]) == (str(moment), "00:00:00.000000001", "29349-01-26")
    assert row["in"] == {"when": str(moment), "n": None} and row["exact"] == "1.50"
    inside = arrow.array([[1]], arrow.list_(arrow.int64())).cast(arrow.list_(arrow.time64("ns")))
    parquet.write_table(arrow.table({"text": ["a"], "deep": inside}), tmp_path / "deep.parquet")
    with pytest.raises(InputError, match="the column 'deep'"):
        embed_file(tiny_embedder, tmp_path / "deep.parquet", tmp_path / "deep.jsonl")


def test_a_csv_of_pandas_is_read_and_names_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "pandas.csv").write_text(",text,n\n0,hello,1\n")
    assert list(open_source(tmp_path / "pandas.csv").rows()) == [{"": "0", "text": "hello", "n": "1"}]
    (tmp_path / "twice.csv").write_text("text,text\nhello,world\n")
    with pytest.raises(InputError, match="two columns named 'text'"):
        list(open_source(tmp_path / "twice.csv").rows())
    (tmp_path / "other.csv").write_text("title,body\na,b\n")
    with pytest.raises(InputError, match=r"no field 'text'; its fields are 'title', 'body'; .* --field"):
        list(open_source(tmp_path / "other.csv").rows())


def test_files_that_are_not_lines_are_not_read_as_lines(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"body": "a cat"}\n')
    for name, said in (("a.json", r"\.jsonl"), ("a.pdf", "extract its text"), ("a.TXT.gz", "unpack")):
        with pytest.raises(InputError, match=f"{name} is not a file of texts; .*{said}"):
            open_source(tmp_path / name)
    assert list(open_source(tmp_path / "a.json", field="body").rows()) == [{"body": "a cat"}]
    (tmp_path / "note.md").write_text("# The cat\n\nsat on\nthe mat\n")
    rows = list(open_source(tmp_path / "note.md", embedder=tiny_embedder).rows())
    assert [(row["path"], row["chunk"], row["text"]) for row in rows] == [
        ("note.md", 0, "# The cat\n\nsat on\nthe mat")
    ]


def test_what_python_gives_is_checked(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "note.md"):
        with pytest.raises(InputError, match="needs an embedder"):
            open_source(path)
    with pytest.raises(InputError, match="chunk_tokens must be a whole number"):
        Chunking(10.5, 2)  # type: ignore[arg-type]
    (tmp_path / "out.npy.part").write_text("a file where the spool would lie")
    (tmp_path / "in.txt").write_text("a\n")
    with pytest.raises(WeftError, match=r"cannot write .*out\.npy\.part"):
        embed_file(tiny_embedder, str(tmp_path / "in.txt"), str(tmp_path / "out.npy"))
    with pytest.raises(NotFoundError, match="cannot read"):
        embed_file(tiny_embedder, tmp_path / "none.txt", tmp_path / "none.npy")
    assert not (tmp_path / "none.npy.part").exists()
