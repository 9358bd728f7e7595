"""A build that is run again keeps what is still valid, embeds what is new, and replaces nothing of somebody else."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_st import write_st_folder

import weft
from weft.embed.index import files
from weft.embed.pipeline import Chunking, Report, Selection, embed_file, open_source, run
from weft.embed.pipeline.indexing import open_searchable
from weft.errors import FingerprintError, InputError

TEXTS = {
    "a.txt": "the cat sat on the mat and the cat slept",
    "b.txt": "the quick brown fox jumps over the lazy dog",
    "deep/c.md": "one two three four five six seven",
}


class Counting:
    """An embedder that lists the texts it is asked for, and stops after some calls."""

    def __init__(self, embedder: weft.Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        self.calls_left: int | None = None
        self._real = embedder.embed
        monkeypatch.setattr(embedder, "embed", self._embed)

    def _embed(self, texts: Any, **options: Any) -> Any:
        if self.calls_left == 0:
            raise KeyboardInterrupt
        if self.calls_left is not None:
            self.calls_left -= 1
        if options.get("progress") is False:  # canaries of an index are embedded, too
            self.texts += texts
        return self._real(texts, **options)

    def taken(self) -> list[str]:
        found, self.texts = self.texts, []
        return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model", vocab_size=240)


@pytest.fixture
def embedder(model: Path) -> weft.Embedder:
    return weft.Embedder(str(model), threads=1)


@pytest.fixture
def asked(embedder: weft.Embedder, monkeypatch: pytest.MonkeyPatch) -> Counting:
    monkeypatch.setattr(run, "BATCH_ROWS", 1)
    return Counting(embedder, monkeypatch)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    for name, text in TEXTS.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_text(text)
    return tmp_path / "notes"


def build(embedder: weft.Embedder, notes: Path, **options: Any) -> Report:
    return embed_file(embedder, notes, notes.parent / "n.index", **options)


def content(index: Path) -> dict[str, bytes]:
    """The files of an index by their role, but for the graph."""
    saved = files.read_header(index)
    return {role: saved.path(role).read_bytes() for role in saved.files if role != "graph"}


@pytest.mark.parametrize("order", ["first", "between", "last"])
@pytest.mark.parametrize("target", ["n.index", "n.npy"])
def test_a_file_that_cannot_be_read_is_named_wherever_it_is(
    embedder: weft.Embedder, notes: Path, order: str, target: str
) -> None:
    name = {"first": "0.txt", "between": "bb.txt", "last": "z.txt"}[order]
    (notes / name).write_bytes(b"caf\xe9")
    (notes / f"{name}.large").write_text("a" * 100)
    source = open_source(notes, embedder=embedder, selection=Selection(max_file_bytes=64))
    report = embed_file(embedder, source, notes.parent / target)
    assert source.left_out == {name: "not UTF-8", f"{name}.large": "larger than 6.4e-05 MB"} and report.rows == 3


def test_a_second_build_embeds_only_what_changed(embedder: weft.Embedder, asked: Counting, notes: Path) -> None:
    first = build(embedder, notes)
    assert (first.rows, first.reused, first.removed) == (3, 0, 0) and asked.taken() == list(TEXTS.values())
    before = files.read_header(notes.parent / "n.index").files
    again = build(embedder, notes)
    assert (again.rows, again.reused) == (3, 3) and asked.taken() == []
    assert files.read_header(notes.parent / "n.index").files == before  # nothing was written
    (notes / "a.txt").unlink()
    (notes / "b.txt").write_text("a dog sat on the mat")
    (notes / "deep" / "c.md").rename(notes / "moved.md")
    (notes / "new.txt").write_text("the brown dog slept")
    later = build(embedder, notes)
    assert (later.rows, later.reused, later.removed) == (3, 1, 2)
    assert asked.taken() == ["a dog sat on the mat", "the brown dog slept"]
    index = weft.Index.open(notes.parent / "n.index")
    assert index.ids == ["b.txt#0", "moved.md#0", "new.txt#0"]
    embed_file(embedder, notes, notes.parent / "fresh.index")
    assert content(notes.parent / "n.index") == content(notes.parent / "fresh.index")
    asked.taken()
    assert build(embedder, notes, restart=True).reused == 0 and len(asked.taken()) == 3


def test_other_settings_take_no_vectors_over(embedder: weft.Embedder, asked: Counting, notes: Path) -> None:
    build(embedder, notes)
    assert build(embedder, notes, prompt_name="query").reused == 0
    assert build(embedder, notes, prompt_name="query").reused == 3
    assert build(embedder, notes, prompt_name="query", output_dtype="f16").reused == 0
    saved = files.read_header(notes.parent / "n.index")
    data = bytearray(saved.path("vectors").read_bytes())
    data[5] ^= 1
    saved.path("vectors").write_bytes(data)  # damage is not taken over
    assert build(embedder, notes, prompt_name="query", output_dtype="f16").reused == 0
    assert weft.Index.open(notes.parent / "n.index", verify=True).info["storage"] == "f16"


def test_rows_of_a_file_are_taken_over_by_their_texts(embedder: weft.Embedder, asked: Counting, tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"

    def write(*rows: dict[str, Any]) -> None:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write({"id": "x", "text": "the cat"}, {"id": "y", "text": "a dog"})
    embed_file(embedder, source, tmp_path / "r.index")
    asked.taken()
    write({"id": "y", "text": "a dog", "n": 1}, {"id": "z", "text": "the mat"}, {"id": "w", "text": "the cat"})
    report = embed_file(embedder, source, tmp_path / "r.index")
    assert (report.reused, report.removed) == (2, 1) and asked.taken() == ["the mat"]
    index = weft.Index.open(tmp_path / "r.index")
    assert index.ids == ["y", "z", "w"] and index.get("y").metadata == {"id": "y", "n": 1}
    assert np.array_equal(index.vector("w"), embedder.encode_document("the cat"))


def killed(embedder: weft.Embedder, asked: Counting, notes: Path, calls: int) -> None:
    asked.calls_left = calls
    with pytest.raises(KeyboardInterrupt):
        build(embedder, notes)
    asked.calls_left = None
    asked.taken()


def test_a_killed_build_goes_on_though_a_file_changed(embedder: weft.Embedder, asked: Counting, notes: Path) -> None:
    killed(embedder, asked, notes, 2)
    (notes / "a.txt").write_text("another text")
    (notes / "0.txt").write_text("a first text")
    killed(embedder, asked, notes, 1)  # and again, before all of what the first run made is reached
    (notes / "0.txt").write_text("yet another")
    report = build(embedder, notes)
    assert (report.rows, report.resumed) == (4, 1)
    assert asked.taken() == ["yet another", "another text", TEXTS["deep/c.md"]]
    assert not (notes.parent / "n.index.part").exists()
    embed_file(embedder, notes, notes.parent / "fresh.index")
    assert content(notes.parent / "n.index") == content(notes.parent / "fresh.index")


def test_a_killed_build_whose_files_went_goes_on(embedder: weft.Embedder, asked: Counting, notes: Path) -> None:
    killed(embedder, asked, notes, 2)
    (notes / "a.txt").unlink()
    report = build(embedder, notes)
    assert (report.rows, report.resumed) == (2, 1) and asked.taken() == [TEXTS["deep/c.md"]]


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl"])
def test_a_killed_run_over_a_file_goes_on_though_the_file_changed(
    embedder: weft.Embedder, asked: Counting, tmp_path: Path, name: str
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("the cat\na dog\nthe mat\n")
    asked.calls_left = 2
    with pytest.raises(KeyboardInterrupt):
        embed_file(embedder, source, tmp_path / name)
    asked.calls_left = None
    asked.taken()
    source.write_text("one two\n" + source.read_text())
    report = embed_file(embedder, source, tmp_path / name)
    assert (report.rows, report.resumed) == (4, 2) and asked.taken() == ["one two", "the mat"]
    embed_file(embedder, source, tmp_path / f"fresh-{name}")
    assert (tmp_path / name).read_bytes() == (tmp_path / f"fresh-{name}").read_bytes()


def test_texts_that_a_killed_run_cut_are_counted_again(
    embedder: weft.Embedder, asked: Counting, tmp_path: Path
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("the cat " * 99 + "\na dog\n")
    asked.calls_left = 1
    with pytest.raises(KeyboardInterrupt):
        embed_file(embedder, source, tmp_path / "out.npy", truncate="head")
    asked.calls_left = None
    source.write_text("one\n" + source.read_text())
    report = embed_file(embedder, source, tmp_path / "out.npy", truncate="head")
    assert (report.resumed, report.dropped_texts) == (1, 1) and report.dropped_tokens > 100


@pytest.fixture
def others(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere" / "notes"
    folder.mkdir(parents=True)
    (folder / "d.txt").write_text("a dog")
    return folder


def test_an_index_of_another_folder_is_not_replaced(embedder: weft.Embedder, notes: Path, others: Path) -> None:
    place = notes.parent / "n.index"
    build(embedder, notes)
    with pytest.raises(
        InputError, match=rf"n\.index was built from {notes}, and this build reads {others}; .*--replace"
    ):
        embed_file(embedder, others, place)
    assert len(weft.Index.open(place)) == 3 and not (notes.parent / "n.index.part").exists()
    assert embed_file(embedder, others, place, replace=True).removed == 3
    assert weft.Index.open(place).ids == ["d.txt#0"]
    assert embed_file(embedder, others, place).reused == 1


def test_an_index_of_another_model_or_dimension_is_not_replaced(
    model: Path, embedder: weft.Embedder, notes: Path, tmp_path: Path
) -> None:
    build(embedder, notes)
    other = write_st_folder(tmp_path / "other", vocab_size=240)
    modules = json.loads((other / "modules.json").read_text())
    (other / "modules.json").write_text(json.dumps([module for module in modules if "Dense" not in module["path"]]))
    with pytest.raises(InputError, match=rf"was built with the model {model}, and this build uses {other}"):
        build(weft.Embedder(str(other)), notes)
    with pytest.raises(InputError, match=f"other files or settings of the model {model}"):
        build(weft.Embedder(str(model), compute="int8"), notes)
    assert build(embedder, notes).reused == 3
    assert build(weft.Embedder(str(other)), notes, replace=True).reused == 0
    shorter = weft.Embedder(str(other), matryoshka=True, dimensions=32)
    with pytest.raises(InputError, match="has vectors of 36 numbers, and this build makes vectors of 32"):
        build(shorter, notes)
    assert build(shorter, notes, replace=True).reused == 0
    assert weft.Index.open(notes.parent / "n.index").dimension == 32


def test_rows_that_a_program_added_are_not_lost(embedder: weft.Embedder, notes: Path) -> None:
    place = notes.parent / "n.index"
    build(embedder, notes)
    opened = weft.Index.open(place)
    opened.save(place)  # nothing was changed: it is still the build's
    assert build(embedder, notes).reused == 3
    opened = weft.Index.open(place, embedder=embedder)
    opened.add_texts(["mine"], ["the cat"])
    opened.save(place)
    with pytest.raises(InputError, match="does not say what it was built from: a program made or changed it"):
        build(embedder, notes)
    assert "mine" in weft.Index.open(place)
    assert build(embedder, notes, replace=True).reused == 0
    assert weft.Index.open(place).ids == ["a.txt#0", "b.txt#0", "deep/c.md#0"]


def test_other_chunks_of_the_same_folder_are_no_other_source(embedder: weft.Embedder, notes: Path) -> None:
    build(embedder, notes)
    source = open_source(notes, embedder=embedder, chunking=Chunking(8, 2))
    assert embed_file(embedder, source, notes.parent / "n.index").rows > 3


def test_a_graph_that_is_there_is_kept(embedder: weft.Embedder, notes: Path) -> None:
    pytest.importorskip("usearch", reason="usearch is not installed: pip install weft-engine[hnsw]")
    place = notes.parent / "n.index"
    build(embedder, notes)
    weft.Index.open(place).save(place, graph=True)
    (notes / "new.txt").write_text("the mat")
    build(embedder, notes)
    assert "graph" in files.read_header(place).files
    assert len(weft.Index.open(place, load_graph=True).search(embedder.encode("the mat"), 4)) == 4


def test_chunks_have_the_line_they_begin_in(embedder: weft.Embedder, notes: Path) -> None:
    text = "\n\n".join(f"the cat {i} sat on\nthe mat" for i in range(20))
    (notes / "a.txt").write_text(text)
    rows = [
        row for row in open_source(notes, embedder=embedder, chunking=Chunking(10, 2)).rows() if row["path"] == "a.txt"
    ]
    assert len(rows) > 10 and all(row["line"] == text.count("\n", 0, row["start"]) + 1 for row in rows)


def test_vectors_that_changed_name_the_model_and_the_command(
    model: Path, embedder: weft.Embedder, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(embedder, notes)
    monkeypatch.setattr("weft.embed.index.canaries.LEAST_COSINE", 1.5)  # as if the numbers were others
    with pytest.raises(FingerprintError) as error:
        open_searchable(notes.parent / "n.index")
    assert error.value.advice.startswith(f"load {model} as it was, or build it again: weft index build {notes} ")
