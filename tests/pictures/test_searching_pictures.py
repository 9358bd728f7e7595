"""Hundreds of pictures made by a script (shapes, colours, places) are indexed and searched as the how-to does it."""

import json

import numpy as np
import pytest
import tiny_towers
from click.testing import CliRunner
from PIL import Image, ImageDraw

from weft.cli.app import app

COLOURS = {"red": (210, 30, 30), "blue": (30, 30, 210), "green": (20, 150, 40), "grey": (120, 120, 120)}
SHAPES = ("square", "disc", "bar")
COUNT = 240


def draw(index):
    """Picture number `index`: its shape, colour and word follow from the number, its size and place from a seed."""
    rng = np.random.default_rng(index)
    colour, shape = list(COLOURS)[index % 4], SHAPES[index // 4 % 3]
    image = Image.new("RGB", (64, 48), (250, 250, 245))
    pen = ImageDraw.Draw(image)
    left, top, size = int(rng.integers(2, 24)), int(rng.integers(2, 14)), int(rng.integers(20, 32))
    box = (left, top, left + size, top + (size if shape != "bar" else 6))
    (pen.ellipse if shape == "disc" else pen.rectangle)(box, fill=COLOURS[colour])
    if index % 5 == 0:
        pen.text((left, top), colour, fill=(0, 0, 0))
    return image, colour, shape


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    photos = root / "photos"
    photos.mkdir()
    for i in range(COUNT):
        image, colour, shape = draw(i)
        image.save(photos / f"{i:03}-{colour}-{shape}.png")
    model = tiny_towers.write_folder(root / "model", "clip", tokenizer=True)
    index = root / "photos.index"
    found = run("index", "build", photos, "--images", "--model", model, "--output", index)
    assert f"{COUNT} pictures, 0 of them as before" in found.stderr
    return photos, index


def run(*arguments):
    found = CliRunner().invoke(app, [str(one) for one in arguments])
    assert found.exit_code == 0, found.output
    return found


def found_by(*query):
    return [json.loads(line) for line in run("search", *query, "--json").stdout.splitlines()]


def test_a_picture_finds_itself_and_others_of_its_colour(indexed):
    photos, index = indexed
    same = 0
    for path in sorted(photos.iterdir())[7:COUNT:24]:
        rows = found_by(index, "--image", path, "-k", "6")
        assert rows[0]["id"] == path.name and abs(rows[0]["score"] - 1) < 1e-5
        same += sum(path.name.split("-")[1] in row["id"] for row in rows[1:])
    assert same > 25, (
        same
    )  # of 50, by chance a quarter: what a tower of random weights keeps of a picture is its colours


def test_a_text_is_compared_with_every_picture(indexed):
    _, index = indexed
    rows = found_by(index, "a red square", "-k", str(COUNT))
    scores = [row["score"] for row in rows]
    assert len({row["id"] for row in rows}) == COUNT and scores == sorted(scores, reverse=True)
