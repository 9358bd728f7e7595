"""Towers of pictures and chats that see run on a GPU: transformers' features, the CPU's tokens."""

import numpy as np
import pytest
import tiny_eyes
import tiny_sights
import tiny_towers
from gpus import ALL, GOLDEN

import weft
from weft.pictures import open_picture, patches_of, read_picture_recipe
from weft.runtime import Tower, open_tower

FEATURES = dict(np.load(GOLDEN / "vision" / "towers.npz"))
FAR = 2e-4
KINDS = tuple(tiny_towers.CONFIGS)
NAMES = tuple(tiny_eyes.CONVERSATIONS)


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[-1:])
def test_pictures_have_the_features_of_transformers_in_any_batch(gpu, tmp_path, kind):
    said, vision = tiny_towers.PROCESSORS[kind], tiny_towers.CONFIGS[kind]["vision_config"]
    recipe = read_picture_recipe(said, vision, "preprocessor_config.json")
    given = [patches_of(open_picture(pixels), recipe) for pixels in tiny_towers.pictures()]
    tower = Tower(open_tower(tiny_towers.write_folder(tmp_path, kind)), normalise=False, backend=gpu)
    for at, (picture, found) in enumerate(zip(given, tower.vectors(given))):
        want = FEATURES[f"{kind}.picture.{at}"]
        assert np.linalg.norm(found - want) <= FAR * np.linalg.norm(want)
        assert np.array_equal(found, tower.vectors([picture])[0])


SIGHTS = tuple(tiny_sights.TYPES)


@pytest.mark.parametrize("kind", ["idefics3", *SIGHTS] if ALL else ["gemma3", "qwen3_vl"])
def test_a_chat_that_sees_has_the_tokens_of_the_cpu(gpu, tmp_path, kind):
    """Tokens that see each other, and three rows of positions, among them."""
    written = tiny_eyes.write_folder(tmp_path) if kind == "idefics3" else tiny_sights.write_folder(tmp_path, kind)
    found = []
    for device in ("cpu", "gpu"):
        model = weft.load(str(written), device=device, context=1024)
        asked = [tiny_eyes.messages(name, tiny_eyes.pictures()) for name in NAMES[: None if ALL else 2]]
        for part in (part for one in asked for message in one for part in message["content"]):
            if "text" in part:
                part["text"] = part["text"].replace("<image>", "")
        found.append([model.chat(one, max_tokens=6, temperature=0, ignore_eos=True).tokens for one in asked])
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS if ALL else KINDS[:1])
def test_an_embedder_has_the_vectors_of_the_cpu_for_texts_and_pictures(gpu, tmp_path, kind):
    folder = str(tiny_towers.write_folder(tmp_path, kind, tokenizer=True))
    on_cpu, on_gpu = (weft.Embedder(folder, device=device) for device in ("cpu", "gpu"))
    for given in (tiny_towers.pictures(), ["red cat", "dog"]):
        assert np.abs(on_gpu.encode(given) - on_cpu.encode(given)).max() < 1e-5
