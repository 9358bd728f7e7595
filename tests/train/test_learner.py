"""Losses and gradients on kernels have the same bits however the work is cut."""

from hashlib import sha256
from itertools import product

import gradient_cases
import numpy as np
import pytest
import tiny
from soaking import SOAK

from weft.errors import InputError, UnsupportedError
from weft.graph.passes.learn import LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner, Lesson

PAIRS = tuple(product((1, 2, 4), (0, 0.5, 1)))  # threads, and the share of the program that is computed again
FEW = ("llama-grouped", "gemma2", "qwen3_moe", "lfm2", "qwen3_5_text", "granitemoehybrid")


def targets(checkpoint):
    """The products of the layers, by the names that a learner knows."""
    return {name: LowRank(3, 0.5) for name in gradient_cases.changes(checkpoint)}


def lessons(rng, lengths=(9, 2, 70, 33), vocabulary=30):
    made = []
    for length in lengths:
        shares = np.where(rng.uniform(size=length) < 0.6, rng.uniform(0.1, 1.0, length), 0.0).astype(np.float32)
        shares[-1] = 0.5
        made.append(Lesson(rng.integers(0, vocabulary, length).astype(np.int32), shares))
    return made


def parameters(learner, rng):
    return {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in learner.shapes.items()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = {}

    def checkpoint(name):
        if name not in made:
            made[name] = open_checkpoint(tiny.write_folder(tmp_path_factory.mktemp(name), tiny.CONFIGS[name]))
        return made[name]

    return checkpoint


@pytest.mark.soak
@pytest.mark.parametrize("name", FEW)
def test_nothing_that_only_saves_time_or_memory_changes_a_bit(checkpoints, name):
    """Threads, how a batch is cut into steps, and how much is computed again when gradients are."""
    checkpoint = checkpoints(name)
    rng = np.random.default_rng(2)
    given = lessons(rng, (9, 2, 70, 33, 130, 1 + 16, 64))
    found = set()
    pairs = PAIRS if SOAK or name == FEW[0] else PAIRS[::2]
    learners = {threads: Learner(checkpoint, targets(checkpoint), threads=threads) for threads, _ in pairs}
    for threads, share in pairs:
        learner = learners[threads]
        trained = parameters(learner, np.random.default_rng(3))
        recompute(learner, share)
        for cut in (1, 3, len(given)):
            sums = learner.no_gradient()
            for first in range(0, len(given), cut):
                _, sums = learner.gradients(given[first : first + cut], trained, sums)
            found.add(sha256(b"".join(sums[key].tobytes() for key in sorted(sums))).hexdigest())
    assert len(found) == 1


def recompute(learner, share):
    """Let the learner compute this share of its program's parts again."""
    learner.again = round(share * learner.parts)
    learner.__dict__.pop("_gradients", None)


def test_what_is_computed_again_takes_less_memory(checkpoints):
    learner = Learner(checkpoints("gemma2"), targets(checkpoints("gemma2")))
    whole = learner.work_bytes(512, 512)
    recompute(learner, 1)
    least = learner.work_bytes(512, 512)
    assert least < 0.6 * whole
    assert learner.fit(whole, 512, 512) and learner.again == 0
    assert learner.fit((whole + least) // 2, 512, 512) and 0 < learner.again < learner.parts
    assert learner.work_bytes(512, 512) <= (whole + least) // 2
    assert learner.fit(least, 512, 512)
    assert not learner.fit(least // 4, 512, 512)


def test_a_negative_share_turns_a_token_s_gradient_around(checkpoints):
    checkpoint = checkpoints("llama-grouped")
    learner = Learner(checkpoint, targets(checkpoint))
    trained = parameters(learner, np.random.default_rng(5))
    given = lessons(np.random.default_rng(4))
    turned = [Lesson(lesson.ids, -lesson.shares) for lesson in given]
    losses = [learner.each_loss(several, trained) for several in (given, turned)]
    assert [len(loss) for loss in losses[0]] == [lesson.targets for lesson in turned]
    assert all(np.array_equal(one, -other) for one, other in zip(*losses))
    (loss, found), (other, opposite) = (
        learner.gradients(several, trained, learner.no_gradient()) for several in (given, turned)
    )
    assert loss == -other == learner.losses(given, trained)
    assert all(np.array_equal(found[name], -opposite[name]) for name in found)


def test_what_cannot_be_trained_is_named(checkpoints, tmp_path):
    with pytest.raises(InputError, match="must name at least one weight"):
        Learner(checkpoints("llama-grouped"), {})
    with pytest.raises(InputError, match="must be weights that rows are multiplied by"):
        Learner(checkpoints("llama-grouped"), {"model.norm.weight": LowRank(2, 1.0)})
    encoder = next(name for name, cfg in tiny.CONFIGS.items() if cfg["model_type"] == "bert")
    with pytest.raises(UnsupportedError, match="bert does not generate text"):
        Learner(checkpoints(encoder), {"anything": LowRank(2, 1.0)})
