"""weft.Embedder embeds texts and pictures of one model into one space, as transformers does."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tiny_towers
from PIL import Image

from weft import Embedder, train
from weft.errors import FormatError, InputError, NotFoundError, UnsupportedError, WeftError

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "vision" / "towers.npz")
KINDS = tuple(tiny_towers.CONFIGS)


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    folder = tiny_towers.write_folder(tmp_path_factory.mktemp(request.param), request.param, tokenizer=True)
    return request.param, Embedder(str(folder))


@pytest.fixture
def clip(tmp_path):
    return tiny_towers.write_folder(tmp_path / "clip", "clip", tokenizer=True)


def wanted(kind, i):
    vector = GOLDEN[f"{kind}.picture.{i}"]
    return vector / np.linalg.norm(vector)


def test_pictures_have_the_vectors_of_transformers(model):
    kind, embedder = model
    found = embedder.encode(tiny_towers.pictures())
    assert np.abs(found - [wanted(kind, i) for i in range(4)]).max() < 2e-5


def test_texts_are_filled_up_as_the_model_wants(model):
    """The ids of a text, as its tokenizer and the model's length make them, give the vector of those ids."""
    kind, embedder = model
    ids = [*(tiny_towers.WORDS.index(word) for word in ("red", "cat")), 63]
    whole = np.array(tiny_towers.padded(kind, ids), np.int32)
    assert np.array_equal(embedder.encode("red cat"), embedder.encode_ids([whole])[0])
    if kind != "clip":
        assert np.array_equal(embedder.encode("RED Cat"), embedder.encode("red cat"))


def test_texts_and_pictures_mix_in_any_order(model):
    _, embedder = model
    pictures = tiny_towers.pictures()
    mixed = embedder.embed([pictures[0], "red cat", pictures[1], pictures[2], "a dog", pictures[3]])
    assert np.array_equal(mixed.vectors[[0, 2, 3, 5]], embedder.encode(pictures))
    assert np.array_equal(mixed.vectors[[1, 4]], embedder.encode(["red cat", "a dog"]))
    assert mixed.tokens[0] > 8 and mixed.tokens[1] == 3 and mixed.fingerprint == str(embedder.fingerprint)
    halves = embedder.encode([pictures[0], "red cat"], output_dtype="f16")
    assert halves.dtype == np.float16 and np.array_equal(halves, mixed.vectors[:2].astype(np.float16))


def test_a_picture_may_be_a_file_bytes_a_data_url_an_image_or_an_array(model, tmp_path):
    from base64 import b64encode

    _, embedder = model
    pixels = tiny_towers.pictures()[1]
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    url = "data:image/png;base64," + b64encode(path.read_bytes()).decode()
    alone = embedder.encode(pixels)
    assert alone.shape == (embedder.dimension,)
    for given in (path, path.read_bytes(), url, Image.open(path)):
        assert np.array_equal(embedder.encode(given), alone)
        assert np.array_equal(embedder.encode([given, "red"])[0], alone)


def test_zero_shot_gives_the_model_s_own_probabilities(model):
    kind, embedder = model
    pictures, labels = tiny_towers.pictures(), ["red cat", "blue dog", "green square"]
    found = embedder.zero_shot(pictures, labels, template="a photo of the {}")
    texts = embedder.encode([f"a photo of the {label}" for label in labels])
    logits = GOLDEN[f"{kind}.scale"] * np.stack([wanted(kind, i) for i in range(4)]) @ texts.T + GOLDEN[f"{kind}.bias"]
    if kind == "clip":
        powers = np.exp(logits)
        assert np.allclose(found, powers / powers.sum(1, keepdims=True), atol=1e-4)
    else:
        assert np.allclose(found, 1 / (1 + np.exp(-logits)), atol=1e-4)
    for bad in ({"template": "no place"}, {"labels": []}, {"pictures": ["a text"]}):
        with pytest.raises(InputError):
            embedder.zero_shot(**{"pictures": pictures, "labels": labels, **bad})


@pytest.mark.parametrize("layout", ["module folder", "root"])
def test_folders_of_sentence_transformers(clip, tmp_path, layout):
    """clip-ViT-B-32 has its model in the folder of a module; sentence-transformers 5.4 saves it at the root."""
    folder = tmp_path / "st"
    place = folder / "0_CLIPModel" if layout == "module folder" else folder
    shutil.copytree(clip, place)
    kind = (
        "sentence_transformers.models.CLIPModel"
        if layout == "module folder"
        else "sentence_transformers.base.modules.transformer.Transformer"
    )
    modules = [{"idx": 0, "name": "0", "path": "0_CLIPModel" if layout == "module folder" else "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    embedder = Embedder(str(folder))
    for i, vector in enumerate(embedder.encode(tiny_towers.pictures())):
        assert np.abs(vector - GOLDEN[f"clip.picture.{i}"]).max() < 2e-4  # not normalised
    modules.append({"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    assert np.allclose(np.linalg.norm(Embedder(str(folder)).encode(["red", *tiny_towers.pictures()]), axis=1), 1)
    modules[1]["type"] = "sentence_transformers.models.Dense"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedError, match="does not support beside pictures"):
        Embedder(str(folder))


def test_the_fingerprint_depends_on_how_pictures_are_prepared(clip):
    before = str(Embedder(str(clip)).fingerprint)
    said = {**tiny_towers.PROCESSORS["clip"], "resample": 2}
    (clip / "preprocessor_config.json").write_text(json.dumps(said))
    assert str(Embedder(str(clip)).fingerprint) != before


def test_the_processor_may_be_saved_as_transformers_5_does(clip):
    vectors = Embedder(str(clip)).encode(tiny_towers.pictures())
    (clip / "preprocessor_config.json").unlink()
    with pytest.raises(NotFoundError, match=r"has no preprocessor_config\.json"):
        Embedder(str(clip)).encode(tiny_towers.pictures())
    (clip / "processor_config.json").write_text(json.dumps({"image_processor": tiny_towers.PROCESSORS["clip"]}))
    assert np.array_equal(Embedder(str(clip)).encode(tiny_towers.pictures()), vectors)


def test_errors_name_the_item(clip):
    embedder = Embedder(str(clip))
    with pytest.raises(InputError, match="picture 2 is not a PNG"):
        embedder.encode(["a", tiny_towers.pictures()[0], b"nothing", "b"])
    with pytest.raises(InputError, match="text 3 must be a string"):
        embedder.encode([tiny_towers.pictures()[0], "a", "b", 5])
    with pytest.raises(WeftError, match="cannot be read"):
        embedder.encode([Path("no-such-picture.png")])
    with pytest.raises(UnsupportedError, match="pooling is 'last' for a model with pictures"):
        Embedder(str(clip), pooling="mean")


def test_a_model_of_texts_takes_texts_only(tmp_path):
    import sys

    sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
    import tiny

    folder = tiny.write_folder(tmp_path / "bert", tiny.CONFIGS["bert"])
    embedder = Embedder(str(folder), pooling="mean")
    assert not embedder.sees
    for given in (tiny_towers.pictures(), [b"cat"], b"cat", Path("a.png")):
        with pytest.raises(InputError, match="must be"):
            embedder.encode(given)


def test_files_that_do_not_fit_are_refused(clip):
    config = json.loads((clip / "config.json").read_text())
    (clip / "config.json").write_text(json.dumps({**config, "vision_config": None}))
    with pytest.raises(FormatError, match="vision_config must be an object"):
        Embedder(str(clip)).encode(tiny_towers.pictures())
    broken = {**config, "vision_config": {**config["vision_config"], "num_channels": 1}}
    (clip / "config.json").write_text(json.dumps(broken))
    with pytest.raises(UnsupportedError, match="num_channels must be 3"):
        Embedder(str(clip)).encode(tiny_towers.pictures())


@pytest.mark.parametrize("rank", [0, 4])
def test_training_is_refused(clip, tmp_path, rank):
    rows = [{"sentence1": "a", "sentence2": "b", "score": 0.5}] * 4
    with pytest.raises(UnsupportedError, match=r"texts and pictures \(clip\) cannot be trained"):
        list(train.embedder(clip, rows, output=tmp_path / "made", loss="cosine", batch=2, rank=rank, steps=1))
