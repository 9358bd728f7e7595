"""weft quantize: the file, what it says, and errors."""

from __future__ import annotations

import json

import numpy as np
from click.testing import CliRunner

from weft.cli.app import app
from weft.weights import open_gguf, write_gguf


def run(*arguments: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["quantize", *map(str, arguments)])
    return found.exit_code, found.output


def test_a_file_is_written_and_said(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {"token_embd.weight": rng.standard_normal((40, 64)), "output_norm.weight": np.ones(64)}
    source, output = tmp_path / "model.gguf", tmp_path / "small.gguf"
    metadata = {"general.architecture": "llama", "general.name": "tiny"}
    write_gguf(source, {name: value.astype(np.float32) for name, value in tensors.items()}, metadata)
    code, said = run(source, "-o", output, "--type", "q4_0", "--tensor", "token=q8_0", "--json")
    assert code == 0, said
    found = json.loads(said)
    assert found["bytes"] < found["bytes_before"] and [row["to"] for row in found["tensors"]] == ["q8_0"]
    assert open_gguf(output)["token_embd.weight"].dtype.name == "q8_0"
    code, said = run(source, "-o", output, "--type", "q4_0")
    assert code == 2 and "exists" in said
    code, said = run(source, "-o", output, "--type", "q4_0", "--force")
    assert code == 0 and "1 of 2 changed" in said
    code, said = run(source, "-o", tmp_path / "other.gguf", "--type", "q4_0", "--tensor", "token")
    assert code == 2 and "NAME=TYPE" in said
    code, said = run(source, "-o", tmp_path / "other.gguf", "--type", "q7")
    assert code == 2 and "must be one of" in said
