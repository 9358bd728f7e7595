"""Losses and gradients on the kernels: near the float64 reference, and the same bits however the work is cut."""

import numpy as np
import pytest
import tiny

from weft.errors import InputError, UnsupportedError
from weft.graph.passes.learn import LowRank
from weft.runtime import open_checkpoint
from weft.train import Learner, Lesson

DECODERS = [
    name
    for name, cfg in tiny.CONFIGS.items()
    if tiny.decodes(cfg) and not tiny.recurs(cfg) and not any("expert" in key for key in cfg)
]
FEW = ("llama-grouped", "gemma2", "qwen3")


def targets(checkpoint):
    """The products of the layers, by the names that a learner knows."""
    return {name: LowRank(3, 0.5) for name in products(checkpoint) if ".layers." in name}


def products(checkpoint):
    from weft.graph import Trace
    from weft.models import model_module
    from weft.nn import Scope, read_config
    from weft.nn.step import TracedStep

    module = model_module(checkpoint.model_type)
    with Trace("products") as trace:
        config = read_config(module.Config, checkpoint.config)
        trace.output("logits", module.forward(Scope(trace, checkpoint.stored), config, TracedStep(trace)))
    return sorted({str(instr.inputs[1]) for instr in trace.program().body if instr.op == "matmul"})


def lessons(rng, lengths=(9, 2, 70, 33), vocabulary=30):
    made = []
    for length in lengths:
        shares = np.where(rng.uniform(size=length) < 0.6, rng.uniform(0.1, 1.0, length), 0.0).astype(np.float32)
        shares[-1] = 0.5
        made.append(Lesson(rng.integers(0, vocabulary, length).astype(np.int32), shares))
    return made


def parameters(learner, rng):
    return {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in learner.shapes.items()}


def distance(found, wanted):
    """The norm of the difference over that of what is wanted, over all parameters together."""
    off = sum(float(np.sum((found[name].astype("f8") - wanted[name]) ** 2)) for name in wanted)
    return (off / sum(float(np.sum(np.square(wanted[name], dtype="f8"))) for name in wanted)) ** 0.5


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    made = {}

    def checkpoint(name):
        if name not in made:
            made[name] = open_checkpoint(tiny.write_folder(tmp_path_factory.mktemp(name), tiny.CONFIGS[name]))
        return made[name]

    return checkpoint


@pytest.mark.parametrize("name", DECODERS)
def test_kernels_are_near_the_reference(checkpoints, name):
    checkpoint = checkpoints(name)
    rng = np.random.default_rng(1)
    given = lessons(rng)
    learners = [Learner(checkpoint, targets(checkpoint), backend=backend) for backend in ("cpu", "reference")]
    trained = parameters(learners[0], rng)
    (loss, found), (exact, wanted) = (one.gradients(given, trained, one.no_gradient()) for one in learners)
    assert abs(loss / exact - 1) <= 1e-5
    assert distance(found, wanted) <= 2e-5
    assert learners[0].losses(given, trained) == loss


@pytest.mark.parametrize("name", FEW)
def test_neither_threads_nor_the_cut_change_a_bit(checkpoints, name):
    checkpoint = checkpoints(name)
    rng = np.random.default_rng(2)
    given = lessons(rng, (9, 2, 70, 33, 130, 1 + 16, 64))
    found = []
    for threads in (1, 2, 3):
        learner = Learner(checkpoint, targets(checkpoint), threads=threads)
        trained = parameters(learner, np.random.default_rng(3))
        for cut in (1, 3, len(given)):
            sums = learner.no_gradient()
            for first in range(0, len(given), cut):
                _, sums = learner.gradients(given[first : first + cut], trained, sums)
            found.append(sums)
    for other in found[1:]:
        assert all(np.array_equal(other[name], found[0][name]) for name in found[0])


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
