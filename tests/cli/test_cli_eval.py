"""weft eval: models measured from the command line."""

import json
from pathlib import Path

import pytest
from running import Run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    made = tmp_path / "text.txt"
    made.write_text("A weaver counts threads, and the loom keeps them apart.\n" * 6, encoding="utf-8")
    return made


def test_several_models_give_a_table_or_lines(run: Run, generator: Path, text: Path) -> None:
    given = ("eval", "ppl", str(generator), str(generator), str(text), "--window", "64", "--tokens", "200")
    shown = run(*given)
    assert shown.exit_code == 0, shown.stderr
    heads, *rows = shown.stdout.splitlines()
    assert "perplexity" in heads and "bits per byte" in heads and len(rows) == 2 and "199" in rows[0]
    lines = [json.loads(line) for line in run(*given, "--json").stdout.splitlines()]
    assert [line["model"] for line in lines] == [str(generator)] * 2
    assert lines[0]["targets"] == 199 and lines[0]["perplexity"] == lines[1]["perplexity"]
    assert f"{lines[0]['perplexity']:.4f}" in rows[0] and lines[0]["bytes"] > 10_000


def test_llama_windows_and_refusals(run: Run, generator: Path, text: Path) -> None:
    done = run("eval", "ppl", str(generator), str(text), "--llama", "--window", "64", "--json")
    assert json.loads(done.stdout)["targets"] == 5 * 31, done.stderr
    for more, said in (
        (("--stride", "9", "--llama"), "excludes llama"),
        (("--window", "8", "--stride", "8"), "1 to 7"),
    ):
        refused = run("eval", "ppl", str(generator), str(text), *more)
        assert refused.exit_code == 2 and said in refused.stderr
    refused = run("eval", str(generator), str(text))
    assert refused.exit_code == 2 and "No such command" in refused.stderr


def test_compare_shows_both_and_prints_lines_that_plot_reads(
    run: Run, generator: Path, text: Path, tmp_path: Path
) -> None:
    given = (
        "eval",
        "compare",
        str(generator),
        str(generator),
        str(text),
        "--window",
        "64",
        "--no-speed",
        "--worst",
        "2",
    )
    shown = run(*given)
    assert shown.exit_code == 0, shown.stderr
    assert "100.00 % of" in shown.stdout and "+0.00 %" in shown.stdout and "A expects" in shown.stdout
    line = run(*given, "--json").stdout
    found = json.loads(line)
    assert found["mean"] == 0 and len(found["worst"]) == 2 and found["speed_a"] is None and found["layers"] == [0, 0]
    kept = tmp_path / "lines.jsonl"
    kept.write_text(line, encoding="utf-8")
    plotted = run("eval", "plot", str(kept), "--svg", str(tmp_path / "sizes.svg"))
    assert "divergence by size" in plotted.stdout and "best of their size: tiny.gguf" in plotted.stderr
    assert (tmp_path / "sizes.svg").read_text(encoding="utf-8").startswith("<svg")


def test_sts_measures_each_model_with_each_arithmetic(run: Run, embedder: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    made = [("a cat", "one cat", 5), ("a dog", "rain", 0), ("two birds", "a bird", 3)]
    pairs.write_text("".join(f"m\tx\ty\t1\t{score}\t{a}\t{b}\n" for a, b, score in made), encoding="utf-8")
    given = (
        "eval",
        "sts",
        str(embedder),
        str(pairs),
        "--compute",
        "f32",
        "--compute",
        "int8",
        "--against",
        str(embedder),
    )
    shown = run(*given)
    assert shown.exit_code == 0, shown.stderr
    assert "spearman" in shown.stdout and "farthest" in shown.stdout and len(shown.stdout.splitlines()) == 3
    lines = [json.loads(line) for line in run(*given, "--json").stdout.splitlines()]
    assert [line["compute"] for line in lines] == ["f32", "int8"] and lines[0]["lost"] < lines[1]["lost"]
