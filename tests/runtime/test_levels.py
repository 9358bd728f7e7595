"""Whole models have the same bits on AVX2, AVX-512 and AMX; the scalar level, which cannot fuse, stays close."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from test_gguf_models import BLOCKED, write_model

from weft.backends.cpu import levels_present
from weft.runtime import Decoder, Encoder, Head, open_checkpoint
from weft.runtime.programs import model_module


def outputs(folder: Path, level: str) -> np.ndarray:
    checkpoint = open_checkpoint(folder)
    ids = tiny.token_ids(dict(checkpoint.config), 130)
    if model_module(checkpoint.model_type).KIND == "encoder":
        return Encoder(checkpoint, Head("mean"), level=level).hidden_states(ids)
    return Decoder(checkpoint, context=256, level=level).logits(ids)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_fused_levels_agree_to_the_bit(tmp_path: Path, name: str) -> None:
    if "avx512" not in levels_present():
        pytest.skip("this machine has only one of avx2 and avx512")
    folder = tiny.write_folder(tmp_path, tiny.CONFIGS[name])
    assert np.array_equal(outputs(folder, "avx2"), outputs(folder, "avx512"))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_quantised_models_have_the_same_bits_in_the_matrix_unit(tmp_path: Path, kind: str) -> None:
    if "amx" not in levels_present():
        pytest.skip("this machine has no AMX")
    path = write_model(tmp_path / "m.gguf", BLOCKED, kind)
    assert np.array_equal(outputs(path, "avx512"), outputs(path, "amx"))


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_scalar_level_stays_close(tmp_path: Path, name: str) -> None:
    if len(levels_present()) < 2:
        pytest.skip("this machine has no level but scalar")
    folder = tiny.write_folder(tmp_path, tiny.CONFIGS[name])
    scalar, best = outputs(folder, "scalar"), outputs(folder, levels_present()[-1])
    assert np.linalg.norm(scalar - best) <= 1e-5 * np.linalg.norm(best)
