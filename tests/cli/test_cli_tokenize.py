"""weft tokenize shows ids, tokens and their places, and turns ids back into text."""

import json
from pathlib import Path

import pytest
from running import Run

GOLDEN = Path(__file__).parents[1] / "golden" / "text" / "word_piece.json"


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer.json and nothing else."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(json.loads(GOLDEN.read_text())["tokenizer"]))
    return str(path)


def test_every_token_has_its_place(run: Run, vocabulary: str) -> None:
    text = "the river, word"
    rows = json.loads(run("tokenize", "-m", vocabulary, "--json", text, "two texts").stdout)
    assert [row["text"] for row in rows] == [text, "two texts"]
    shown = [text[start:end] for start, end in rows[0]["offsets"][1:-1]]
    assert "".join(shown) == text.replace(" ", "") and rows[0]["offsets"][0] == [0, 0]
    table = run("tokenize", "-m", vocabulary, text).stdout.splitlines()
    assert table[0].split() == ["id", "token", "start", "end", "text"]
    assert [int(line.split()[0]) for line in table[1:]] == rows[0]["ids"]


def test_ids_go_back_to_text_through_a_pipe(run: Run, vocabulary: str) -> None:
    ids = run("tokenize", "-m", vocabulary, "--ids", "--no-special", input="the river").stdout
    assert run("tokenize", "-m", vocabulary, "--count", "--no-special", "the river").stdout == f"{len(ids.split())}\n"
    assert run("tokenize", "-m", vocabulary, "--decode", input=ids).stdout == "the river\n"


def test_models_of_every_kind_have_a_tokenizer(run: Run, generator: Path, embedder: Path) -> None:
    for model in (generator, embedder):
        result = run("tokenize", "-m", str(model), "--ids", "a")
        assert result.exit_code == 0 and result.stdout.split(), result.stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--decode", "12", "x1"], "not a token id"),
        (["--decode", "99999999"], "outside the vocabulary"),
        (["--ids", "--json", "a"], "cannot be combined"),
        (["-i", "file", "a"], "one of them"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, vocabulary: str, arguments: list[str], said: str) -> None:
    result = run("tokenize", "-m", vocabulary, *arguments)
    assert result.exit_code == 2 and said in result.stderr and result.stdout == ""
