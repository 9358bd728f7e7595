"""gpt_oss's experts in MXFP4, as safetensors files and as GGUF files have them, and what its files may not lack."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from tiny_gguf import gguf_from_config, gguf_tensors

from weft.errors import WeightError
from weft.runtime import Decoder, open_checkpoint
from weft.weights import write_gguf
from weft.weights.experts import expert_stacks
from weft.weights.files import TensorView

LEVELS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
CONFIG: dict[str, Any] = {**tiny.CONFIGS["gpt_oss-plain-clamped"], "swiglu_limit": 7.0}


def in_blocks(cfg: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The tensors with random blocks and scales for experts, and with the numbers that these stand for."""
    rng = np.random.default_rng(5)
    packed = tiny.weights(cfg)
    plain = dict(packed)
    for name in [name for name in packed if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = packed.pop(name).shape
        blocks = rng.integers(0, 256, (count, outputs, inputs // 32, 16), np.uint8)
        scales = rng.integers(122, 126, (count, outputs, inputs // 32), np.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)  # two neighbours in a byte
        values = LEVELS[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
        plain[name] = np.ascontiguousarray(values.reshape(count, outputs, inputs).swapaxes(1, 2))
    return packed, plain


def logits(path: Path, compute: str) -> np.ndarray:
    return Decoder(open_checkpoint(path), compute=compute, kv_dtype="f32").logits(tiny.token_ids(CONFIG, 40))


def test_experts_in_mxfp4_are_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    packed, plain = in_blocks(CONFIG)
    folder = tiny.write_folder(tmp_path / "packed", CONFIG, packed)
    views = {name: TensorView.of(value) for name, value in packed.items()}
    write_gguf(tmp_path / "m.gguf", gguf_tensors(CONFIG, views), gguf_from_config(CONFIG))
    stored = open_checkpoint(tmp_path / "m.gguf").tensors["model.layers.0.mlp.experts.each.up_proj.weight"].view
    assert (stored.dtype.name, stored.shape) == ("mxfp4", (4, 32, 64))
    want = logits(tiny.write_folder(tmp_path / "plain", CONFIG, plain), "f32")
    np.testing.assert_array_equal(logits(folder, "f32"), want)
    np.testing.assert_array_equal(logits(tmp_path / "m.gguf", "f32"), want)
    rounded = logits(folder, "int8")
    np.testing.assert_array_equal(logits(tmp_path / "m.gguf", "int8"), rounded)
    assert 0 < np.abs(rounded - want).max() < 0.05 * np.abs(want).max()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("experts.down_proj_scales"), "experts.down_proj_scales is missing"),
        (lambda t: t.update({"experts.down_proj_blocks": np.zeros((2, 3, 4, 8), np.uint8)}), "which no experts have"),
        (lambda t: t.update({"experts.gate_up_proj": np.zeros((2, 3, 5), np.float32)}), "which no experts have"),
    ],
)
def test_experts_of_no_form_are_refused(change: Any, message: str) -> None:
    tensors = {"experts.down_proj_blocks": np.zeros((2, 3, 4, 16), np.uint8)}
    tensors["experts.down_proj_scales"] = np.zeros((2, 3, 4), np.uint8)
    change(tensors)
    with pytest.raises(WeightError, match=message):
        expert_stacks({name: TensorView.of(value) for name, value in tensors.items()})
