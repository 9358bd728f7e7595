"""`weft adopt` drafts a description, says what it assumed and what does not fit, and weft then runs the model."""

import json
from pathlib import Path

import pytest
import tiny
import tiny_adopted
from running import Run


@pytest.fixture
def phi(tmp_path: Path) -> Path:
    return tiny_adopted.write(tmp_path / "phi", "phi")


def test_a_draft_is_printed_and_the_report_is_beside_it(run: Run, phi: Path) -> None:
    result = run("adopt", str(phi))
    assert result.exit_code == 0 and json.loads(result.stdout)["made_from"] == "phi"
    assert result.stderr == "The draft fits: every tensor of this phi is used, and none is missing.\n"
    assert not (phi / "weft.json").exists()


@pytest.mark.parametrize("place", ["", "weft.json"])
def test_a_written_draft_is_a_model_that_weft_runs(run: Run, phi: Path, place: str) -> None:
    result = run("adopt", str(phi), "-o", str(phi / place))
    assert result.exit_code == 0 and result.stdout == "" and f"written to {phi / 'weft.json'}" in result.stderr
    shown = run("show", str(phi))
    assert shown.exit_code == 0 and "generic" in shown.stdout
    assert json.loads(run("show", str(phi), "--config").stdout) == json.loads((phi / "weft.json").read_text())


def test_a_file_that_is_there_is_not_replaced(run: Run, phi: Path, tmp_path: Path) -> None:
    place = tmp_path / "mine.json"
    place.write_text("mine")
    result = run("adopt", str(phi), "-o", str(place))
    assert result.exit_code == 2 and "exists; remove it, or give another path" in result.stderr
    assert place.read_text() == "mine"


def test_an_obstacle_is_one_line_and_nothing_is_written(run: Run, tmp_path: Path) -> None:
    folder = tiny_adopted.write(tmp_path / "mamba", "mamba")
    result = run("adopt", str(folder), "-o", str(folder))
    assert result.exit_code == 1 and result.stdout == "" and not (folder / "weft.json").exists()
    assert result.stderr.splitlines() == [
        "weft: [adopt] a mamba does not fit a description: state_size 16: a state space in place of attention; "
        "conv_kernel 4: a convolution; such a model needs a file in weft/models"
    ]


def test_a_draft_that_does_not_fit_is_printed_with_what_is_missing(run: Run, tmp_path: Path) -> None:
    folder = tiny_adopted.write(tmp_path / "narrow", "electra-narrow")
    result = run("adopt", str(folder))
    assert result.exit_code == 1 and json.loads(result.stdout)["kind"] == "encoder"
    assert "tensors that the draft does not use:\n  embeddings_project" in result.stderr
    assert "tensors that are missing or have another shape:\n  embeddings.word_embeddings.weight" in result.stderr
    assert "5 tensors missing or of another shape, 2 tensors not used; complete it by hand" in result.stderr


def test_assumptions_and_unknown_keys_are_listed(run: Run, tmp_path: Path) -> None:
    cfg = {**tiny.LLAMA, "model_type": "somebodys_llama", "attention_sharpness": 3}
    folder = tiny.write_folder(tmp_path / "own", cfg, tiny.weights(tiny.LLAMA))
    lines = run("adopt", str(folder)).stderr.splitlines()
    assert lines[:2] == ["assumed, since no file says it:", "  channels rotate in halves"]
    assert lines[2:4] == [
        "keys of config.json that the draft does not take into account:",
        "  attention_sharpness 3",
    ]


def test_an_interrupt_leaves_no_file(run: Run, phi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.describe.adopting.traced", interrupt)
    assert run("adopt", str(phi), "-o", str(phi)).exit_code == 130
    assert sorted(path.name for path in phi.iterdir()) == ["config.json", "model.safetensors"]


def test_a_model_with_a_file_of_its_own_is_refused(run: Run, tmp_path: Path) -> None:
    result = run("adopt", str(tiny.write_folder(tmp_path / "llama", tiny.LLAMA)))
    assert result.exit_code == 2 and "weft has a file for models of type llama" in result.stderr
