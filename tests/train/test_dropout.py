"""Dropout: what is left out depends on the seed, the step and the row alone; gradients are those of what is left."""

import numpy as np
import pytest
import tiny

from weft import train
from weft.errors import InputError
from weft.graph.passes.learn import LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner, Lesson
from weft.train.order import mask

NAMES = ["model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return open_checkpoint(tiny.write_folder(tmp_path_factory.mktemp("base"), tiny.CONFIGS["llama-grouped"]))


def given(learner):
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 90, length).astype(np.int32) for length in (7, 20, 3)]
    lessons = [Lesson(one, (np.arange(len(one)) > len(one) // 2).astype(np.float32)) for one in ids]
    return lessons, {
        name: (rng.standard_normal(shape) * 0.3).astype(np.float32) for name, shape in learner.shapes.items()
    }


def test_a_mask_keeps_the_mean_and_is_the_same_everywhere():
    made = mask("0 1 2 w", 200, 300, 0.25)
    assert set(np.unique(made)) == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs(made.mean() - 1) < 0.01 and not np.array_equal(made, mask("0 1 3 w", 200, 300, 0.25))
    assert np.flatnonzero(mask("a", 1, 12, 0.5)).tolist() == [0, 2, 7, 9, 11]  # on every machine


def test_gradients_are_those_of_what_is_left(checkpoint):
    learner = Learner(checkpoint, dict.fromkeys(NAMES, LowRank(3, 0.5)), dropout=0.3, backend="reference")
    lessons, parameters = given(learner)
    draws = ["a", "b", "c"]
    _, found = learner.gradients(lessons, parameters, learner.no_gradient(), draws)
    for name, value in found.items():
        step, direction = 2.0**-12, np.sign(value).astype(np.float32)
        losses = []
        for sign in (1, -1):
            changed = {**parameters, name: parameters[name] + np.float32(sign * step) * direction}
            losses.append(learner.gradients(lessons, changed, learner.no_gradient(), draws)[0])
        assert abs((losses[0] - losses[1]) / (2 * step) / float((value * direction).sum()) - 1) <= 5e-3
    other = learner.gradients(lessons, parameters, learner.no_gradient(), ["a", "b", "d"])[1]
    assert not all(np.array_equal(found[name], other[name]) for name in found)
    plain = Learner(checkpoint, dict.fromkeys(NAMES, LowRank(3, 0.5)), backend="reference")
    assert plain.losses(lessons, parameters) == learner.losses(lessons, parameters)  # losses see all


def test_neither_the_cut_nor_threads_change_a_bit(checkpoint):
    found = []
    for threads, cut in ((1, 3), (2, 1), (2, 2)):
        learner = Learner(checkpoint, dict.fromkeys(NAMES, LowRank(3, 0.5)), dropout=0.3, threads=threads)
        lessons, parameters = given(learner)
        sums, draws = learner.no_gradient(), ["a", "b", "c"]
        for first in range(0, 3, cut):
            several = slice(first, first + cut)
            _, sums = learner.gradients(lessons[several], parameters, sums, draws[several])
        found.append(sums)
    assert all(np.array_equal(found[0][name], other[name]) for other in found[1:] for name in other)


def test_a_training_with_dropout_learns_and_goes_on(chatty, chat_file, tmp_path):
    options = {"rate": 0.01, "batch_tokens": 200, "epochs": 4, "dropout": 0.1}
    steps = list(train.lora(chatty, chat_file, output=tmp_path / "a", **options))
    assert steps[-1].loss < 0.7 * steps[0].loss
    cut = train.lora(chatty, chat_file, output=tmp_path / "b", **options)
    next(iter(cut))
    cut.keep()
    assert list(train.lora(chatty, chat_file, output=tmp_path / "b", resume=True, **options)) == steps[1:]
    assert '"lora_dropout": 0.1' in (tmp_path / "a" / "adapter_config.json").read_text()
    with pytest.raises(InputError, match="dropout must be 0: both log-probabilities of a pair"):
        train.dpo(chatty, [{"prompt": "a", "chosen": "b", "rejected": "c"}], dropout=0.1)
