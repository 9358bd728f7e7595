"""A run learns, gives the same bits however it is cut, and its adapter is the model that was trained."""

import numpy as np
import pytest
import tiny

from weft.errors import InputError
from weft.graph.passes.learn import LowRank
from weft.runtime import Decoder, open_checkpoint
from weft.train import Learner, Lesson, Options, Run

MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.write_folder(tmp_path_factory.mktemp("base"), tiny.CONFIGS["llama-grouped"])


def learner_of(folder, **options):
    names = [f"model.layers.{layer}.{module}.weight" for layer in range(2) for module in MODULES]
    return Learner(open_checkpoint(folder), {name: LowRank(4, 2.0) for name in names}, **options)


def lessons(count=6):
    """Texts of which each token decides the next."""
    made = []
    for number in range(count):
        ids = (np.arange(12 + number) * 7 + number * 3) % 29
        made.append(Lesson(ids.astype(np.int32), np.ones(len(ids), np.float32)))
    return made


def options(**more):
    return Options(**{"rate": 0.02, "epochs": 12, "batch_tokens": 60, "schedule": "constant", "warmup": 0.0, **more})


def test_the_loss_falls(folder):
    run = Run(learner_of(folder), lessons(), options())
    steps = list(run)
    assert len(steps) == run.steps == run.done and [step.number for step in steps] == list(range(1, run.steps + 1))
    assert steps[-1].loss < 0.5 * steps[0].loss
    assert all(step.norm > 0 and step.rate == 0.02 for step in steps)


def test_neither_threads_nor_the_size_of_a_step_change_a_bit(folder):
    found = []
    for threads, tokens in ((1, 1024), (2, 20), (3, 33)):
        run = Run(learner_of(folder, threads=threads), lessons(), options(epochs=2), step_tokens=tokens)
        list(run)
        found.append(run.parameters)
    for other in found[1:]:
        assert all(np.array_equal(other[name], value) for name, value in found[0].items())


def test_the_adapter_is_the_model_that_was_trained(folder, tmp_path):
    """Decoding with the saved adapter gives the loss that training would have seen next."""
    learner = learner_of(folder)
    run = Run(learner, lessons(), options(epochs=3))
    list(run)
    run.save(tmp_path / "adapter", base="tiny")
    decoder = Decoder(open_checkpoint(folder), context=64)
    adapter = decoder.adapters.load("learnt", tmp_path / "adapter")
    for lesson in lessons()[:3]:
        logits = decoder.logits(lesson.ids, adapter=adapter).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chances = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        served = -float(chances[np.arange(len(lesson.ids) - 1), lesson.ids[1:]].sum())
        assert abs(served / learner.losses([lesson], run.parameters) - 1) <= 1e-5


def test_a_lesson_without_a_target_is_refused(folder):
    learner = learner_of(folder)
    silent = Lesson(np.arange(5, dtype=np.int32), np.zeros(5, np.float32))
    with pytest.raises(InputError, match="lesson 1 has no token to learn"):
        Run(learner, [lessons(1)[0], silent])
    with pytest.raises(InputError, match="there is nothing to learn from"):
        Run(learner, [])
    with pytest.raises(InputError, match="epochs must be at least 1"):
        Options(epochs=0)
