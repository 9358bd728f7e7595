"""A model's JSON files, made wrong in over 400 ways, each end in weft's own error that names the file and the field; no
file outside the model's folder is opened on the way."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from large_sidecars import large
from sidecars import Case, all_cases, outcome, replaced, use, write_linked_models

import weft
from weft.errors import FormatError, UnsupportedError

OPENED: list[str] | None = None  # what was opened while it is a list


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if OPENED is not None and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        OPENED.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)  # hooks stay for good; this one listens only when asked to


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_linked_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def outcomes(models: Path) -> list[tuple[Case, str | Exception | None]]:
    found: list[tuple[Case, str | Exception | None]] = []
    for case in all_cases(models):
        try:
            found.append((case, outcome(models, case)))
        except Exception as error:
            found.append((case, error))
    return found


Outcomes = list[tuple[Case, str | Exception | None]]


def test_the_files_are_right_before_they_are_made_wrong(models: Path) -> None:
    for name in ("decoder", "encoder"):
        use(models / name)


def test_nothing_but_wefts_errors_comes_out(outcomes: Outcomes) -> None:
    assert [f"{case.what}: {error!r:.120}" for case, error in outcomes if isinstance(error, Exception)] == []


def test_at_least_400_files_are_refused(outcomes: Outcomes) -> None:
    refused = {case.data for case, message in outcomes if isinstance(message, str)}
    assert len(refused) >= 400


def test_what_must_be_refused_is(outcomes: Outcomes) -> None:
    assert [case.what for case, message in outcomes if message is None and case.refused] == []


def test_messages_name_the_file_and_the_field(outcomes: Outcomes) -> None:
    """The place in the file stands for a field where the file is not JSON at all."""
    refused = [(case, text) for case, text in outcomes if isinstance(text, str)]
    assert [(case.what, text) for case, text in refused if not case.named_by(text)] == []


def test_messages_are_short(outcomes: Outcomes) -> None:
    assert [case.what for case, text in outcomes if isinstance(text, str) and len(text) > 1000] == []


def test_messages_tell_no_paths(outcomes: Outcomes, models: Path) -> None:
    assert [case.what for case, text in outcomes if isinstance(text, str) and str(models) in text] == []


@pytest.fixture
def opened() -> Iterator[list[str]]:
    global OPENED
    OPENED = []
    yield OPENED
    OPENED = None


def test_nothing_outside_the_folder_is_opened(models: Path, opened: list[str]) -> None:
    hostile = [case for case in all_cases(models) if "shard" in case.what or "modules.json: " in case.what]
    assert len(hostile) > 40
    for case in hostile:
        outcome(models, case)
    inside = {os.path.realpath(models / name) for name in ("decoder", "encoder")}
    paths = {os.path.realpath(path) for path in opened}
    assert any(path.startswith(tuple(inside)) for path in paths), "the hook hears nothing"
    allowed = (*inside, "/proc", "/sys", sys.prefix, sys.base_prefix, str(Path(weft.__file__).parent))
    assert [path for path in sorted(paths) if not path.startswith(allowed)] == []


def test_large_files_are_taken_or_refused(models: Path) -> None:
    for case in large(models):
        text = outcome(models, case)
        assert case.named_by(text) if text is not None else not case.refused, (case.what, text)


def test_errors_say_where_in_a_tokenizer_they_are(models: Path) -> None:
    tree = json.loads((models / "decoder" / "tokenizer.json").read_bytes())
    for path, value, place in (
        (("model", "merges"), ["a b", "a b", [1, "b"]], "'model.merges[2][0]'"),
        (("added_tokens", 3, "special"), "yes", "'added_tokens[3].special'"),
        (("model",), [], "'model'"),
    ):
        case = Case("", "decoder", "tokenizer.json", replaced(tree, path, value), ())
        assert place in str(outcome(models, case))


def test_errors_are_text_and_short_whatever_the_file_holds() -> None:
    """The core cuts tokens it quotes by bytes; half a character once made a UnicodeDecodeError of the error."""
    token = "a" + "é" * 400
    with pytest.raises(FormatError, match="a token occurs twice") as error:
        weft.Tokenizer.from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": [token, token]})
    assert len(str(error.value)) < 300
    with pytest.raises(UnsupportedError, match="does not support") as long_error:
        weft.Tokenizer.from_gguf({"tokenizer.ggml.model": "x" * 100_000, "tokenizer.ggml.tokens": ["a"]})
    assert len(str(long_error.value)) < 1000
