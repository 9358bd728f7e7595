"""Folders in integers: the codes lose what a search of all scales loses, read back exactly, whole after any stop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError, UnsupportedError
from weft.quantise import QuantisingFolder
from weft.quantise.folder import MANIFEST
from weft.quantise.grouped import packed_words, rounded
from weft.runtime import Decoder, open_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import tiny
import tiny_integers
from tiny_integers import CONFIG, IDS

KINDS = [("int8", None, "q8_0"), ("int4", 32, "q4_0"), ("int4", 64, "q4_0"), ("int4-asym", 32, "q4_z")]
KINDS += [("int4", "row", "q4_0"), ("int4-asym", "row", "q4_z")]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    folder = tiny.write_folder(tmp_path_factory.mktemp("folders") / "model", CONFIG)
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "onnx").mkdir()
    (folder / "pytorch_model.bin").write_bytes(b"never copied")
    return folder


@pytest.mark.parametrize(("kind", "group", "block"), KINDS)
def test_a_folder_reads_back_as_it_was_rounded(kind, group, block, source, tmp_path) -> None:
    output = tmp_path / "out"
    written = list(QuantisingFolder(source, output, type=kind, group=group, threads=2))
    before, after = open_checkpoint(source), open_checkpoint(output)
    assert set(before.tensors) == set(after.tensors) == {one.name for one in written}
    said = json.loads((output / MANIFEST).read_text())
    for one in written:
        values = before.tensors[one.name].numpy()
        view = after.tensors[one.name].view
        if not one.name.endswith("_proj.weight"):
            assert view.dtype.name == ("f16" if values.ndim > 1 else "f32") and one.lost < 1e-6
            continue
        bits, symmetric = (8 if kind == "int8" else 4), kind != "int4-asym"
        columns = None if group == "row" else group
        found = rounded(values, bits=bits, group=columns, symmetric=symmetric)
        assert view.dtype.name == block and np.array_equal(view.numpy(), found.dense()), one.name
        lost = ((values.astype(np.float64) - view.numpy()) ** 2).sum() / (values.astype(np.float64) ** 2).sum()
        assert one.lost == pytest.approx(lost, rel=1e-6) and said["tensors"][one.name]["lost"] == one.lost
        assert 0 < lost < (1e-4 if bits == 8 else 0.02)
    assert (output / "tokenizer_config.json").is_file() and (output / "1_Pooling" / "config.json").is_file()
    assert not (output / "onnx").exists() and not (output / "pytorch_model.bin").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    wide = {name: after.tensors[name].numpy().astype(np.float32) for name in after.tensors}
    plain = tiny.write_folder(tmp_path / "plain", CONFIG, wide)
    paths = (output, plain)
    found, wanted = (Decoder(open_checkpoint(path), compute="f32", kv_dtype="f32").logits(IDS) for path in paths)
    np.testing.assert_allclose(found, wanted, atol=2e-5 * np.abs(wanted).max())


def test_the_bytes_are_compressed_tensors_own(source, tmp_path) -> None:
    """The words of int4-asym are those that tests/golden/integers holds to compressed_tensors' packer."""
    rng = np.random.default_rng(3)
    for bits in (4, 8):
        codes = rng.integers(0, 1 << bits, (24, 96)).astype(np.uint8)
        assert np.array_equal(packed_words(codes, bits), tiny_integers.words(codes, bits))
        odd = codes[:, :13]
        assert np.array_equal(packed_words(odd, bits), tiny_integers.words(odd, bits))
    list(QuantisingFolder(source, tmp_path / "out", type="int4-asym", group=64))
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert about["quant_method"] == "compressed-tensors" and about["format"] == "pack-quantized"
    assert about["config_groups"]["group_0"]["weights"]["symmetric"] is False and about["ignore"] == ["lm_head"]


@pytest.mark.parametrize(("symmetric", "bound"), [(True, 1.03), (False, 1.10)])
def test_a_search_of_many_scales_loses_hardly_less(symmetric: bool, bound: float) -> None:
    rng = np.random.default_rng(4)
    values = (rng.standard_normal((40, 64)) * np.exp(rng.normal(0, 0.3, (40, 1)))).astype(np.float32)
    found = rounded(values, bits=4, group=64, symmetric=symmetric)
    lost = ((values - found.dense()) ** 2).sum(axis=1)
    best = np.full(len(values), np.inf)
    for step in np.linspace(0.05, 0.4, 300):
        scale = np.float32(np.float16(step)) * np.abs(values).max(axis=1, keepdims=True)
        for zero in (8,) if symmetric else range(16):
            codes = np.clip(np.rint(values / scale), -zero, 15 - zero)
            best = np.minimum(best, ((values - codes * scale) ** 2).sum(axis=1))
    assert lost.mean() <= bound * best.mean()
    plain = np.abs(values).max(axis=1, keepdims=True) / 7
    assert lost.mean() < ((values - np.rint(values / plain) * plain) ** 2).sum(axis=1).mean()


def test_zeros_and_tiny_groups_are_zeros() -> None:
    values = np.zeros((3, 64), np.float32)
    values[1] = 1e-12
    for symmetric in (True, False):
        for bits in (4, 8):
            assert not rounded(values, bits=bits, group=32, symmetric=symmetric).dense().any()


def counted(make, names):
    def made(name, view):
        names.append(name)
        return make(name, view)

    return made


def test_threads_and_stops_change_no_byte(source, tmp_path) -> None:
    whole = tmp_path / "whole"
    list(QuantisingFolder(source, whole, type="int4", group=32, threads=3))
    for stop in (1, 7):
        output = tmp_path / f"stopped{stop}"
        run = iter(QuantisingFolder(source, output, type="int4", group=32))
        for _ in range(stop):
            next(run)
        run.close()
        assert not output.exists()
        again = QuantisingFolder(source, output, type="int4", group=32)
        made: list[str] = []
        again._made = counted(again._made, made)
        assert len(list(again)) == len(again) and len(made) == len(again) - stop
        for path in sorted(whole.rglob("*")):
            if path.is_file():
                assert (output / path.relative_to(whole)).read_bytes() == path.read_bytes(), path.name


def test_wrong_input_is_named(source, tmp_path) -> None:
    with pytest.raises(InputError, match="int8 has one scale"):
        QuantisingFolder(source, tmp_path / "x", type="int8", group=32)
    with pytest.raises(InputError, match="int8 has one scale"):
        QuantisingFolder(source, tmp_path / "x", type="int8", group="row")
    for group in (48, "rows"):
        with pytest.raises(InputError, match="32, 64, 128 and row"):
            QuantisingFolder(source, tmp_path / "x", type="int4", group=group)
    with pytest.raises(InputError, match="exists"):
        QuantisingFolder(source, source.parent, type="int4")
    with pytest.raises(UnsupportedError, match="not a Hugging Face folder"):
        QuantisingFolder(tmp_path, tmp_path / "x", type="int4")


def test_the_command_writes_a_folder(source, tmp_path) -> None:
    from click.testing import CliRunner

    from weft.cli.app import app

    def run(*more: object) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["quantize", str(source), "-o", str(tmp_path / "out"), *map(str, more)])
        return found.exit_code, found.output

    code, said = run("--type", "int4", "--group", 32, "--json")
    assert code == 0, said
    assert {row["to"] for row in json.loads(said)["tensors"]} == {"int4", "f16"}
    assert open_checkpoint(tmp_path / "out").tensors["model.layers.0.mlp.up_proj.weight"].view.dtype.name == "q4_0"
    code, said = run("--type", "int4", "--group", 32)
    assert code == 2 and "exists" in said
    code, said = run("--type", "int4", "--group", "row", "--force")
    about = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    weights = about["config_groups"]["group_0"]["weights"]
    assert code == 0 and (weights["strategy"], weights["group_size"]) == ("channel", None)
    code, said = run("--type", "int4", "--group", "column", "--force")
    assert code == 2 and "32, 64, 128 and row" in said
    code, said = run("--type", "int8", "--force")
    assert code == 0 and MANIFEST in said
    code, said = run("--type", "int4", "--tensor", "up_proj=q8_0", "--force")
    assert code == 2 and "is for GGUF's types" in said
    code, said = run("--type", "q8_0", "--group", 32, "--force")
    assert code == 2 and "int4" in said
