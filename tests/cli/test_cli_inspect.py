"""`weft inspect` says what a file of another format is, and what to use instead."""

import json
from pathlib import Path

import pytest
from running import Run

GOLDEN = Path(__file__).parent.parent / "golden" / "weights"


@pytest.mark.parametrize(
    ("name", "kind", "details", "advice"),
    [
        (
            "tiny.onnx",
            "an ONNX model",
            "IR version 14, by weft-tests 1",
            "use the safetensors or GGUF version of the model",
        ),
        (
            "tiny.mlmodel",
            "a Core ML model",
            "specification version 1",
            "use the safetensors or GGUF version of the model",
        ),
    ],
)
def test_a_file_of_another_format_is_described(run: Run, name: str, kind: str, details: str, advice: str) -> None:
    result = run("inspect", str(GOLDEN / name))
    assert result.exit_code == 0, result.stderr
    assert kind in result.stdout and details in result.stdout and advice in result.stdout
    found = json.loads(run("inspect", str(GOLDEN / name), "--json").stdout)
    assert (found["format"], found["details"], found["readable"]) == (kind, details, False) and advice in found[
        "advice"
    ]


def test_a_file_that_is_nothing_known_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "unknown").write_bytes(b"\xff" * 5000)
    assert run("inspect", str(tmp_path / "unknown")).exit_code == 1
