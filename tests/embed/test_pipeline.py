"""Files become files of vectors, row for row; a run that was stopped anywhere ends in the same bytes."""

import csv
import itertools
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft.embed import EmbedInterrupted
from weft.embed.pipeline import Chunking, embed_file, open_source, run, spool
from weft.embed.pipeline.folder import spans
from weft.errors import BusyError, FormatError, InputError, NotFoundError, TooLongError

ROWS = [{"text": f"the cat {i} sat", "n": i, "tag": None if i % 3 else f"é{i}"} for i in range(50)]
ENDINGS = ("npy", "jsonl", "txt", "sqlite", "db")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of eight rows."""
    monkeypatch.setattr(run, "BATCH_ROWS", 8)


def vectors_of(path: Path) -> np.ndarray:
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix in (".sqlite", ".db"):
        with sqlite3.connect(path) as connection:
            rows = connection.execute("SELECT embedding FROM vectors ORDER BY id").fetchall()
        return np.stack([np.frombuffer(blob, "<f4") for (blob,) in rows])
    lines = path.read_text().splitlines()
    found = [json.loads(line)["embedding"] if path.suffix == ".jsonl" else line.split() for line in lines]
    return np.array(found, np.float32)


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_row_has_its_vector(tiny_embedder: weft.Embedder, source: Path, tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"out.{ending}"
    report = embed_file(tiny_embedder, open_source(source), target)
    assert (report.rows, report.resumed, report.dropped_texts) == (50, 0, 0)
    assert np.array_equal(vectors_of(target), tiny_embedder.encode([row["text"] for row in ROWS]))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([source.name, target.name])


def test_what_a_cache_had_is_counted(tiny_folder: Path, source: Path, tmp_path: Path) -> None:
    embedder = weft.Embedder(str(tiny_folder), cache="memory")
    counts = [embed_file(embedder, open_source(source), tmp_path / f"{i}.npy").cached for i in range(2)]
    assert counts == [0, 50]


def test_other_fields_and_the_fingerprint_are_kept(tiny_embedder: weft.Embedder, source: Path, tmp_path: Path) -> None:
    embed_file(tiny_embedder, open_source(source), tmp_path / "out.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [{k: v for k, v in line.items() if k != "embedding"} for line in lines] == ROWS
    embed_file(tiny_embedder, open_source(source), tmp_path / "out.db")
    with sqlite3.connect(tmp_path / "out.db") as connection:
        about = dict(connection.execute("SELECT name, value FROM about"))
        rows = connection.execute("SELECT id, text, fields FROM vectors ORDER BY id").fetchall()
    assert about["fingerprint"] == str(tiny_embedder.fingerprint) and about["dimension"] == 24
    assert [{"text": text, **json.loads(fields)} for _, text, fields in rows] == ROWS


class Stopped(BaseException):
    """As a kill is: nothing that catches errors catches it."""


def stopping(embedder: weft.Embedder, calls: int, error: Callable[[], BaseException], monkeypatch: Any) -> None:
    real, made = embedder.embed, []

    def embed(*arguments: Any, **options: Any) -> Any:
        if len(made) == calls:
            raise error()
        made.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(embedder, "embed", embed)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("calls", [0, 1, 6])
@pytest.mark.usefixtures("small")
def test_a_stopped_run_goes_on_and_ends_in_the_same_bytes(
    tiny_folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, calls: int
) -> None:
    embedder = weft.Embedder(str(tiny_folder), threads=1)
    whole, target = tmp_path / f"whole.{ending}", tmp_path / f"out.{ending}"
    embed_file(embedder, open_source(source), whole)
    with monkeypatch.context() as patch:
        stopping(embedder, calls, Stopped, patch)
        with pytest.raises(Stopped):
            embed_file(embedder, open_source(source), target)
    assert not target.exists() and (tmp_path / f"out.{ending}.part").exists() == bool(calls)
    (tmp_path / f"out.{ending}.part").mkdir(exist_ok=True)  # as a kill leaves it, that nothing cleans up after
    with open(tmp_path / f"out.{ending}.part" / "vectors", "ab") as file:
        file.write(b"half a vector that nobody counted")
    report = embed_file(weft.Embedder(str(tiny_folder), threads=1), open_source(source), target)
    assert (report.rows, report.resumed) == (50, 8 * calls) and target.read_bytes() == whole.read_bytes()


@pytest.mark.usefixtures("small")
def test_an_interrupt_keeps_part_of_a_batch(
    tiny_folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, target = weft.Embedder(str(tiny_folder), threads=1), tmp_path / "out.npy"
    done = embedder.embed([row["text"] for row in ROWS[16:19]])
    with monkeypatch.context() as patch:
        stopping(embedder, 2, lambda: EmbedInterrupted(done), patch)
        with pytest.raises(KeyboardInterrupt):
            embed_file(embedder, open_source(source), target)
    assert embed_file(embedder, open_source(source), target).resumed == 19
    assert np.array_equal(np.load(target), embedder.encode([row["text"] for row in ROWS]))


@pytest.mark.usefixtures("small")
def test_a_run_with_other_settings_is_not_mixed_in(
    tiny_folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder, target = weft.Embedder(str(tiny_folder)), tmp_path / "out.npy"
    with monkeypatch.context() as patch:
        stopping(embedder, 2, Stopped, patch)
        with pytest.raises(Stopped):
            embed_file(embedder, open_source(source), target)
    with pytest.raises(InputError, match="another fingerprint"):
        embed_file(weft.Embedder(str(tiny_folder), compute="int8"), open_source(source), target)
    with pytest.raises(InputError, match="another prompt_name"):
        embed_file(embedder, open_source(source), target, prompt_name="query")
    (tmp_path / "other.jsonl").write_text(json.dumps({"text": "a"}) + "\n")
    with pytest.raises(InputError, match="another source"):
        embed_file(embedder, open_source(tmp_path / "other.jsonl"), target)
    assert embed_file(embedder, open_source(tmp_path / "other.jsonl"), target, restart=True).rows == 1


def test_a_source_that_changes_while_it_is_read_is_refused(
    tiny_folder: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = weft.Embedder(str(tiny_folder))
    real = embedder.embed

    def embed(*arguments: Any, **options: Any) -> Any:
        with open(source, "a") as file:
            file.write("\n")
        return real(*arguments, **options)

    monkeypatch.setattr(embedder, "embed", embed)
    with pytest.raises(InputError, match="changed while it was read"):
        embed_file(embedder, open_source(source), tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("ending", ["jsonl", "sqlite", "parquet"])
@pytest.mark.parametrize("kind", ["txt", "parquet"])
def test_a_source_that_changes_while_its_rows_are_written_is_refused(
    tiny_embedder: weft.Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ending: str
) -> None:
    """Its texts would stand beside the vectors of others."""
    source, real = tmp_path / f"in.{kind}", spool.Spool.records

    def write(*texts: str) -> None:
        if kind == "txt":
            source.with_suffix(".new").write_text("".join(f"{text}\n" for text in texts))
        else:
            parquet.write_table(arrow.table({"text": texts}), source.with_suffix(".new"))
        source.with_suffix(".new").replace(source)

    def records(*arguments: Any) -> np.ndarray:
        write("the red cat", "the red dog")
        return real(*arguments)

    if "parquet" in (kind, ending):
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed; pip install weft-engine[parquet]")
        parquet = pytest.importorskip("pyarrow.parquet")
    write("the cat", "the dog")
    monkeypatch.setattr(spool.Spool, "records", records)
    with pytest.raises(InputError, match="changed while it was read"):
        embed_file(tiny_embedder, source, tmp_path / f"out.{ending}")
    assert not (tmp_path / f"out.{ending}").exists()


def test_two_runs_do_not_share_an_output(tmp_path: Path) -> None:
    with spool.Spool(tmp_path / "a.part", {}, np.dtype("<f4")), pytest.raises(BusyError, match="another run"):
        spool.Spool(tmp_path / "a.part", {}, np.dtype("<f4"))


@pytest.mark.parametrize(
    "state", ["", "{}", "[]", '{"settings": {}, "rows": -1, "dropped_texts": 0, "dropped_tokens": 0}']
)
def test_a_damaged_state_is_told(tmp_path: Path, state: str) -> None:
    (tmp_path / "a.part").mkdir()
    (tmp_path / "a.part" / "state.json").write_text(state)
    with pytest.raises(FormatError, match="--restart"):
        spool.Spool(tmp_path / "a.part", {}, np.dtype("<f4"))


def test_csv_and_lines_are_read(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    texts = ["the cat", 'a "quoted", text', "two\nlines", "x" * 200_000]
    with open(tmp_path / "in.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "body"), *enumerate(texts)])
    rows = list(open_source(tmp_path / "in.csv", field="body").rows())
    assert [row["body"] for row in rows] == texts and [row["id"] for row in rows] == ["0", "1", "2", "3"]
    assert list(open_source(tmp_path / "in.csv", field="body").rows(3)) == rows[3:]
    (tmp_path / "in.txt").write_bytes("\ufeffone\r\n\ntwo\u2028three\x0bfour".encode())
    assert [row["text"] for row in open_source(tmp_path / "in.txt").rows()] == ["one", "", "two\u2028three\x0bfour"]
    (tmp_path / "in.tsv").write_text("text\tn\na\t1\n")
    assert list(open_source(tmp_path / "in.tsv").rows()) == [{"text": "a", "n": "1"}]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.csv", b"text,n\na\n", "line 2 has more or fewer values"),
        ("a.csv", b"text,n\na,1,2\n", "line 2 has more or fewer values"),
        ("a.csv", b"body\na\n", "field 'text'"),
        ("a.csv", b'text\n"a', "not CSV"),
        ("a.csv", b"text\n\xff\n", "not UTF-8"),
        ("a.txt", b"fine\n\xff\n", "line 2 is not UTF-8"),
        ("a.jsonl", b"{\n", "line 1 is not JSON"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(open_source(tmp_path / name).rows())
    with pytest.raises(NotFoundError):
        list(open_source(tmp_path / "missing.csv").rows())


def test_a_text_that_is_too_long_is_named_by_its_row(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\n" + "the cat " * 99)
    with pytest.raises(TooLongError, match="row 3"):
        embed_file(tiny_embedder, open_source(tmp_path / "in.txt"), tmp_path / "out.npy")
    report = embed_file(tiny_embedder, open_source(tmp_path / "in.txt"), tmp_path / "cut.npy", truncate="head")
    assert report.dropped_texts == 1 and report.dropped_tokens > 100


@pytest.mark.parametrize("dtype, kind", [("f16", np.float16), ("int8", np.int8), ("binary", np.uint8)])
def test_smaller_numbers_are_those_of_embed(
    tiny_embedder: weft.Embedder, source: Path, tmp_path: Path, dtype: str, kind: type
) -> None:
    embed_file(tiny_embedder, open_source(source), tmp_path / "out.npy", output_dtype=dtype)
    made = tiny_embedder.embed([row["text"] for row in ROWS], output_dtype=dtype)
    found = np.load(tmp_path / "out.npy")
    assert found.dtype == kind and np.array_equal(found, made.vectors)
    if made.scales is not None:
        embed_file(tiny_embedder, open_source(source), tmp_path / "out.jsonl", output_dtype=dtype)
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert np.array_equal(np.array([line["scale"] for line in lines], np.float32), made.scales)


def test_a_folder_is_cut_into_chunks_that_overlap(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    words = " ".join(f"the cat {i} sat on one mat" for i in range(60))
    (notes / "b.md").write_text(words)
    (notes / "deep" / "a.txt").write_text("a short one")
    (notes / "picture.png").write_bytes(b"\x89PNG\0\0")
    (notes / ".hidden").write_text("nobody sees this")
    (notes / "empty.txt").write_text("  \n ")
    folder = open_source(notes, embedder=tiny_embedder, chunking=Chunking(24, 8))
    rows = list(folder.rows())
    assert folder.left_out == {"picture.png": "not text", ".hidden": "hidden", "empty.txt": "empty"}
    assert [row["path"] for row in rows[-1:]] == ["deep/a.txt"]
    chunks = [row for row in rows if row["path"] == "b.md"]
    assert all(row["text"] == words[row["start"] : row["end"]] for row in chunks)
    assert chunks[0]["start"] == 0 and chunks[-1]["end"] == len(words)
    assert all(b["start"] < a["end"] <= b["end"] for a, b in itertools.pairwise(chunks))  # nothing is left out
    assert all(words[row["end"] : row["end"] + 1] in ("", " ") for row in chunks)  # no word is cut
    sizes = [len(tiny_embedder.tokenizer.encode(row["text"], add_special=False)) for row in chunks]
    assert max(sizes) <= 24 and min(sizes[:-1]) >= 12
    report = embed_file(tiny_embedder, folder, tmp_path / "notes.npy", truncate="chunk")
    assert report.rows == len(rows) == len(np.load(tmp_path / "notes.npy"))


def test_links_of_a_folder_are_named(tiny_embedder: weft.Embedder, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "deep").mkdir(parents=True)
    (notes / "deep" / "a.txt").write_text("a short one")
    (notes / "b.txt").symlink_to("deep/a.txt")
    (notes / "other").symlink_to("deep")
    (notes / ".hidden").symlink_to("deep")
    folder = open_source(notes, embedder=tiny_embedder)
    assert [row["path"] for row in folder.rows()] == ["deep/a.txt"]
    assert folder.left_out == {"b.txt": "a link", "other": "a link", ".hidden": "hidden"}


def test_a_text_without_words_is_cut_all_the_same(tiny_embedder: weft.Embedder) -> None:
    text = "abc" * 300
    found = list(spans(text, tiny_embedder.tokenizer, Chunking(10, 3)))
    assert found[0][0] == 0 and found[-1][1] == len(text) and all(b[0] <= a[1] for a, b in itertools.pairwise(found))
    with pytest.raises(InputError, match="overlap must be 0 to 9"):
        Chunking(10, 10)


def test_parquet_keeps_columns_and_types(tiny_embedder: weft.Embedder, source: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip(
        "pyarrow.parquet", reason="pyarrow is not installed; pip install weft-engine[parquet]"
    )
    embed_file(tiny_embedder, open_source(source), tmp_path / "one.parquet")
    table = parquet.read_table(tmp_path / "one.parquet")
    assert table.select(["text", "n", "tag"]).to_pylist() == ROWS
    assert table.schema.metadata[b"weft.fingerprint"].decode() == str(tiny_embedder.fingerprint)
    expected = tiny_embedder.encode([row["text"] for row in ROWS])
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), expected)
    plain = table.select(["text", "n"])
    parquet.write_table(plain, tmp_path / "plain.parquet", row_group_size=7)
    rows = open_source(tmp_path / "plain.parquet")
    assert [row["n"] for row in rows.rows(23)] == list(range(23, 50))
    embed_file(tiny_embedder, rows, tmp_path / "two.parquet", output_dtype="int8")
    again = parquet.read_table(tmp_path / "two.parquet")
    assert again.column_names == ["text", "n", "embedding", "scale"] and again.schema.field("n") == plain.schema.field(
        "n"
    )
    with pytest.raises(InputError, match="already"):
        embed_file(tiny_embedder, open_source(tmp_path / "two.parquet"), tmp_path / "three.parquet")


def test_an_output_of_no_known_kind_is_refused_before_any_work(tiny_embedder: weft.Embedder, source: Path) -> None:
    with pytest.raises(InputError, match=r"\.npy"):
        embed_file(tiny_embedder, open_source(source), source.with_suffix(".xyz"))
    with pytest.raises(NotFoundError, match="not a folder"):
        embed_file(tiny_embedder, open_source(source), source.parent / "none" / "out.npy")
