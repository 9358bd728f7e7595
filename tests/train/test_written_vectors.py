"""What weft writes after training: sentence-transformers loads the models, peft the adapter, and both compute the same
vectors as weft."""

from pathlib import Path

import numpy as np
import pytest
import written_vectors

import weft

GOLDEN = np.load(Path(__file__).parents[1] / "golden" / "train" / "written-vectors.npz")
LIMIT = 1e-5  # of vectors of norm 1


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return written_vectors.write(tmp_path_factory.mktemp("written"))


def vectors(folder, adapter=None):
    embedder = weft.Embedder(str(folder), threads=1)
    if adapter is not None:
        embedder.adapters.load("learnt", adapter)
    named = {} if adapter is None else {"adapter": "learnt"}
    return np.stack([embedder.encode(text, prompt="", **named).reshape(-1) for text in written_vectors.TEXTS])


@pytest.mark.parametrize("name", ["base", "merged", "full"])
def test_sentence_transformers_computes_the_same_vectors(folders, name):
    found = vectors(folders[name])
    assert np.abs(found - GOLDEN[name]).max() <= LIMIT
    assert name == "base" or np.abs(found - GOLDEN["base"]).max() > 1000 * LIMIT  # what was learnt is there


def test_peft_computes_the_same_vectors_with_the_adapter(folders):
    # What is written today is, to the byte, what peft has loaded.
    assert written_vectors.digest(folders["adapter"]) == str(GOLDEN["digest of the adapter"])
    found = vectors(folders["base"], folders["adapter"])
    assert np.abs(found - GOLDEN["adapter"]).max() <= LIMIT
    assert np.abs(GOLDEN["adapter"] - GOLDEN["merged"]).max() <= LIMIT
