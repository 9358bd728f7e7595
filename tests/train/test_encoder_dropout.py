"""Dropout inside encoders while they learn: what is left out, and what gradients make of it."""

import numpy as np
import pytest
import vector_cases

from weft import train
from weft.errors import InputError, UnsupportedError
from weft.graph.passes.halves import KEPT
from weft.ops.dropout import kept, philox
from weft.runtime.encoder import Encoder
from weft.train.vectors.learner import VectorLearner, weights


def learner_of(folder, name, dropout, **options):
    encoder = Encoder(vector_cases.checkpoint_of(folder, name), vector_cases.HEADS[name], **options)
    return VectorLearner(encoder, {}, list(weights(encoder)), dropout=dropout)


def test_the_generator_is_philox():
    """The known answers of Random123, https://github.com/DEShawResearch/random123, examples/kat_vectors."""
    pi = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0
    for given, wanted in [
        ((0,) * 6, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 6, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (pi, (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]:
        assert tuple(philox(given[:4], given[4:]).tolist()) == wanted


def test_the_mean_stays_and_every_place_draws_its_own():
    draws = np.array([[key, 3, place] for key in range(20) for place in range(20)], np.int32)
    made = kept(draws, 384, 0.1, 1)
    assert set(np.unique(made)) == {0.0, 65536 / (65536 - 6554)} and abs(made.mean() - 1) < 0.003
    assert np.abs(made.mean(axis=1) - 1).max() < 0.1 and np.abs(made.mean(axis=0) - 1).max() < 0.1
    columns = made - 1
    assert np.abs(np.corrcoef(columns.T) - np.eye(384)).max() < 0.35  # of 73,536 pairs with 400 numbers each
    assert np.abs(np.corrcoef(columns) - np.eye(400)).max() < 0.35
    assert abs(np.corrcoef(made.ravel(), kept(draws, 384, 0.1, 2).ravel())[0, 1]) < 0.02


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "mpnet"])
def test_gradients_are_slopes_of_what_is_left(tmp_path, name):
    learner = learner_of(tmp_path, name, 0.25, backend="reference")
    texts, given = vector_cases.sequences(name), learner.start
    seeds = vector_cases.seeds(name, learner.encoder.dimension)
    draws = [f"text {number}" for number in range(len(texts))]
    found = learner.gradients(texts, given, seeds, learner.no_gradient(), draws)
    step = 2.0**-13
    values = []
    direction = {key: (np.sign(value) * np.abs(given[key]).mean()).astype(np.float32) for key, value in found.items()}
    for sign in (1, -1):
        changed = {key: value + np.float32(sign * step) * direction[key] for key, value in given.items()}
        values.append(float((learner.first_vectors(texts, changed, draws).astype("f8") * seeds).sum()))
    slope = sum(float((value.astype("f8") * direction[key]).sum()) for key, value in found.items())
    assert abs((values[0] - values[1]) / (2 * step) / slope - 1) < 1e-2
    every = learner.vectors(texts, given)
    assert np.array_equal(every, learner_of(tmp_path / "plain", name, 0.0, backend="reference").vectors(texts, given))
    assert np.abs(every - learner.first_vectors(texts, given, draws)).max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_neither_cuts_nor_threads_nor_memory_change_a_bit(tmp_path, name):
    found = []
    for threads, cut in ((1, 4), (2, 1), (2, 3)):
        learner = learner_of(tmp_path / f"{threads} {cut}", name, 0.1, threads=threads)
        learner.again = cut - 1
        texts, given = vector_cases.sequences(name), learner.start
        seeds = vector_cases.seeds(name, learner.encoder.dimension)
        draws = [f"text {number}" for number in range(len(texts))]
        sums, vectors = learner.no_gradient(), []
        for first in range(0, len(texts), cut):
            several = slice(first, first + cut)
            vectors.append(learner.first_vectors(texts[several], given, draws[several]))
            sums = learner.gradients(texts[several], given, seeds[several], sums, draws[several])
        found.append({**sums, "vectors": np.concatenate(vectors)})
        begun = learner.begun(texts, given, draws)
        found.append({**begun.gradients(seeds, learner.no_gradient()), "vectors": begun.vectors})
    assert all(np.array_equal(found[0][key], other[key]) for other in found[1:] for key in other)


def test_what_is_cheap_is_computed_again_and_not_kept(tmp_path):
    cut = learner_of(tmp_path, "bert", 0.1)._cut
    kept = {value.name for value in cut.second.inputs if value.name.startswith(KEPT)}
    makers = {name: instr.op for instr in cut.ahead.body for name in instr.outputs}
    assert kept and not {makers[name] for name in kept} & {"activate", "layer_norm", "mul"}
    assert {"activate", "layer_norm"} <= {instr.op for instr in cut.second.body}


def test_no_dropout_has_the_bits_of_a_learner_without_it(tmp_path):
    texts = vector_cases.sequences("bert")
    made = []
    for dropout, draws in ((0.0, ()), (0.0, ["text"] * len(texts))):
        learner = learner_of(tmp_path / str(len(made)), "bert", dropout)
        seeds = vector_cases.seeds("bert", learner.encoder.dimension)
        made.append(learner.gradients(texts, learner.start, seeds, learner.no_gradient(), draws))
    assert all(np.array_equal(made[0][key], made[1][key]) for key in made[0])


def test_the_rates_are_those_of_the_config(tmp_path):
    texts = vector_cases.sequences("bert")
    draws = [f"text {number}" for number in range(len(texts))]
    made = [learner_of(tmp_path / str(rate), "bert", rate) for rate in (None, 0.1, 0.2)]
    own, same, other = (learner.first_vectors(texts, learner.start, draws) for learner in made)
    assert np.array_equal(own, same) and not np.array_equal(own, other)


def test_what_cannot_be_left_out_is_said(tmp_path):
    with pytest.raises(UnsupportedError, match=r"dropout models of type modernbert have no place for it in weft"):
        learner_of(tmp_path, "modernbert", 0.1)
    assert learner_of(tmp_path / "own", "modernbert", None).parameters
    for wrong in (1.0, -0.1, "some", True):
        with pytest.raises(InputError, match="dropout must be auto, or 0 or more and below 1"):
            train.VectorOptions(dropout=wrong)
