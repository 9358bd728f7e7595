"""Whole models have the same bits at every level but scalar, which cannot fuse multiply and add and stays close, and
those with a matrix unit, where models without a state multiply floats by parts and are closer."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from test_gguf_models import BLOCKED, write_model

from weft.backends.cpu import levels_present
from weft.backends.cpu.backend import HALF_LEVELS, MATRIX_LEVELS
from weft.runtime import Decoder, Encoder, Head, open_checkpoint


def outputs(folder: Path, level: str) -> np.ndarray:
    checkpoint = open_checkpoint(folder)
    ids = tiny.token_ids(dict(checkpoint.config), 130)
    if not tiny.decodes(dict(checkpoint.config)):
        return Encoder(checkpoint, Head("mean"), level=level).hidden_states(ids)
    return Decoder(checkpoint, context=256, level=level).logits(ids)


def check_fused_levels(folder: Path) -> None:
    """Every level of the machine that fuses multiply and add gives the same bits: all but scalar. Encoders have others
    at levels with a matrix unit, within the roundings of f32."""
    encodes = not tiny.decodes(dict(open_checkpoint(folder).config))
    fused = [level for level in levels_present() if level != "scalar"]
    if len(fused) < 2:
        pytest.skip("this machine has no two levels with a fused multiply-add")
    first = outputs(folder, fused[0])
    for level in fused[1:]:
        if encodes and level in MATRIX_LEVELS:
            assert np.linalg.norm(first - outputs(folder, level)) <= 2e-6 * np.linalg.norm(first)
        else:
            assert np.array_equal(first, outputs(folder, level)), level


def test_products_by_parts_are_closer_to_the_reference(tmp_path: Path) -> None:
    levels = levels_present()
    if levels[-1] not in MATRIX_LEVELS:
        pytest.skip("this machine has no matrix unit")
    # Blocks of columns, a part of one, single columns.
    cfg = {**tiny.CONFIGS["bert"], "hidden_size": 192, "intermediate_size": 800}
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path, cfg))
    ids = tiny.token_ids(cfg, 130)
    exact = Encoder(checkpoint, Head("mean"), backend="reference").hidden_states(ids).astype(np.float64)
    fused, parts = (
        np.abs(Encoder(checkpoint, Head("mean"), level=level).hidden_states(ids) - exact) for level in levels[-2:]
    )
    assert np.linalg.norm(parts) < np.linalg.norm(fused)
    assert parts.max() < fused.max()


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_fused_levels_agree_to_the_bit(tmp_path: Path, name: str) -> None:
    check_fused_levels(tiny.write_folder(tmp_path, tiny.CONFIGS[name]))


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"])
def test_fused_levels_agree_on_quantised_models(tmp_path: Path, kind: str) -> None:
    check_fused_levels(write_model(tmp_path / "m.gguf", BLOCKED, kind))


@pytest.mark.parametrize("compute", ["f16", "bf16", "bf16x3", "int8"])
def test_fused_levels_agree_on_rounded_encoders(tmp_path: Path, compute: str) -> None:
    """And all are near f32, the scalar level too. Levels with arithmetic of half precision use it beside int8."""
    cfg = {**tiny.CONFIGS["bert"], "hidden_size": 64, "intermediate_size": 192}  # whole steps of every product
    checkpoint = open_checkpoint(tiny.write_folder(tmp_path, cfg))
    ids = tiny.token_ids(cfg, 130)
    fused = [level for level in levels_present() if level != "scalar"]
    made = {
        level: Encoder(checkpoint, Head("mean"), compute=compute, level=level).hidden_states(ids) for level in fused
    }
    for same in ([level for level in fused if (level in HALF_LEVELS) == half] for half in (False, True)):
        if compute not in ("int8", "f16"):
            same = fused
        assert all(np.array_equal(made[same[0]], made[level]) for level in same), same
    scalar, exact = (
        Encoder(checkpoint, Head("mean"), compute=kind, level="scalar").hidden_states(ids) for kind in (compute, "f32")
    )
    for rounded in (scalar, *made.values()):
        assert np.linalg.norm(rounded - exact) <= 0.05 * np.linalg.norm(exact)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_sixteen_bit_weights_are_computed_in_what_the_processor_multiplies(tmp_path: Path, kind: str) -> None:
    narrow = open_checkpoint(write_model(tmp_path / "m.gguf", BLOCKED, kind))
    picked = {level: Decoder(narrow, bind=False, level=level).info["compute"] for level in levels_present()}
    narrower = {"amx": "bf16", **dict.fromkeys(HALF_LEVELS, "f16")}
    assert picked == {level: narrower.get(level, "f32") for level in levels_present()}
    assert Decoder(narrow, bind=False, compute="f32").info["compute"] == "f32"


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
def test_decoders_in_half_precision_are_near_f32(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", BLOCKED, kind))
    ids = tiny.token_ids(BLOCKED, 70)
    exact = Decoder(checkpoint, context=128, compute="f32").logits(ids)
    made = {
        level: Decoder(checkpoint, context=128, compute="f16", level=level).logits(ids) for level in levels_present()
    }
    for level, logits in made.items():
        assert np.linalg.norm(logits - exact) <= 0.01 * np.linalg.norm(exact), level
    halves = [logits for level, logits in made.items() if level in HALF_LEVELS]
    assert all(np.array_equal(halves[0], other) for other in halves[1:])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_fused_levels_agree_on_bfloat16_decoders(tmp_path: Path, kind: str) -> None:
    checkpoint = open_checkpoint(write_model(tmp_path / "m.gguf", BLOCKED, kind))
    ids = tiny.token_ids(BLOCKED, 70)
    made, exact = (
        [Decoder(checkpoint, context=128, compute=compute, level=level).logits(ids) for level in levels_present()]
        for compute in ("bf16", "f32")
    )
    assert all(np.array_equal(made[1], other) for other in made[2:])
    assert all(np.linalg.norm(rounded - exact[0]) <= 0.05 * np.linalg.norm(exact[0]) for rounded in made)


def test_wider_and_quantised_weights_have_their_own_defaults(tmp_path: Path) -> None:
    for kind, want in (("f32", "f32"), ("q8_0", "int8")):
        checkpoint = open_checkpoint(write_model(tmp_path / f"{kind}.gguf", BLOCKED, kind))
        assert {Decoder(checkpoint, bind=False, level=level).info["compute"] for level in levels_present()} == {want}


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_scalar_level_stays_close(tmp_path: Path, name: str) -> None:
    if len(levels_present()) < 2:
        pytest.skip("this machine has no level but scalar")
    folder = tiny.write_folder(tmp_path, tiny.CONFIGS[name])
    scalar, best = outputs(folder, "scalar"), outputs(folder, levels_present()[-1])
    assert np.linalg.norm(scalar - best) <= 1e-5 * np.linalg.norm(best)
