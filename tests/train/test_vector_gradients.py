"""Gradients of vectors are PyTorch's, and have the same bits however a batch is cut."""

from hashlib import sha256
from pathlib import Path

import gradient_cases
import numpy as np
import pytest
import vector_cases
from soaking import SOAK

from weft.errors import InputError, UnsupportedError
from weft.graph.passes.learn import LowRank
from weft.runtime.encoder import Encoder
from weft.train.vectors.learner import VectorLearner, matrices, weights

GOLDEN = dict(np.load(Path(__file__).resolve().parent.parent / "golden" / "train" / "vector-gradients.npz"))
CASES = [(name, kind) for name in vector_cases.HEADS for kind in vector_cases.KINDS]
ALWAYS = ("bert", "xlm_roberta", "modernbert", "mpnet", "distilbert", "qwen3")  # the others in a soak run


def test_every_case_is_compared():
    assert GOLDEN.keys() == {f"{name}/{kind}" for name, kind in CASES}


@pytest.mark.parametrize(("name", "kind"), [case for case in CASES if SOAK or case[0] in ALWAYS])
def test_gradients_of_vectors_are_those_of_pytorch(tmp_path, name, kind):
    """1e-9 in float64, 2e-5 of the norm on kernels in f32."""
    wanted, texts = GOLDEN[f"{name}/{kind}"], vector_cases.sequences(name)
    for backend, limit in (("reference", 1e-9), ("cpu", 2e-5)):
        learner = vector_cases.learner_of(tmp_path, name, kind, backend=backend)
        given, seeds = vector_cases.parameters(learner), vector_cases.seeds(name, learner.encoder.dimension)
        vectors = learner.vectors(texts, given)
        found = learner.gradients(texts, given, seeds, learner.no_gradient())
        assert gradient_cases.distance(gradient_cases.kept({"vectors": vectors}), wanted[:1]) <= limit
        assert gradient_cases.distance(gradient_cases.kept(found), wanted[1:]) <= limit


@pytest.mark.parametrize("name", ["bert", "xlm_roberta", "qwen3"])
@pytest.mark.parametrize("kind", vector_cases.KINDS)
def test_nothing_that_only_saves_time_or_memory_changes_a_bit(tmp_path, name, kind):
    """Threads, how a batch is cut, what is computed again; and vectors without a gradient are those with one."""
    texts, found = vector_cases.sequences(name), set()
    for threads, share in ((1, 0.0), (2, 0.5), (3, 1.0)):
        learner = vector_cases.learner_of(tmp_path, name, kind, threads=threads)
        learner.again = round(share * learner.parts)
        given, seeds = vector_cases.parameters(learner), vector_cases.seeds(name, learner.encoder.dimension)
        for cut in (1, 3, len(texts)):
            sums, made = learner.no_gradient(), []
            for first in range(0, len(texts), cut):
                made.append(learner.vectors(texts[first : first + cut], given))
                sums = learner.gradients(texts[first : first + cut], given, seeds[first : first + cut], sums)
            arrays = [np.concatenate(made), *(sums[key] for key in sorted(sums))]
            found.add(sha256(b"".join(array.tobytes() for array in arrays)).hexdigest())
    assert len(found) == 1


def test_untrained_vectors_are_those_of_the_encoder(tmp_path):
    learner = vector_cases.learner_of(tmp_path, "bert", "weights")
    texts = vector_cases.sequences("bert")
    assert np.abs(learner.vectors(texts, learner.start) - learner.encoder.vectors(texts)).max() < 1e-6


def test_what_is_computed_again_takes_less_memory(tmp_path):
    learner = vector_cases.learner_of(tmp_path, "bert", "weights")
    most = learner.work_bytes(4096, 64)
    assert learner.fit(most, 4096, 64) and learner.again == 0
    assert not learner.fit(1, 4096, 64) and learner.again == learner.parts
    assert learner.work_bytes(4096, 64) < 0.7 * most


def test_dropout_is_drawn_for_each_sequence_alone(tmp_path):
    learner = vector_cases.learner_of(tmp_path, "xlm_roberta", "changes", dropout=0.25)
    texts, given = vector_cases.sequences("xlm_roberta"), vector_cases.parameters(learner)
    seeds = vector_cases.seeds("xlm_roberta", learner.encoder.dimension)
    draws = [f"7 {number}" for number in range(len(texts))]
    whole = learner.gradients(texts, given, seeds, learner.no_gradient(), draws)
    sums = learner.no_gradient()
    for number, text in enumerate(texts):
        sums = learner.gradients([text], given, seeds[number : number + 1], sums, draws[number : number + 1])
    assert all(np.array_equal(whole[key], sums[key]) for key in sums)
    others = learner.gradients(texts, given, seeds, learner.no_gradient(), [f"8{draw}" for draw in draws])
    assert any(not np.array_equal(whole[key], others[key]) for key in sums)


def test_what_cannot_be_trained_is_said(tmp_path):
    encoder = Encoder(vector_cases.checkpoint_of(tmp_path, "bert"), vector_cases.HEADS["bert"])
    name = "encoder.layer.0.output.dense.weight"
    assert name in matrices(encoder) and name in weights(encoder)
    assert "embeddings.word_embeddings.weight" in weights(encoder)
    with pytest.raises(InputError, match="at least one weight"):
        VectorLearner(encoder)
    with pytest.raises(InputError, match="in full and have a trained change"):
        VectorLearner(encoder, {name: LowRank(2, 1.0)}, [name])
    with pytest.raises(InputError, match="must be weights of the program"):
        VectorLearner(encoder, {}, ["encoder.layer.7.output.dense.weight"])
    learner = VectorLearner(encoder, {}, [name])
    texts = vector_cases.sequences("bert")
    with pytest.raises(InputError, match="to_vectors"):
        learner.gradients(texts, learner.start, np.zeros((1, 48), np.float32), learner.no_gradient())
    with pytest.raises(InputError, match="at least one sequence"):
        learner.vectors([], learner.start)


def test_a_weight_that_is_used_twice_stays_frozen(tmp_path):
    decoder = Encoder(vector_cases.checkpoint_of(tmp_path, "qwen3"), vector_cases.HEADS["qwen3"])
    assert "norm.ones.16" not in weights(decoder)
    from weft.graph import T, Trace
    from weft.graph.passes.trained import with_trained
    from weft.ops import add

    with Trace("twice") as trace:
        row = trace.weight("row", (8,))
        trace.output("y", add(add(trace.input("x", (T, 8)), row), row))
    with pytest.raises(UnsupportedError, match="used 2 times"):
        with_trained(trace.program(), ["row"])
