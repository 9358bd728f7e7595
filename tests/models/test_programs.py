"""Every model of the zoo traces to its golden program: a change of what is computed shows as a diff to review."""

from pathlib import Path

import pytest
from programs import ENCODERS, FOLDER, RELATIVES, printed


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return printed(tmp_path_factory.mktemp("programs"))


NAMES = [
    *("llama-f32", "llama-q4_1-int8"),
    *(f"{name}-f32" for name in RELATIVES),
    *(f"{name}-{head.pooling}" for name, head in ENCODERS.items()),
]


@pytest.mark.parametrize("name", NAMES)
def test_the_program_is_the_golden_one(texts: dict[str, str], name: str) -> None:
    expected = (FOLDER / f"{name}.txt").read_text()
    assert texts[name] == expected, "run python tests/models/programs.py and review the diff"


def test_reading_a_program_back_gives_the_same_program(texts: dict[str, str]) -> None:
    from weft.graph.text import from_text, to_text

    for text in texts.values():
        assert to_text(from_text(text)) == text


def test_every_golden_belongs_to_a_model(texts: dict[str, str]) -> None:
    assert {p.stem for p in Path(FOLDER).glob("*.txt")} == {*texts, "toy"}
