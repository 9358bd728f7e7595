"""Models give what transformers computes for long texts, in any chunks and after rollback, to the bit of one step."""

from pathlib import Path

import numpy as np
import pytest
import tiny
from soaking import times
from test_models import GOLDEN, LIMIT

from weft.runtime import Decoder, open_checkpoint
from weft.runtime.paged.holding import slots_of
from weft.runtime.steps import build_step
from weft.weights import write_safetensors

LENGTH = 1000
NAMES = [name for name, cfg in tiny.CONFIGS.items() if tiny.decodes(cfg) and tiny.lengths(cfg)[-1] == LENGTH]


def with_drafts(decoder: Decoder, ids: np.ndarray, chunk: int) -> np.ndarray:
    """Logits of every token; before each chunk other tokens are computed in its place, and forgotten."""
    holding, found = decoder.holding(), []
    assert holding.grow(len(ids))
    for first in range(0, len(ids), chunk):
        right = ids[first : first + chunk]
        wrong = (right + 1) % int(ids.max())
        for part in (wrong, right):
            holding.ready()
            step = build_step([part], starts=[first], asked=[len(part)], pages=[holding.row], slots=slots_of([holding]))
            logits = decoder.run(step)
        found.append(logits)
        holding.advance()
    holding.release()
    return np.concatenate(found)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_long_text_is_that_of_transformers_however_it_is_cut(tmp_path: Path, name: str) -> None:
    cfg = tiny.CONFIGS[name]
    decoder = Decoder(open_checkpoint(tiny.write_folder(tmp_path / name, cfg)), context=LENGTH)
    ids = tiny.token_ids(cfg, LENGTH)
    whole = decoder.logits(ids, chunk=LENGTH)
    want = GOLDEN[f"{name}/{LENGTH}"]
    assert np.abs(want).max() > 0.5
    assert np.abs(whole[[row for row in tiny.KEPT if row < LENGTH]] - want).max() <= LIMIT
    for chunk in (16, 64):
        assert np.array_equal(whole, decoder.logits(ids, chunk=chunk))
    count = times(LENGTH, 200)
    assert np.array_equal(whole[:count], decoder.logits(ids[:count], chunk=1))
    assert np.array_equal(whole, with_drafts(decoder, ids, 97))
    count = times(LENGTH, 40)
    assert np.array_equal(whole[:count], with_drafts(decoder, ids[:count], 1))


def test_every_later_type_is_here() -> None:
    """Each that a script of its own makes, but for encoders, has texts of 1,000 tokens."""
    kinds = {tiny.CONFIGS[name]["model_type"] for name in NAMES}
    assert kinds == {kind for kind, script in tiny.SCRIPTS.items() if any(map(tiny.decodes, script.CONFIGS.values()))}


def test_the_first_names_of_nemotron_h_and_a_limit_of_infinity_are_read(tmp_path: Path) -> None:
    """As the published checkpoints have them."""
    cfg = {**tiny.CONFIGS["nemotron_h"], "time_step_limit": [0.0, float("inf")]}
    ids, folder = tiny.token_ids(cfg, 40), tiny.write_folder(tmp_path / "old", cfg)
    assert "Infinity" in (folder / "config.json").read_text()
    old = {name.replace("model.", "backbone.", 1): value for name, value in tiny.weights(cfg).items()}
    write_safetensors(folder / "model.safetensors", old)
    new = tiny.write_folder(tmp_path / "new", tiny.CONFIGS["nemotron_h"])
    found = [Decoder(open_checkpoint(path)).logits(ids) for path in (folder, new)]
    assert np.array_equal(*found)


def test_the_published_names_of_granite_s_experts_are_read(tmp_path: Path) -> None:
    """Newer checkpoints have transformers' names."""
    cfg = tiny.CONFIGS["granitemoehybrid-experts"]
    ids, new = tiny.token_ids(cfg, 40), tiny.write_folder(tmp_path / "new", cfg)
    names = {"router.weight": "router.layer.weight", "experts.gate_up_proj": "input_linear.weight"}
    names["experts.down_proj"] = "output_linear.weight"
    old = {}
    for name, value in tiny.weights(cfg).items():
        base, moe, own = name.partition("block_sparse_moe.")
        old[f"{base}{moe}{names[own]}" if moe else name] = value
    assert len(old) == len(tiny.weights(cfg)) and "model.layers.0.block_sparse_moe.input_linear.weight" in old
    folder = tiny.write_folder(tmp_path / "old", cfg, old)
    assert np.array_equal(*(Decoder(open_checkpoint(path)).logits(ids) for path in (folder, new)))
