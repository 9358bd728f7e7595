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
