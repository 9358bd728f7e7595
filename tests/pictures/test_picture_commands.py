"""weft embed --image, weft index build --images and weft search find pictures by texts and by pictures."""

import json

import numpy as np
import pytest
import tiny_towers
from click.testing import CliRunner
from PIL import Image

from weft import Embedder, Index
from weft.cli.app import app
from weft.embed.index.pictures import index_pictures
from weft.errors import InputError, UnsupportedError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_towers.write_folder(tmp_path_factory.mktemp("siglip"), "siglip", tokenizer=True)


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for i, pixels in enumerate(tiny_towers.pictures()):
        Image.fromarray(pixels).save(folder / ("more" if i == 3 else "") / f"{i}.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no picture")
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.stderr)
    return result


def test_a_folder_of_pictures_is_indexed_searched_and_updated(model, photos, tmp_path):
    place = tmp_path / "photos.index"
    said = run("index", "build", photos, "--images", "--model", model, "--output", place).stderr
    assert "broken.jpg" in said and "4 pictures, 0 of them as before, 1 left out" in said
    embedder = Embedder(str(model))
    wanted = embedder.encode(tiny_towers.pictures())
    scores = wanted @ embedder.encode("a red cat")
    names = ["0.png", "1.png", "2.png", "more/3.png"]
    rows = [json.loads(line) for line in run("search", place, "a red cat", "--json").stdout.splitlines()]
    assert [row["id"] for row in rows] == [names[i] for i in np.argsort(-scores)]
    assert np.allclose([row["score"] for row in rows], np.sort(scores)[::-1], atol=1e-5)
    first = run("search", place, "--image", photos / "2.png", "-k", "1").stdout
    assert first == "1.000  2.png\n"
    (photos / "0.png").unlink()
    Image.fromarray(tiny_towers.pictures()[0][::-1]).save(photos / "9.png")
    said = run("index", "build", photos, "--images", "--model", model, "--output", place).stderr
    assert "4 pictures, 3 of them as before" in said
    assert Index.open(place).ids == ["1.png", "2.png", "9.png", "more/3.png"]


def test_pictures_and_texts_are_embedded_together(model, photos, tmp_path):
    out = tmp_path / "vectors.npy"
    picture = photos / "1.png"
    run("embed", "a red cat", "--image", picture, "--model", model, "--output", out)
    assert np.array_equal(np.load(out), Embedder(str(model)).encode(["a red cat", picture]))
    lines = run("embed", "--image", picture, "--model", model, "--format", "jsonl").stdout.splitlines()
    row = json.loads(lines[0])
    assert row["image"] == str(picture) and np.allclose(row["embedding"], np.load(out)[1], atol=1e-6)
    assert "1.png" in run("embed", "a red cat", "--image", picture, "--model", model).stdout


def test_what_cannot_be_indexed_is_said(model, photos, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    embedder = Embedder(str(model))
    with pytest.raises(InputError, match="no picture was found"):
        index_pictures(empty, tmp_path / "a.index", embedder)
    with pytest.raises(UnsupportedError, match="embeds texts only"):
        index_pictures(photos, tmp_path / "a.index", object())
    result = CliRunner().invoke(app, ["search", str(tmp_path), "a", "--image", str(photos / "1.png")])
    assert result.exit_code == 2 and "either a query or --image" in result.stderr
