"""docs/howto/make-it-smaller.md, run as it is written, on a tiny model; and the card that it ends with."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from measured_cases import TEXT, write_model
from tiny_st import write_st_folder

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "make-it-smaller.md"
COMMANDS = re.findall(r"^    \$ (weft .*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command printed, in the page's order, in a folder that has the page's files."""
    from weft.cli.app import app

    folder = tmp_path_factory.mktemp("smaller")
    write_model(folder / "model-f16.gguf")
    (folder / "text.txt").write_text(3 * TEXT, encoding="utf-8")
    write_st_folder(folder / "my-embedder")
    pairs = [("a cat", "one cat", 5), ("a dog", "rain", 0), ("two birds", "a bird", 3)]
    lines = "".join(f"m\tx\ty\t1\t{score}\t{a}\t{b}\n" for a, b, score in pairs)
    (folder / "pairs.csv").write_text(lines, encoding="utf-8")
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("WEFT_OFFLINE", "1")
        for command in COMMANDS:
            words, _, target = command.partition(" > ")
            done = CliRunner().invoke(app, shlex.split(words)[1:])
            assert done.exit_code == 0, f"{command}: {done.output}"
            found[command] = done.stdout
            if target:
                Path(target).write_text(done.stdout, encoding="utf-8")
        found["card"] = Path("model-shipped.gguf.md").read_text(encoding="utf-8")
        found["report"] = Path("model-shipped.gguf.report.json").read_text(encoding="utf-8")
        found["svg"] = Path("sizes.svg").read_text(encoding="utf-8")
    return found


def test_every_command_runs_and_says_what_the_page_promises(outputs: dict[str, str]) -> None:
    assert len(COMMANDS) >= 10
    compared = next(text for command, text in outputs.items() if "compare" in command and "--json" not in command)
    assert "agreement" in compared and "layers" in compared
    assert outputs["svg"].count("<circle") == 3
    plotted = next(text for command, text in outputs.items() if "plot" in command)
    assert "C  model-q4.gguf" in plotted


def test_the_card_has_plan_sizes_losses_and_speeds(outputs: dict[str, str]) -> None:
    report, card = json.loads(outputs["report"]), outputs["card"]
    measured = report["measured"]
    assert report["type"] == "q5_k_m" and sum(report["tensors_by_type"].values()) == 21
    assert measured["bytes_b"] < measured["bytes_a"] and measured["mean"] > 0 and len(measured["layers"]) == 2
    for wanted in (f"{measured['perplexity_b']:.4f}", "decode, tokens/s", "## Plan", "Matrices that lost most"):
        assert wanted in card, wanted


def test_a_card_needs_the_manifest(tmp_path: Path) -> None:
    from weft.errors import InputError, NotFoundError
    from weft.measure.card import read_manifest

    with pytest.raises(NotFoundError, match=r"small\.gguf\.json is missing"):
        read_manifest(tmp_path / "small.gguf")
    (tmp_path / "small.gguf.json").write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_manifest(tmp_path / "small.gguf")
