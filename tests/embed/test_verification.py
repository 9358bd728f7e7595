"""`verify` passes a model that is right and says what is wrong with one that is not."""

import numpy as np
import pytest
from tiny_st import write_st_folder

from weft.embed import verification
from weft.embed.service import Embedder
from weft.errors import InputError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_st_folder(tmp_path_factory.mktemp("tiny")))


def failed(found):
    return [check.name for check in found.checks if check.passed is False]


@pytest.mark.parametrize("compute", ["f32", "int8"])
def test_a_model_that_is_right_passes(model, compute):
    found = verification.verify(model, compute=compute)
    assert found.passed and [check.passed for check in found.checks] == [None, True, True, True, True], found


def test_golden_vectors_of_another_model_do_not_agree(model):
    assert failed(verification.verify(model, golden="all-MiniLM-L6-v2")) == ["golden vectors"]
    with pytest.raises(InputError, match="all-MiniLM-L6-v2"):
        verification.verify(model, golden="nobody")


@pytest.mark.parametrize(
    "wrong, names",
    [
        (lambda made, n: made + (n > 1) * 1e-6, {"alone and together", "every length"}),  # a batch changes vectors
        (lambda made, n: made + np.arange(n)[:, None] * 1e-6, {"alone and together", "any order", "every length"}),
        (lambda made, n: made * np.float32(1.5), {"every length"}),  # not of unit length
        (lambda made, n: np.where(np.arange(n)[:, None] == 3, np.nan, made), {"every length"}),
    ],
)
def test_what_is_wrong_is_named(model, wrong, names, monkeypatch):
    real = Embedder._run

    def run(self, sequences, *how):
        made, whole = real(self, sequences, *how)
        return wrong(made, len(sequences)).astype(np.float32), whole

    monkeypatch.setattr(Embedder, "_run", run)
    assert names <= set(failed(verification.verify(model)))


@pytest.mark.weights
def test_minilm_agrees_with_its_golden_vectors(minilm):
    found = verification.verify(str(minilm), compute="bf16", golden="all-MiniLM-L6-v2")
    assert found.passed and found.checks[0].passed, found
