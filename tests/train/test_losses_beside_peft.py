"""A training of SmolLM2 in Q4_1 has the losses of PyTorch and PEFT: same first matrices, same batches, AdamW in f32."""

from pathlib import Path

import dates_case
import numpy as np
import pytest
from soaking import times

GOLDEN = dict(np.load(Path(__file__).resolve().parent.parent / "golden" / "train" / "peft-losses.npz"))
CLOSE = 1e-3  # of a loss, while both runs are at the same place
FINAL = 0.005  # of the validation loss after all steps, as a part of it


def test_the_recorded_runs_agree():
    """Both curves of the script that made them, on one machine."""
    peft, own = GOLDEN["peft"], GOLDEN["weft"]
    assert len(peft) == len(own) == dates_case.STEPS
    assert np.abs(own - peft)[: dates_case.CLOSE].max() <= CLOSE / 4
    assert abs(GOLDEN["weft_valid"] / GOLDEN["peft_valid"] - 1) <= FINAL / 2
    assert abs(own[-50:].mean() / peft[-50:].mean() - 1) <= 0.005
    assert GOLDEN["peft_valid"] < 0.2 * peft[0]  # they have learnt something


@pytest.mark.soak
@pytest.mark.weights
def test_losses_are_those_of_peft(smollm2):
    """Five steps, and all 200 in a soak run."""
    training, found = dates_case.training(smollm2), []
    assert training.data.digest() == str(GOLDEN["digest"]), "other rows: run make_peft_losses.py"
    for step in training:
        found.append(step.loss)
        if len(found) == times(dates_case.STEPS, 5):
            break
    near = found[: dates_case.CLOSE]
    assert np.abs(np.asarray(near) - GOLDEN["peft"][: len(near)]).max() <= CLOSE
    if step.valid is not None:
        assert len(found) == dates_case.STEPS and abs(step.valid / GOLDEN["peft_valid"] - 1) <= FINAL
