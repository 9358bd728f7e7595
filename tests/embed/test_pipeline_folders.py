"""Folders become indexes that their model answers from; what a run writes is no part of what it reads."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tiny_adapters import BERT_ALL, PEFT_BERT, write_adapter
from tiny_st import write_st_folder

import weft
from weft.embed.pipeline import Chunking, Selection, embed_file, open_source, run
from weft.embed.pipeline.indexing import open_searchable, remembered_model
from weft.errors import FingerprintError, InputError, NotFoundError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A row for every token: an index embeds texts of its own too."""
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model", vocab_size=240)


@pytest.fixture(scope="module")
def embedder(model: Path) -> weft.Embedder:
    return weft.Embedder(str(model), threads=1)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "cats.txt").write_text("the cat sat on the mat and the cat slept")
    (folder / "deep" / "foxes.md").write_text("the quick brown fox jumps over the lazy dog")
    return folder


@pytest.mark.parametrize("name", ["notes.index", "notes.txt", "notes.jsonl"])
def test_an_output_inside_its_folder_is_not_read(embedder: weft.Embedder, notes: Path, name: str) -> None:
    made = []
    for _ in range(2):
        report = embed_file(embedder, notes, notes / name)
        made.append(report.rows)
        assert report.resumed == 0
    assert made == [2, 2]
    others = [row["path"] for row in open_source(notes, embedder=embedder).rows()]
    assert (name == "notes.index") == (others == ["cats.txt", "deep/foxes.md"])  # an index is no document to any run
    if name == "notes.index":
        with pytest.raises(InputError, match="is an index"):
            open_source(notes / name, embedder=embedder)


@pytest.mark.parametrize("name", ["notes.index", "notes.npy"])
def test_a_run_that_writes_into_its_folder_goes_on(
    model: Path, notes: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "BATCH_ROWS", 1)
    embedder = weft.Embedder(str(model), threads=1)
    real, calls = embedder.embed, []

    def once(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(embedder, "embed", once)
        with pytest.raises(KeyboardInterrupt):
            embed_file(embedder, notes, notes / name)
    assert [row["path"] for row in open_source(notes, embedder=embedder).rows()] == ["cats.txt", "deep/foxes.md"]
    report = embed_file(embedder, notes, notes / name)
    assert (report.rows, report.resumed) == (2, 1)


def test_rows_of_an_index_are_documents(embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat sat\na dog\n")
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "a.index")
    index = weft.Index.open(tmp_path / "a.index")
    assert np.allclose(index.vector(0), embedder.encode_document("the cat sat"), atol=1e-6)
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "q.index", prompt_name="query")
    assert np.allclose(weft.Index.open(tmp_path / "q.index").vector(1), embedder.encode_query("a dog"), atol=1e-6)
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "a.npy")
    assert np.array_equal(np.load(tmp_path / "a.npy"), embedder.encode(["the cat sat", "a dog"]))


def test_an_index_is_not_made_with_an_adapter(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = weft.Embedder(str(model), threads=1)
    cfg = {**tiny.BERT, "vocab_size": 240, "hidden_size": 36, "num_attention_heads": 3}
    embedder.adapters.load("mine", write_adapter(tmp_path / "lora", cfg, {**PEFT_BERT, "target_modules": BERT_ALL}))
    (tmp_path / "in.txt").write_text("the cat sat\n")
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "a.npy", adapter="mine")
    assert np.array_equal(np.load(tmp_path / "a.npy"), embedder.encode(["the cat sat"], adapter="mine"))
    monkeypatch.setattr(embedder, "embed", lambda *a, **k: pytest.fail("something was embedded"))
    with pytest.raises(InputError, match="without an adapter, which makes other vectors"):
        embed_file(embedder, tmp_path / "in.txt", tmp_path / "a.index", adapter="mine")
    assert not (tmp_path / "a.index").exists() and not (tmp_path / "a.index.part").exists()


def test_an_index_remembers_how_its_model_was_made(model: Path, tmp_path: Path) -> None:
    prompts = {"query": "ask: ", "document": "told: "}
    embedder = weft.Embedder(str(model), compute="int8", normalise=False, prompts=prompts)
    (tmp_path / "in.txt").write_text("the cat sat\na dog\n")
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "a.index")
    name, options = remembered_model(tmp_path / "a.index")
    assert name == str(model) and options["compute"] == "int8" and options["prompts"] == prompts
    assert open_searchable(tmp_path / "a.index").search_texts("the cat sat", 1)[0].id == 0
    moved = shutil.copytree(model, tmp_path / "moved")
    assert open_searchable(tmp_path / "a.index", str(moved)).search_texts("a dog", 1)[0].id == 1
    (tmp_path / "a.index" / "embedder.json").write_text(json.dumps({"model": str(model), "pooling": []}))
    with pytest.raises(weft.WeftError, match="--model"):
        open_searchable(tmp_path / "a.index")


def test_another_model_is_told_as_such_whatever_options_it_takes(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat sat\n")
    embed_file(weft.Embedder(str(model)), tmp_path / "in.txt", tmp_path / "a.index")
    said = json.loads((tmp_path / "a.index" / "embedder.json").read_text())
    (tmp_path / "a.index" / "embedder.json").write_text(json.dumps({**said, "model": "/then", "dimensions": 12}))
    with pytest.raises(FingerprintError, match=r"is not the model of a.index, /then"):
        open_searchable(tmp_path / "a.index", str(model))


def test_an_index_remembers_the_model_that_was_loaded_and_no_folder_of_that_name(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("the cat sat\n")
    shutil.copytree(model, tmp_path / "mine")
    (tmp_path / "minilm").mkdir()
    embedder = weft.Embedder("mine")
    embed_file(embedder, "in.txt", "a.index")
    assert remembered_model(tmp_path / "a.index")[0] == str(tmp_path / "mine")
    known = replace(embedder._located, spec="minilm", source="hub:x@1")  # as the catalogue's has it
    monkeypatch.setattr("weft.embed.service.locate", lambda *given, **options: known)
    embed_file(weft.Embedder("minilm"), "in.txt", "a.index")
    assert remembered_model(tmp_path / "a.index")[0] == "minilm"


def test_rows_of_a_file_are_not_named_as_chunks_are(embedder: weft.Embedder, tmp_path: Path) -> None:
    rows = [{"text": f"the cat {i}", "path": "x", "chunk": 7} for i in range(3)]
    rows[0]["id"] = "own"
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    embed_file(embedder, tmp_path / "in.jsonl", tmp_path / "a.index")
    assert weft.Index.open(tmp_path / "a.index").ids == ["own", 1, 2]


@pytest.mark.parametrize("name", ["index.json", "model.bin"])
def test_a_folder_of_somebody_else_stays_as_it_is(embedder: weft.Embedder, tmp_path: Path, name: str) -> None:
    (tmp_path / "in.txt").write_text("the cat sat\n")
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / name).write_text('{"my": "data"}')
    with pytest.raises(
        InputError, match="not the header of a weft index" if name == "index.json" else "other files in it"
    ):
        embed_file(embedder, tmp_path / "in.txt", tmp_path / "proj", form="index")
    assert [path.name for path in (tmp_path / "proj").iterdir()] == [name]
    assert (tmp_path / "proj" / name).read_text() == '{"my": "data"}' and not (tmp_path / "proj.part").exists()


def test_fields_that_json_has_no_word_for_are_metadata(embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"text": "a", "n": NaN, "deep": {"x": [1, Infinity]}, "big": 1' + "0" * 30 + "}\n"
    )
    embed_file(embedder, tmp_path / "in.jsonl", tmp_path / "a.index")
    found = weft.Index.open(tmp_path / "a.index").get(0).metadata
    assert found == {"n": None, "deep": {"x": [1, "inf"]}, "big": 10**30}


def test_chunks_are_what_was_asked_for(embedder: weft.Embedder, notes: Path, tmp_path: Path) -> None:
    room = embedder.max_tokens * 4 // 5
    with pytest.raises(InputError, match=f"chunk_tokens must be at most {room}: .* got {room + 1}"):
        open_source(notes, embedder=embedder, chunking=Chunking.of(room + 1))
    near = open_source(notes, embedder=embedder, chunking=Chunking(6, 5))
    assert near.chunking == Chunking(6, 5) and len(list(near.rows())) > 2  # type: ignore[attr-defined]
    embed_file(embedder, notes, tmp_path / "a.index")  # the default is no more than the model has room for
    said = json.loads((tmp_path / "a.index" / "embedder.json").read_text())
    assert (said["chunk_tokens"], said["overlap"]) == (room, room // 5)


def test_files_that_are_left_out_are_named_with_the_reason(embedder: weft.Embedder, notes: Path) -> None:
    (notes / "latin.txt").write_bytes("café".encode("latin-1"))
    (notes / "picture.png").write_bytes(b"\x89PNG\0\0")
    (notes / "large.txt").write_text("a" * 100)
    (notes / "node_modules").mkdir()
    (notes / "node_modules" / "readme.md").write_text("of somebody else")
    folder = open_source(notes, embedder=embedder, selection=Selection(max_file_bytes=64))
    assert [row["path"] for row in folder.rows()] == ["cats.txt", "deep/foxes.md"]
    assert set(folder.left_out) == {"latin.txt", "picture.png", "large.txt", "node_modules"}
    assert folder.left_out["latin.txt"] == "not UTF-8" and "larger" in folder.left_out["large.txt"]


def test_a_folder_that_cannot_be_read_is_named_and_ends_nothing(
    embedder: weft.Embedder, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr("os.scandir", scandir)
    closed = "deep"
    folder = open_source(notes, embedder=embedder)
    assert [row["path"] for row in folder.rows()] == ["cats.txt"]
    assert folder.left_out == {"deep": "cannot be read: Permission denied"}
    closed = "notes"
    with pytest.raises(NotFoundError, match=r"cannot read .*notes: Permission denied"):
        list(open_source(notes, embedder=embedder).rows())


def test_a_file_that_goes_away_is_a_change(embedder: weft.Embedder, notes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="notes changed while it was read"):
        embed_file(
            embedder, notes, tmp_path / "a.npy", on_progress=lambda rows: (notes / "cats.txt").unlink(missing_ok=True)
        )


def test_how_many_rows_there_are_is_known_from_the_beginning(embedder: weft.Embedder, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("the cat\n" * 5)
    source = open_source(tmp_path / "in.txt")
    seen: list[tuple[int, int | None]] = []
    embed_file(embedder, source, tmp_path / "a.npy", on_progress=lambda rows: seen.append((rows, source.total)))
    assert seen == [(0, 5), (5, 5)]


def test_a_slow_model_has_small_batches_and_the_same_bytes(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = weft.Embedder(str(model), threads=1)
    (tmp_path / "in.txt").write_text("".join(f"the cat {i} sat on the mat\n" for i in range(400)))
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "whole.npy")
    clock, real, sizes = [0.0], embedder.embed, []

    def embed(texts: list[str], **options: Any) -> Any:
        clock[0] += len(texts) * speed
        sizes.append(len(texts))
        return real(texts, **options)

    monkeypatch.setattr(embedder, "embed", embed)
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(run, "LEAST_CHARACTERS", 100)
    speed = 0.1  # seconds a text: twenty take two
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "slow.npy")
    assert max(sizes) <= 22 and sizes[10] >= 18 and sum(sizes) == 400
    sizes.clear()
    speed = 0.0001
    embed_file(embedder, tmp_path / "in.txt", tmp_path / "fast.npy")
    assert len(sizes) < 12 and sum(sizes) == 400
    whole = (tmp_path / "whole.npy").read_bytes()
    assert (tmp_path / "slow.npy").read_bytes() == whole == (tmp_path / "fast.npy").read_bytes()
