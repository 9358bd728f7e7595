"""weft cache shows what the cache of vectors holds and deletes what it is told to, nothing else."""

import json
from pathlib import Path

import pytest
from running import Run


@pytest.fixture
def filled(run: Run, embedder: Path, tmp_path: Path) -> Path:
    """A file with six vectors of one model and three of another."""
    path = tmp_path / "vectors.sqlite"
    texts = ["one", "two", "three", "four", "five", "six"]
    for compute, some in (("f32", texts), ("int8", texts[:3])):
        result = run("embed", *some, "-m", str(embedder), "--cache", str(path), "--compute", compute, "--output", "-")
        assert result.exit_code == 0, result.stderr
    return path


def listed(run: Run, *arguments: str) -> dict:
    result = run("cache", "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_it_lists_models_and_sizes(run: Run, filled: Path) -> None:
    found = listed(run, "--file", str(filled))
    assert found["vectors"] == 9 and sorted(m["vectors"] for m in found["models"]) == [3, 6]
    shown = run("cache", "--file", str(filled)).stdout
    assert all(model["fingerprint"][:14] in shown and model["model"] in shown for model in found["models"])
    assert all(model["fingerprint"] not in shown for model in found["models"])
    assert found["file_bytes"] >= found["bytes"] > 0 and "on disk" in shown


def test_it_says_which_model_a_fingerprint_is_of(run: Run, filled: Path, embedder: Path) -> None:
    found = listed(run, "--file", str(filled))["models"]
    assert {(m["model"], m["vectors"]) for m in found} == {(f"{embedder}, f32", 6), (f"{embedder}, int8", 3)}
    assert len({m["dimension"] for m in found}) == 1


def test_it_says_how_many_went_even_if_none_did(run: Run, filled: Path) -> None:
    for option, count in ((("--older-than", "1h"), 0), (("--clear",), 9), (("--clear",), 0)):
        assert f"{count} vectors deleted" in run("cache", "--file", str(filled), *option).stderr
    assert "deleted" not in run("cache", "--file", str(filled)).stderr


def test_it_deletes_what_is_named(run: Run, filled: Path) -> None:
    largest = max(listed(run, "--file", str(filled))["models"], key=lambda m: m["vectors"])["fingerprint"]
    assert listed(run, "--file", str(filled), "--older-than", "1h")["vectors"] == 9
    assert listed(run, "--file", str(filled), "--fingerprint", largest[:12])["vectors"] == 3
    assert run("cache", "--file", str(filled), "--fingerprint", "").exit_code == 2  # though one model is left
    assert listed(run, "--file", str(filled), "--clear")["vectors"] == 0


@pytest.mark.parametrize("option", [("--max-size", "large"), ("--older-than", "3"), ("--fingerprint", "nobody")])
def test_what_makes_no_sense_is_refused(run: Run, filled: Path, option: tuple[str, str]) -> None:
    assert run("cache", "--file", str(filled), *option).exit_code == 2
    assert listed(run, "--file", str(filled))["vectors"] == 9


def test_everything_and_something_are_not_deleted_together(run: Run, filled: Path) -> None:
    result = run("cache", "--file", str(filled), "--clear", "--fingerprint", "weft2:000")
    assert result.exit_code == 2 and "--clear deletes all vectors" in result.stderr
    assert listed(run, "--file", str(filled))["vectors"] == 9


def test_no_cache_is_no_error_and_none_is_made(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.sqlite"
    assert listed(run, "--file", str(path))["vectors"] == 0 and not path.exists()
    assert "no cache" in run("cache", "--file", str(path)).stderr
