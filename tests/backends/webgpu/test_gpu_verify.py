"""`weft verify --device`: the report of a device beside the CPU. The reference stands in where there is no GPU."""

import json
import sys
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from weft.cli.app import app
from weft.measure.parity import Parity, parity

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / name) for name in ("serve", "cli")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    name = "llama-grouped"
    return str(tiny.write_folder(tmp_path_factory.mktemp("tiny") / name, tiny.CONFIGS[name]))


def test_a_generator_on_another_backend_is_compared_token_by_token(folder):
    found = parity(folder, "reference")
    assert found.kind == "generator" and found.agreement == 1.0 and found.spearman > 0.9999
    assert 0 < found.largest < 1e-4 and found.same_bits and found.passed


def test_the_command_reports_a_gpu_as_json(gpu, folder):
    result = CliRunner().invoke(app, ["verify", folder, "--device", "gpu", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["passed"] and report["same_bits"] and report["agreement"] == 1.0


def test_a_benchmark_measures_the_gpu_and_its_own_bandwidth(gpu, folder, monkeypatch):
    monkeypatch.setenv("WEFT_BACKEND", "gpu")  # the option sets it, and this takes it back
    asked = ["bench", "decode", "-m", folder, "--device", "gpu", "--tokens", "2", "5", "--rounds", "1", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["device"] == gpu.device.adapter.name
    (row,), (roof,) = report["rows"], report["roofs"].values()
    assert row["unit"] == "tokens/s" and row["median"] > 0 and row["share"] >= 0 and roof["high"] > 0


def test_perplexity_is_measured_on_a_device(gpu, tmp_path, monkeypatch):
    from tiny_models import write_models

    model, text = write_models(tmp_path)["plain"], tmp_path / "text.txt"
    text.write_text("A cat sat on the mat and looked at the moon.\n")
    found = []
    for device in ("cpu", "gpu"):
        monkeypatch.setenv("WEFT_BACKEND", device)
        result = CliRunner().invoke(app, ["eval", "ppl", str(model), str(text), "--device", device, "--json"])
        assert result.exit_code == 0, result.output
        found.append(json.loads(result.stdout)["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_options_that_do_not_go_with_a_device_are_named(folder):
    result = CliRunner().invoke(app, ["verify", folder, "--device", "gpu", "--compute", "int8"])
    assert result.exit_code == 2 and "--compute cannot be combined" in result.output


@pytest.mark.parametrize("change", [{"largest": 0.1}, {"spearman": 0.9}, {"agreement": 0.5}, {"same_bits": False}])
def test_a_device_that_differs_fails(change):
    right = {"largest": 1e-6, "spearman": 1.0, "agreement": 1.0, "same_bits": True}
    made = {"model": "m", "device": "d", "kind": "generator"}
    assert Parity(**made, **right).passed
    assert not Parity(**made, **{**right, **change}).passed
