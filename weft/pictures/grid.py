"""A picture in its own proportions, as whole blocks of patches (Qwen3-VL and its relatives).

The size is rounded as transformers' processor rounds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.errors import FormatError, InputError, UnsupportedError
from weft.frozen import frozen
from weft.pictures.decoding import Picture
from weft.pictures.patches import Patches, patches_of
from weft.pictures.recipe import CLIP_MEAN, CLIP_STD, PictureRecipe, read_picture_recipe

KINDS = ("Qwen2VLImageProcessor", "Qwen3VLImageProcessor")
LEAST, MOST = 56 * 56, 28 * 28 * 1280  # pixels, where a file says nothing
MAX_PIXELS = 1 << 28
MAX_SHAPE = 200  # times that one side may be longer than the other


@frozen
class GridRecipe:
    """A picture gets sides of whole blocks, `merge` patches a side, and from `least` to `most` pixels; `patch` says
    what is done with it then, in whatever size."""

    patch: PictureRecipe
    merge: int
    least: int
    most: int

    def size(self, rows: int, cols: int) -> tuple[int, int]:
        """The size that a picture is resized to."""
        if max(rows, cols) / min(rows, cols) > MAX_SHAPE:
            what = f"has {cols} x {rows} pixels: one side is more than {MAX_SHAPE} times the other"
            raise InputError("picture", what, field="picture", advice="crop it")
        block = self.patch.patch * self.merge
        high, wide = round(rows / block) * block, round(cols / block) * block
        if high * wide > self.most:
            by = math.sqrt((rows * cols) / self.most)
            high, wide = (max(block, math.floor(side / by / block) * block) for side in (rows, cols))
        elif high * wide < self.least:
            by = math.sqrt(self.least / (rows * cols))
            high, wide = (math.ceil(side * by / block) * block for side in (rows, cols))
        return high, wide


def read_grid_recipe(config: Mapping[str, Any], vision: Mapping[str, Any], file: str) -> GridRecipe:
    """The recipe in the content of preprocessor_config.json (`file`), for a tower with the vision_config `vision`."""
    kind = str(config.get("image_processor_type") or "").removesuffix("Fast").removesuffix("Pil")
    if kind not in KINDS:
        what = f"must be one of {', '.join(KINDS)}"
        raise UnsupportedError(file, what, field="image_processor_type", given=kind or None)
    patch = _same(config, vision, "patch_size", "patch_size", 14, file)
    merge = _same(config, vision, "merge_size", "spatial_merge_size", 2, file)
    _same(config, vision, "temporal_patch_size", "temporal_patch_size", 2, file)
    said = {name: config[name] for name in ("do_resize", "do_rescale", "do_normalize") if name in config}
    given = {"resample": 3, "rescale_factor": 1 / 255, "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
    said |= {name: otherwise if config.get(name) is None else config[name] for name, otherwise in given.items()}
    side = patch * merge  # of any size; the real one is the picture's
    said |= {"image_processor_type": "SiglipImageProcessor", "size": {"height": side, "width": side}}
    recipe = read_picture_recipe(said, {"image_size": side, "patch_size": patch}, file)
    size = config.get("size") or {}
    if not isinstance(size, dict):
        raise FormatError(file, "must have shortest_edge and longest_edge", field="size", given=size)
    least = _pixels(config, size, "min_pixels", "shortest_edge", LEAST, file)
    most = _pixels(config, size, "max_pixels", "longest_edge", MOST, file)
    if most < max(least, side**2):
        what = f"must be at least {max(least, side**2)}"
        raise FormatError(file, what, field="size.longest_edge", given=most)
    return GridRecipe(recipe, merge, least, most)


def _same(config: Mapping[str, Any], vision: Mapping[str, Any], name: str, there: str, usual: int, file: str) -> int:
    """A number of the processor that must be the tower's."""
    given = usual if config.get(name) is None else config[name]
    if type(given) is not int or not 1 <= given <= 4096:
        raise FormatError(file, "must be a whole number from 1 to 4096", field=name, given=given)
    if vision.get(there, given) != given:
        what = f"must be {vision[there]}, the {there} of the model's vision_config"
        raise FormatError(file, what, field=name, given=given)
    return given


def _pixels(config: Mapping[str, Any], size: Mapping[str, Any], name: str, edge: str, otherwise: int, file: str) -> int:
    given = next((v for v in (config.get(name), size.get(edge), size.get(name)) if v is not None), otherwise)
    if type(given) is not int or not 1 <= given <= MAX_PIXELS:
        raise FormatError(
            file, f"must be a whole number of pixels up to {MAX_PIXELS}", field=f"size.{edge}", given=given
        )
    return given


def grid_of(picture: Picture, recipe: GridRecipe, *, threads: int | None = None) -> Patches:
    """The patches of the picture, row by row, with the same bits for any number of threads."""
    size = recipe.size(picture.rows, picture.cols)
    return patches_of(picture, replace(recipe.patch, size=size), threads=threads)
