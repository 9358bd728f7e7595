"""Pictures become the floats of transformers' processors, whatever their size, kind of colours, turn and file."""

from pathlib import Path

import numpy as np
import pytest

from weft.pictures import open_picture, patches_of, read_picture_recipe
from weft.pictures.patches import resize

GOLDEN = np.load(Path(__file__).parent.parent / "golden" / "vision" / "pictures.npz")
NAMES = sorted(name.removeprefix("file.") for name in GOLDEN.files if name.startswith("file."))
VISION = {"image_size": 8, "patch_size": 4}
RECIPES = {
    "clip": {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 10}, "crop_size": 8},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 8, "width": 8}},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessorFast", "patch_size": 4, "max_num_patches": 6},
    "lanczos": {"image_processor_type": "CLIPFeatureExtractor", "size": 5, "crop_size": 8, "resample": 1},
}


def recipe(kind):
    return read_picture_recipe(RECIPES[kind], VISION, "preprocessor_config.json")


def folded(patches, interleaved, size):
    """Patches back as the picture [3, height, width] of the processors."""
    rows, cols = patches.rows, patches.cols
    if interleaved:
        return patches.values
    cells = patches.values.reshape(rows, cols, 3, size, size)
    return cells.transpose(2, 0, 3, 1, 4).reshape(3, rows * size, cols * size)


def test_there_are_sixty_pictures():
    assert len(NAMES) == 60


@pytest.mark.parametrize("kind", RECIPES)
def test_every_picture_has_the_floats_of_the_processor(kind):
    how, far = recipe(kind), {}
    for name in NAMES:
        patches = patches_of(open_picture(GOLDEN[f"file.{name}"].tobytes()), how, threads=1)
        wanted = GOLDEN[f"{kind}.{name}"]
        found = folded(patches, how.interleaved, how.patch)
        assert found.shape == wanted.shape, name
        if how.interleaved:
            assert [patches.rows, patches.cols] == GOLDEN[f"{kind}.{name}.grid"].tolist()
        far[name] = float(np.abs(found - wanted).max())
    assert max(far.values()) <= 1e-6, {name: error for name, error in far.items() if error > 1e-6}


def test_a_square_size_of_another_shape_is_resized_bilinearly():
    from dataclasses import replace

    how = replace(recipe("siglip"), filter="bilinear", size=(12, 8))
    for name in NAMES:
        found = folded(patches_of(open_picture(GOLDEN[f"file.{name}"].tobytes()), how), False, 4)
        assert np.abs(found - GOLDEN[f"bilinear.{name}"]).max() <= 1e-6, name


@pytest.mark.parametrize("kind", RECIPES)
def test_the_bits_are_the_same_for_any_number_of_threads(kind):
    how = recipe(kind)
    for name in NAMES[::7]:
        data = GOLDEN[f"file.{name}"].tobytes()
        alone = patches_of(open_picture(data), how, threads=1).values
        for threads in (2, 3, 7):
            assert np.array_equal(alone, patches_of(open_picture(data), how, threads=threads).values)


def test_strips_of_any_height_give_the_same_picture(monkeypatch):
    from weft.pictures import decoding

    for name in NAMES:
        data = GOLDEN[f"file.{name}"].tobytes()
        whole = open_picture(data).pixels()
        monkeypatch.setattr(decoding, "STRIP_PIXELS", 40)
        assert np.array_equal(open_picture(data).pixels(), whole), name
        monkeypatch.undo()


def test_every_turn_is_the_one_of_pillow():
    import io

    from PIL import Image, ImageOps

    for name in NAMES:
        if "turned" in name:
            data = GOLDEN[f"file.{name}"].tobytes()
            upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
            assert np.array_equal(open_picture(data).pixels(), upright), name


def test_larger_pictures_are_resized_to_the_bytes_of_pillow():
    from PIL import Image

    from weft.pictures.recipe import PictureRecipe

    rng = np.random.default_rng(1)
    grey = (0.5, 0.5, 0.5)
    for size, to in [((200, 333), (224, 224)), ((640, 480), (97, 51)), ((5, 900), (64, 64)), ((31, 33), (256, 256))]:
        pixels = rng.integers(0, 256, (*size, 3), np.uint8)
        for filter, number in (("bilinear", 2), ("bicubic", 3), ("lanczos", 1)):
            how = PictureRecipe(filter, to, None, None, 1, None, 1 / 255, grey, grey)
            resized, window, pool = resize(open_picture(pixels), how)
            found = np.empty((*window, 3), np.uint8)
            resized.pixels(found, pool)
            across = Image.fromarray(pixels).resize((to[1], size[0]), number)  # Pillow 13 may begin with the columns
            wanted = np.asarray(across.resize((to[1], to[0]), number))
            assert np.array_equal(found, wanted), (size, to, filter)
