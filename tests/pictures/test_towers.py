"""CLIP, SigLIP and SigLIP 2 compute what transformers computes, of texts and of pictures."""

from pathlib import Path

import numpy as np
import pytest
import tiny_towers

from weft.pictures import open_picture, patches_of, read_picture_recipe
from weft.runtime import Encoder, Head, Tower, open_checkpoint, open_tower
from weft.runtime.encoder import DenseLayer

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "vision" / "towers.npz")
KINDS = tuple(tiny_towers.CONFIGS)
FAR = 2e-4


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return request.param, tiny_towers.write_folder(tmp_path_factory.mktemp(request.param), request.param)


def patches(kind):
    said, vision = tiny_towers.PROCESSORS[kind], tiny_towers.CONFIGS[kind]["vision_config"]
    recipe = read_picture_recipe(said, vision, "preprocessor_config.json")
    return [patches_of(open_picture(pixels), recipe) for pixels in tiny_towers.pictures()]


def relative(found, wanted):
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_pictures_have_the_hidden_states_and_features_of_transformers(model, backend):
    kind, folder = model
    tower = Tower(open_tower(folder), normalise=False, backend=backend)
    given = patches(kind)
    found = tower.vectors(given)
    for i, picture in enumerate(given):
        hidden = tower.hidden_states(picture)
        assert hidden.shape == GOLDEN[f"{kind}.picture.{i}.hidden"].shape
        assert np.abs(hidden - GOLDEN[f"{kind}.picture.{i}.hidden"]).max() < FAR
        assert relative(found[i], GOLDEN[f"{kind}.picture.{i}"]) < FAR


def test_a_picture_has_the_same_bits_alone_and_in_any_batch_and_thread_count(model):
    kind, folder = model
    given = patches(kind)
    towers = [Tower(open_tower(folder), normalise=True, threads=threads) for threads in (1, 3)]
    together = towers[0].vectors(given)
    for i, picture in enumerate(given):
        for tower in towers:
            assert np.array_equal(tower.vectors([picture])[0], together[i])
    assert np.array_equal(towers[1].vectors(given[::-1])[::-1], together)
    assert np.allclose(np.linalg.norm(together, axis=1), 1)


def test_texts_have_the_hidden_states_and_features_of_transformers(model):
    kind, folder = model
    checkpoint = open_checkpoint(folder)
    name, bias = ("text_projection", False) if kind == "clip" else ("head", True)
    outputs = checkpoint.tensors[f"{name}.linear.weight"].view.shape[0]
    encoder = Encoder(checkpoint, Head("last", (DenseLayer(name, outputs, bias, "none"),)))
    for i, ids in enumerate(tiny_towers.texts(kind)):
        given = np.array(tiny_towers.padded(kind, ids), np.int32)
        assert np.abs(encoder.hidden_states(given) - GOLDEN[f"{kind}.text.{i}.hidden"]).max() < FAR
        assert relative(encoder.vectors([given])[0], GOLDEN[f"{kind}.text.{i}"]) < FAR
