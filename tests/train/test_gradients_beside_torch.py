"""Losses and gradients are PyTorch's: of every decoder's tiny checkpoint, in f32 and in other types."""

from pathlib import Path

import gradient_cases
import numpy as np
import pytest
import tiny
from soaking import SOAK

from weft.train import Learner

GOLDEN = dict(np.load(Path(__file__).resolve().parent.parent / "golden" / "train" / "gradients.npz"))
CASES = gradient_cases.cases()


# Every type of model in f32; every config and other types of weights in a soak run, some of them always.
OFTEN = {tiny.CONFIGS[name]["model_type"]: name for name in reversed(gradient_cases.DECODERS)}
NAMES = [
    name
    for name in GOLDEN
    if SOAK
    or name in OFTEN.values()
    or name.split("/")[0] in ("llama", "phi3")
    or name in ("qwen3_moe/q4_k", "lfm2/q8_0")
]


def test_every_decoder_is_compared():
    assert GOLDEN.keys() == CASES.keys()


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_pytorch(tmp_path, name):
    """1e-9 in float64, 2e-5 of the norm on kernels in f32."""
    cfg, dtype = CASES[name]
    checkpoint = gradient_cases.checkpoint_of(tmp_path, cfg, dtype)
    lessons, changes = gradient_cases.lessons(cfg), gradient_cases.changes(checkpoint)
    wanted_loss, wanted = GOLDEN[name][0, 0], GOLDEN[name][1:]
    # Random models of the delta rule: rounding each exact result alone moves qwen3_5_moe_text by 6e-5. qwen3_next is
    # not so ill conditioned (3e-6): its 3.3e-5 come from the kernels.
    on_kernels = 1e-4 if any("linear_attn" in change for change in changes) else 2e-5
    for backend, limit in (("reference", 1e-9), ("cpu", on_kernels)):
        learner = Learner(checkpoint, changes, context=256, backend=backend)
        trained = gradient_cases.parameters(learner.shapes)
        loss, found = learner.gradients(lessons, trained, learner.no_gradient())
        assert abs(loss / wanted_loss - 1) <= limit
        assert gradient_cases.distance(gradient_cases.kept(found), wanted) <= limit
