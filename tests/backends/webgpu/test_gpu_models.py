"""Whole models on a GPU: the goldens of transformers, the CPU's vectors, the same bits in every batch."""

import numpy as np
import pytest
import tiny
from gpus import ALL
from test_models import ENCODERS, LIMIT, error_of

import weft
from weft.runtime import Encoder, Head, open_checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("tiny")
    return {name: tiny.write_folder(root / name, tiny.CONFIGS[name]) for name in ENCODERS}


@pytest.mark.parametrize("name", ENCODERS if ALL else ["bert", "modernbert"])
def test_an_encoder_has_the_hidden_states_of_its_golden(gpu, folders, name):
    checkpoint = open_checkpoint(folders[name])
    encoder = Encoder(checkpoint, Head("mean"), backend=gpu)
    for length in tiny.lengths(tiny.CONFIGS[name])[: None if ALL else 1]:
        found = encoder.hidden_states(tiny.token_ids(tiny.CONFIGS[name], length))
        assert error_of(found, name) <= LIMIT


def test_a_text_has_the_same_bits_in_every_batch(gpu, folders):
    encoder = Encoder(open_checkpoint(folders["bert"]), Head("mean"), backend=gpu)
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, 100, n).astype(np.int32) for n in (5, 1, 33, 12, 80, 7)]
    alone = [encoder.vectors([text])[0] for text in texts]
    for _ in range(20 if ALL else 3):
        order = rng.permutation(len(texts))[: rng.integers(1, len(texts) + 1)]
        for index, vector in zip(order, encoder.vectors([texts[i] for i in order])):
            assert np.array_equal(vector, alone[index])


@pytest.mark.weights
def test_minilm_has_the_vectors_of_the_cpu(gpu, minilm):
    texts = ["A cat sat on the mat.", "Shaders"]
    vectors = [weft.Embedder(str(minilm), device=device).encode(texts) for device in ("cpu", "gpu")]
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
