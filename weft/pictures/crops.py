"""A picture as a whole, and where it is long and the model's files ask for it, in crops beside it (Gemma 3's pan and
scan). Sizes of crops are rounded as transformers' processor rounds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft.errors import FormatError, UnsupportedError
from weft.frozen import frozen
from weft.pictures.decoding import Picture
from weft.pictures.patches import Patches, patches_of
from weft.pictures.recipe import HALF, MAX_PIXELS, PictureRecipe, read_picture_recipe

if TYPE_CHECKING:
    import numpy as np

KINDS = ("Gemma3ImageProcessor",)
MAX_CROPS = 64


@frozen
class CropRecipe:
    """`whole` says what is done with a picture and with each of its crops. With `pans`, pictures whose sides are
    `ratio` or more apart are cut along the longer one, into 2 to `most` crops of `least` pixels a side or more."""

    whole: PictureRecipe
    pans: bool
    least: int
    most: int
    ratio: float


def read_crop_recipe(config: Mapping[str, Any], vision: Mapping[str, Any], file: str) -> CropRecipe:
    """The recipe in the content of preprocessor_config.json (`file`), for a tower with the vision_config `vision`."""
    kind = str(config.get("image_processor_type") or "").removesuffix("Fast").removesuffix("Pil")
    if kind not in KINDS:
        what = f"must be one of {', '.join(KINDS)}"
        raise UnsupportedError(file, what, field="image_processor_type", given=kind or None)
    pans = config.get("do_pan_and_scan") or False
    if not isinstance(pans, bool):
        raise FormatError(file, "must be true or false", field="do_pan_and_scan", given=pans)
    most = _whole(config, "pan_and_scan_max_num_crops", 4, file, 2, MAX_CROPS)
    least = _whole(config, "pan_and_scan_min_crop_size", 256, file, most, MAX_PIXELS)
    name = "pan_and_scan_min_ratio_to_activate"
    ratio = 1.2 if config.get(name) is None else config[name]
    if type(ratio) not in (int, float) or not 1 <= ratio < math.inf:
        raise FormatError(file, "must be a number of at least 1", field=name, given=ratio)
    said = {name: config[name] for name in ("do_resize", "do_rescale", "do_normalize") if name in config}
    given = {"resample": 2, "rescale_factor": 1 / 255, "image_mean": HALF, "image_std": HALF}
    given["size"] = {"height": 224, "width": 224}
    said |= {name: otherwise if config.get(name) is None else config[name] for name, otherwise in given.items()}
    said |= {"image_processor_type": "SiglipImageProcessor"}
    return CropRecipe(read_picture_recipe(said, vision, file), pans, least, most, float(ratio))


def _whole(config: Mapping[str, Any], name: str, otherwise: int, file: str, least: int, most: int) -> int:
    given = otherwise if config.get(name) is None else config[name]
    if type(given) is not int or not least <= given <= most:
        raise FormatError(file, f"must be a whole number from {least} to {most}", field=name, given=given)
    return given


def crop_counts(rows: int, cols: int, recipe: CropRecipe) -> tuple[int, int]:
    """How many crops a picture is cut into, down and across; 0 and 0 where it is looked at as a whole only."""
    long, short = max(rows, cols), min(rows, cols)
    if not recipe.pans or long / short < recipe.ratio:
        return 0, 0
    count = min(long // recipe.least, math.floor(long / short + 0.5))
    count = min(max(2, count), recipe.most)
    if min(math.ceil(long / count), short) < recipe.least:
        return 0, 0
    return (1, count) if cols >= rows else (count, 1)


def crops_of(picture: Picture, recipe: CropRecipe, *, threads: int | None = None) -> tuple[Patches, ...]:
    """The patches of the whole and then of each crop, with the same bits for any number of threads."""
    whole = patches_of(picture, recipe.whole, threads=threads)
    down, across = crop_counts(picture.rows, picture.cols, recipe)
    if not down:
        return (whole,)
    pixels, high, wide = picture.pixels(), math.ceil(picture.rows / down), math.ceil(picture.cols / across)
    parts = [
        pixels[row : row + high, col : col + wide]
        for row in range(0, picture.rows, high)
        for col in range(0, picture.cols, wide)
    ]
    return (whole, *(patches_of(_picture(part), recipe.whole, threads=threads) for part in parts))


def _picture(pixels: np.ndarray) -> Picture:
    return Picture(pixels.shape[0], pixels.shape[1], array=pixels)
