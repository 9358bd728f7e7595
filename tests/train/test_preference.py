"""Preference training: its loss and gradient are torch's, and a run makes the chosen answers likelier."""

import math
from pathlib import Path

import numpy as np
import preference_case as case
import pytest
import tiny

from weft import train
from weft.errors import InputError
from weft.graph.passes.learn import DOWN, UP, LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner, Lesson, Options
from weft.train.preference import Pair, PreferenceRun

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "train" / "dpo.npz"


def lessons():
    for ids, prompt in case.sequences():
        yield Lesson(ids, (np.arange(len(ids)) >= prompt).astype(np.float32))


def pairs():
    each = list(lessons())
    return [Pair(chosen, rejected) for chosen, rejected in zip(each[::2], each[1::2])]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(tiny.write_folder(tmp_path_factory.mktemp("base"), tiny.CONFIGS[case.NAME]))


def run_of(checkpoint, backend=None, **options):
    learner = Learner(checkpoint, dict.fromkeys(case.weights(), LowRank(case.RANK, case.SCALE)), backend=backend)
    start = {}
    for name, (down, up) in case.matrices().items():
        start[DOWN + name], start[UP + name] = down, up
    return PreferenceRun(learner, pairs(), Options(beta=case.BETA, **options), start=start)


@pytest.mark.parametrize("backend, tolerance", [("reference", 1e-6), ("cpu", 2e-5)])
def test_loss_and_gradient_are_those_of_torch(checkpoint, backend, tolerance):
    golden = np.load(GOLDEN)
    run = run_of(checkpoint, backend)
    np.testing.assert_allclose(run.margins(run.lessons), golden["margins"], rtol=1e-5, atol=1e-5)
    found = run.learn(range(len(case.PAIRS)))
    assert abs(found.loss / found.count / float(golden["loss"]) - 1) <= 1e-5
    off = sum(
        float(np.sum((value.astype("f8") / found.count - golden[name]) ** 2)) for name, value in found.sums.items()
    )
    size = sum(float(np.sum(golden[name] ** 2)) for name in found.sums)
    assert math.sqrt(off / size) <= tolerance
    assert found.facts["accuracy"] == float(np.mean(golden["margins"] > 0))
    assert abs(found.facts["margin"] / (case.BETA * float(golden["margins"].mean())) - 1) <= 1e-4


def test_the_gradient_is_the_derivative_of_the_loss(checkpoint):
    """Against differences of the formula in float64, of log-probabilities by the reference."""
    run = run_of(checkpoint, "reference")
    found = run.learn(range(len(case.PAIRS)))
    for name in list(found.sums)[::3]:
        kept, step = run.parameters[name].copy(), 2.0**-9
        direction = np.sign(found.sums[name]).astype(np.float32)
        losses = []
        for sign in (1, -1):
            run.parameters[name][...] = kept + np.float32(sign * step) * direction
            losses.append(
                sum(-math.log(1 / (1 + math.exp(-case.BETA * margin))) for margin in run.margins(run.lessons))
            )
        run.parameters[name][...] = kept
        wanted = float((found.sums[name].astype("f8") * direction).sum())
        assert abs((losses[0] - losses[1]) / (2 * step) / wanted - 1) <= 2e-3


def test_neither_the_size_of_a_part_nor_threads_change_a_bit(checkpoint):
    found = []
    for tokens in (8, 30, 1000):
        run = run_of(checkpoint, steps=3, rate=0.01)
        run.step_tokens = tokens
        found.append((list(run), run.parameters))
    assert found[0][0] == found[1][0] == found[2][0]
    assert all(np.array_equal(found[0][1][name], other[name]) for _, other in found[1:] for name in other)


def test_preferences_are_learnt_and_resumed(chatty, tmp_path):
    rows = [{"prompt": f"say {i}", "chosen": f"it is {i}", "rejected": "no idea"} for i in range(16)]
    options = {"rate": 0.01, "batch_tokens": 150, "epochs": 3, "valid": 0.25}
    whole = train.dpo(chatty, rows, output=tmp_path / "whole", **options)
    steps = list(whole)
    assert steps[0].loss == pytest.approx(math.log(2)) and steps[0].accuracy == 0 == steps[0].margin
    assert steps[-1].loss < 0.1 and steps[-1].accuracy == 1 and steps[-1].valid < 0.2
    cut = train.dpo(chatty, rows, output=tmp_path / "cut", **options)
    next(iter(cut))
    cut.keep()
    assert list(train.dpo(chatty, rows, output=tmp_path / "cut", resume=True, **options)) == steps[1:]
    both = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert both[0] == both[1]
    train.lora(chatty, [{"text": "abc"}], output=tmp_path / "other", rate=0.01).keep()
    with pytest.raises(InputError, match="kind was 'lora' when this run began: got 'dpo'"):
        train.dpo(chatty, rows, output=tmp_path / "other", resume=True, **options)
