"""Folders on the command line: what is left out is said, a second build is quick, and hits name file and line."""

import json
from pathlib import Path

import pytest
from running import Run
from tiny_st import write_st_folder

import weft


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_st_folder(tmp_path_factory.mktemp("embedder") / "model", vocab_size=240)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("The cat sat.\nIt slept on the mat.\n\nThe quick brown fox jumps.\nOne two three.\n")
    return folder


def built(run: Run, embedder: Path, notes: Path, *more: str) -> str:
    place = str(notes.parent / "n.index")
    result = run("index", "build", str(notes), "-m", str(embedder), "-o", place, *more)
    assert result.exit_code == 0, result.stderr
    return result.stderr


@pytest.mark.parametrize("name", ["0.txt", "z.txt"])
def test_a_file_left_out_is_named_by_both_commands(run: Run, embedder: Path, notes: Path, name: str) -> None:
    (notes / name).write_bytes(b"caf\xe9")
    assert f"1 path left out: {name} (not UTF-8)\n" in built(run, embedder, notes)
    output = str(notes.parent / "n.npy")
    result = run("embed", "-m", str(embedder), "-i", str(notes), "-o", output)
    assert result.exit_code == 0 and f"1 path left out: {name} (not UTF-8)\n" in result.stderr


def test_many_files_left_out_are_counted_and_all_are_named_on_request(run: Run, embedder: Path, notes: Path) -> None:
    for number in range(4):
        (notes / f"z{number}.txt").write_bytes(b"caf\xe9")
        (notes / f".h{number}").write_text("a")
    (notes / "build").mkdir()
    (notes / "build" / "log.txt").write_text("a")
    (notes / ".gitignore").write_text("build/\n")
    said = built(run, embedder, notes)
    assert "10 paths left out: z0.txt (not UTF-8), z1.txt (not UTF-8), z2.txt (not UTF-8), z3.txt (not UTF-8), " in said
    assert ".gitignore (hidden), and 5 more (4 hidden, 1 ignored by .gitignore); name all with --verbose" in said
    every = built(run, embedder, notes, "--verbose")
    assert every.count("(hidden)") == 5 and "\n  build (ignored by .gitignore)" in every and "more" not in every
    assert "4 paths left out" in built(run, embedder, notes, "--all-files")


def test_the_largest_file_is_an_option_that_the_help_names(run: Run, embedder: Path, notes: Path) -> None:
    (notes / "large.txt").write_text("the cat sat on the mat\n" * 500)
    assert "large.txt (larger than 0.01 MB)" in built(run, embedder, notes, "--max-file-size", "0.01")
    assert "left out" not in built(run, embedder, notes)
    for command in (["index", "build"], ["embed"]):
        shown = " ".join(run(*command, "--help").stdout.split())
        assert "--max-file-size MB" in shown and "[default: 16.0" in shown and "files over 16 MB" in shown
    assert run("index", "build", str(notes), "--max-file-size", "0").exit_code == 2


def test_a_second_build_says_what_it_did_not_embed(run: Run, embedder: Path, notes: Path) -> None:
    (notes / "b.txt").write_text("a dog")
    built(run, embedder, notes)
    (notes / "b.txt").unlink()
    (notes / "c.txt").write_text("the mat")
    said = built(run, embedder, notes)
    assert "2 rows" in said and "; 1 unchanged since the last build; 1 old row removed" in said
    assert "unchanged" not in built(run, embedder, notes, "--restart")


def test_an_index_of_another_source_is_replaced_only_on_request(run: Run, embedder: Path, notes: Path) -> None:
    built(run, embedder, notes)
    other, place = notes.parent / "other", str(notes.parent / "n.index")
    other.mkdir()
    (other / "b.txt").write_text("a dog")
    command = ("index", "build", str(other), "-m", str(embedder), "-o", place)
    refused = run(*command)
    assert refused.exit_code == 2 and f"n.index was built from {notes}, and this build reads {other}" in refused.stderr
    assert "--replace" in refused.stderr and len(weft.Index.open(place)) == 1
    embed = run("embed", "-m", str(embedder), "-i", str(other), "-o", place)
    assert embed.exit_code == 2 and "was built from" in embed.stderr
    assert run(*command, "--replace").exit_code == 0 and weft.Index.open(place).ids == ["b.txt#0"]
    assert json.loads(run("index", "show", place, "--json").stdout)["source"] == str(other)


def test_a_hit_shows_the_sentence_that_matched_with_its_file_and_line(run: Run, embedder: Path, notes: Path) -> None:
    built(run, embedder, notes, "--chunk-tokens", "30")
    place, lines = str(notes.parent / "n.index"), (notes / "a.txt").read_text().splitlines()
    for query in filter(None, lines):
        hit = json.loads(run("search", place, query, "-k", "1", "--json").stdout)
        match = hit["match"]
        assert hit["text"][match["start"] : match["end"]] == match["text"]
        assert match["text"] in lines[match["line"] - 1]  # a chunk may begin within a sentence
        shown = run("search", place, query, "-k", "1").stdout
        assert f"  a.txt:{match['line']}\n       {match['text']}\n" in shown
    whole = run("search", place, "the cat", "--whole").stdout
    assert "a.txt:1\n       The cat sat.\nIt slept" in whole


def test_a_changed_model_is_named_and_fingerprints_are_short(run: Run, notes: Path, tmp_path: Path) -> None:
    model = write_st_folder(tmp_path / "mine", vocab_size=240)
    built(run, model, notes)
    place = str(notes.parent / "n.index")
    fingerprint = str(weft.Embedder(str(model)).fingerprint)
    assert f"by {model} ({fingerprint[:14]})" in run("verify", place).stdout
    shown = run("index", "show", place).stdout
    assert fingerprint[:14] in shown and fingerprint not in shown
    assert json.loads(run("index", "show", place, "--json").stdout)["fingerprint"] == fingerprint
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.5}))
    result = run("search", place, "a cat")
    assert result.exit_code == 2
    again = f"weft index build {notes} --output {place} --model {model} --replace"
    said = f"the files of {model} changed since n.index was built; restore the model, or build it again: {again}"
    assert said in result.stderr and "weft2:" not in result.stderr
    assert run(*again.split()[1:]).exit_code == 0 and run("search", place, "a cat").exit_code == 0
