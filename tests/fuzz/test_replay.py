"""Every input that fuzzing found worth keeping is refused or read without a bug; the native targets replay theirs in
`tools/native-tests`."""

import importlib
from pathlib import Path

import pytest
from fuzzing import CORPUS

PYTHON = ("gguf_head", "gguf_model", "safetensors_header", "model_folder", "tekken", "merges_txt")
NATIVE = {path.stem for path in (Path(__file__).parents[2] / "csrc" / "fuzz").glob("*.cpp")} - {"replay"}


@pytest.mark.parametrize("name", PYTHON)
def test_the_corpus_finds_no_bug(name: str) -> None:
    check = importlib.import_module(name).check
    for path in sorted((CORPUS / name).iterdir()):
        try:
            check(path.read_bytes())
        except Exception as error:
            pytest.fail(f"{path.name}: {error!r}")


def test_every_target_has_a_corpus_and_every_corpus_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*PYTHON, *NATIVE}
    assert [path.name for path in CORPUS.iterdir() if not any(path.iterdir())] == []


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1_000_000
