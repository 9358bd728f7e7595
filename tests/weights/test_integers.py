"""AWQ, GPTQ and compressed-tensors folders: exactly what they stand for, transformers' logits, typed refusals."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError, UnsupportedError, WeightError
from weft.runtime import Decoder, open_checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))
import tiny
import tiny_integers
from tiny_integers import CONFIG, IDS, VARIANTS

GOLDEN = np.load(Path(__file__).resolve().parents[1] / "golden" / "integers" / "integers.npz")
TYPES = {"awq": "q4_z", (4, True): "q4_0", (4, False): "q4_z", (8, True): "q8_0"}


def folder_of(name: str, tmp_path: Path, **changes: Any) -> Path:
    about = VARIANTS[name]
    tiny_integers.write(tmp_path, about)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"].update(changes)
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.mark.parametrize("name", VARIANTS)
def test_a_folder_means_its_integers_and_computes_transformers_logits(name: str, tmp_path: Path) -> None:
    about = VARIANTS[name]
    dense = tiny_integers.write(tmp_path, about)
    checkpoint = open_checkpoint(tmp_path)
    wanted = TYPES.get(about["method"]) or TYPES[about["bits"], about["symmetric"]]
    for key, value in dense.items():
        tensor = checkpoint.tensor(key, value.shape)
        assert np.array_equal(tensor.numpy(), value), key
        assert tensor.view.dtype.name == (wanted if key.endswith("_proj.weight") else "f32")
    assert set(checkpoint.tensors) == set(dense)
    found = Decoder(checkpoint, compute="f32", kv_dtype="f32").logits(IDS)
    np.testing.assert_allclose(found, GOLDEN[name], atol=2e-5 * np.abs(GOLDEN[name]).max())


@pytest.mark.parametrize("name", ["awq-32", "gptq-4-sym-32", "ct-8-packed-channel"])
def test_int8_activations_stay_close(name: str, tmp_path: Path) -> None:
    tiny_integers.write(tmp_path, VARIANTS[name])
    found = Decoder(open_checkpoint(tmp_path), compute="int8", kv_dtype="f32").logits(IDS)
    np.testing.assert_allclose(found, GOLDEN[name], atol=0.05 * np.abs(GOLDEN[name]).max())


def test_zero_points_of_sixteen_are_read(tmp_path: Path) -> None:
    """GPTQ's version 1 stores zeros less one, so that the largest means 16."""
    stored, _ = tiny_integers.model(VARIANTS["gptq-4-asym-64"])
    base = "model.layers.0.mlp.up_proj"
    stored[f"{base}.qzeros"] = np.full_like(stored[f"{base}.qzeros"], -1)
    tiny.write_folder(
        tmp_path, {**CONFIG, "quantization_config": tiny_integers.described(VARIANTS["gptq-4-asym-64"])}, stored
    )
    codes, zero, scale = tiny_integers.quantised(tiny.weights(CONFIG)[f"{base}.weight"], VARIANTS["gptq-4-asym-64"])
    found = open_checkpoint(tmp_path).tensor(f"{base}.weight", codes.shape).numpy()
    assert np.array_equal(found, tiny_integers.meaning(codes, np.full_like(zero, 16), scale))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("awq-32", {"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ("awq-32", {"version": "gemv"}, "gemv"),
        ("awq-32", {"bits": 3}, "3"),
        ("awq-32", {"zero_point": False}, "zero points"),
        ("gptq-4-sym-32", {"bits": 3}, "4 and 8 bits"),
        ("gptq-4-sym-32", {"checkpoint_format": "marlin"}, "marlin"),
        ("ct-4-sym-32", {"format": "nvfp4-pack-quantized"}, "nvfp4-pack-quantized"),
        ("ct-4-sym-32", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (
            "ct-4-sym-32",
            {"config_groups": {"group_0": {"weights": {"type": "float", "num_bits": 8}}}},
            "float",
        ),
        ("ct-4-sym-32", {"config_groups": {"group_0": {"weights": {"type": "int", "num_bits": 2}}}}, "2"),
        ("ct-4-sym-32", {"config_groups": {"g": {"weights": {"num_bits": 4, "strategy": "block"}}}}, "block"),
    ],
)
def test_other_variants_are_refused_by_name(name: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=words) as caught:
        open_checkpoint(folder_of(name, tmp_path, **changes))
    assert caught.value.advice


def test_an_order_of_activations_is_refused(tmp_path: Path) -> None:
    about = VARIANTS["gptq-4-sym-32"]
    stored, _ = tiny_integers.model(about)
    stored["model.layers.1.mlp.up_proj.g_idx"] = stored["model.layers.1.mlp.up_proj.g_idx"][::-1].copy()
    tiny.write_folder(tmp_path, {**CONFIG, "quantization_config": tiny_integers.described(about)}, stored)
    with pytest.raises(UnsupportedError, match="desc_act"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("name", "part", "value", "words"),
    [
        ("gptq-4-sym-32", ".qzeros", None, "is missing"),
        ("gptq-4-sym-32", ".scales", np.ones((4, 3), np.float16), "outputs"),
        ("gptq-4-sym-32", ".qzeros", np.ones((4, 3), np.int32), "shape"),
        ("awq-64", ".qzeros", np.ones((2, 24), np.float16), "shape"),
        ("ct-4-sym-32", ".weight_shape", np.array([192, 1 << 40], np.int64), "weight_shape"),
        ("ct-4-sym-32", ".weight_scale", np.ones((5, 1), np.float16), "weight_scale"),
        ("ct-4-asym-64-bf16", ".weight_zero_point", np.ones((3, 2), np.int32), "zero_point"),
        ("ct-8-plain-channel", ".weight", np.ones((192, 128), np.int16), "shape"),
    ],
)
def test_broken_parts_are_errors(name: str, part: str, value: Any, words: str, tmp_path: Path) -> None:
    stored, _ = tiny_integers.model(VARIANTS[name])
    key = f"model.layers.0.mlp.up_proj{part}"
    assert key in stored
    stored = {k: (value if k == key else v) for k, v in stored.items() if k != key or value is not None}
    tiny.write_folder(tmp_path, {**CONFIG, "quantization_config": tiny_integers.described(VARIANTS[name])}, stored)
    with pytest.raises(WeightError, match=words):
        open_checkpoint(tmp_path)


def test_infinite_scales_are_an_error(tmp_path: Path) -> None:
    stored, _ = tiny_integers.model(VARIANTS["awq-64"])
    stored["model.layers.0.mlp.up_proj.scales"] = np.full((2, 192), np.inf, np.float16)
    tiny.write_folder(tmp_path, {**CONFIG, "quantization_config": tiny_integers.described(VARIANTS["awq-64"])}, stored)
    with pytest.raises(WeightError, match="not finite"):
        open_checkpoint(tmp_path).tensor("model.layers.0.mlp.up_proj.weight", (192, 128)).numpy()


def test_a_config_of_another_kind_is_an_error(tmp_path: Path) -> None:
    tiny.write_folder(tmp_path, {**CONFIG, "quantization_config": ["awq"]})
    with pytest.raises(FormatError, match="quantization_config"):
        open_checkpoint(tmp_path)
