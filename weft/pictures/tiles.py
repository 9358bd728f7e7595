"""A picture as tiles: resized to whole tiles, cut into them, and once more as a whole in one tile (Idefics3, SmolVLM).

Sizes are rounded as transformers' processors round them, and every resizing is of bytes, one after another, as theirs.
"""

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

KINDS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")


@frozen
class TileRecipe:
    """A picture whose longer side is made `longest` pixels is cut into tiles, where `splits`; `tile` says what is done
    with each of them and with the whole."""

    tile: PictureRecipe
    longest: int
    splits: bool

    @property
    def side(self) -> int:
        """Pixels of a side of a tile."""
        assert self.tile.size is not None
        return self.tile.size[0]

    def identity(self) -> str:
        """All of it as one line, for digests."""
        return repr(self)


@frozen(eq=False)
class Tiles:
    """The patches of each tile, row by row, and last those of the whole; `rows` and `cols` are 0 where there is only
    the whole."""

    tiles: tuple[Patches, ...]
    rows: int = 0
    cols: int = 0


def read_tile_recipe(config: Mapping[str, Any], vision: Mapping[str, Any], file: str) -> TileRecipe:
    """The recipe in the content of preprocessor_config.json (`file`), for a tower with the vision_config `vision`."""
    kind = str(config.get("image_processor_type") or "").removesuffix("Fast").removesuffix("Pil")
    if kind not in KINDS:
        what = f"must be one of {', '.join(KINDS)}"
        raise UnsupportedError(file, what, field="image_processor_type", given=kind or None)
    side = _longest(config, "max_image_size", 364, file)
    longest = _longest(config, "size", 4 * 364, file)
    splits = config.get("do_image_splitting", True)
    if not isinstance(splits, bool):
        raise FormatError(file, "must be true or false", field="do_image_splitting", given=splits)
    if config.get("do_pad", True) is not True:
        raise UnsupportedError(file, "must be true", field="do_pad", given=config["do_pad"])
    if vision.get("image_size", 224) != side:
        what = f"must be {side}, the max_image_size of {file}"
        raise UnsupportedError("config.json", what, field="vision_config.image_size", given=vision.get("image_size"))
    said = {name: config[name] for name in ("do_resize", "do_rescale", "do_normalize") if name in config}
    for name, otherwise in {"resample": 1, "rescale_factor": 1 / 255, "image_mean": HALF, "image_std": HALF}.items():
        said[name] = otherwise if config.get(name) is None else config[name]
    said |= {"image_processor_type": "SiglipImageProcessor", "size": {"height": side, "width": side}}
    return TileRecipe(read_picture_recipe(said, vision, file), longest, splits)


def _longest(config: Mapping[str, Any], name: str, otherwise: int, file: str) -> int:
    said = config.get(name)
    given = otherwise if said is None else said.get("longest_edge") if isinstance(said, dict) else None
    if type(given) is not int or not 1 <= given <= MAX_PIXELS:
        what = f"must have a longest_edge of 1 to {MAX_PIXELS}"
        raise FormatError(file, what, field=name, given=said)
    return given


def fitted_size(rows: int, cols: int, longest: int) -> tuple[int, int]:
    """The size of a picture whose longer side is made `longest`; the other is even."""
    shape = cols / rows
    if cols >= rows:
        short = int(longest / shape)
        return max(short + short % 2, 1), longest
    short = int(longest * shape)
    return longest, max(short + short % 2, 1)


def whole_tiles(rows: int, cols: int, side: int) -> tuple[int, int]:
    """The size in whole tiles that is not smaller."""
    shape = cols / rows
    if cols >= rows:
        cols = math.ceil(cols / side) * side
        return math.ceil(int(cols / shape) / side) * side, cols
    rows = math.ceil(rows / side) * side
    return rows, math.ceil(int(rows * shape) / side) * side


def tiles_of(picture: Picture, recipe: TileRecipe, *, threads: int | None = None) -> Tiles:
    """The tiles that `recipe` makes of the picture, with the same bits for any number of threads."""
    side = recipe.side
    picture = resized(picture, fitted_size(picture.rows, picture.cols, recipe.longest), recipe.tile.filter, threads)
    if not recipe.splits:
        return Tiles((patches_of(picture, recipe.tile, threads=threads),))
    picture = resized(picture, whole_tiles(picture.rows, picture.cols, side), recipe.tile.filter, threads)
    whole = patches_of(picture, recipe.tile, threads=threads)
    if picture.rows == side and picture.cols == side:
        return Tiles((whole,))
    pixels = picture.pixels()
    down, across = picture.rows // side, picture.cols // side
    parts = [
        Picture(side, side, array=pixels[row * side : (row + 1) * side, col * side : (col + 1) * side])
        for row in range(down)
        for col in range(across)
    ]
    made = [patches_of(part, recipe.tile, threads=threads) for part in parts]
    return Tiles((*made, whole), down, across)


def resized(picture: Picture, size: tuple[int, int], filter: str, threads: int | None) -> Picture:
    """The picture in another size, as bytes."""
    import numpy as np

    from weft import _core
    from weft.runtime.threads import plan_threads

    if size == (picture.rows, picture.cols):
        return picture
    pool = _core.Pool(plan_threads(threads).count)
    made = _core.pictures.Resize(picture.rows, picture.cols, *size, 0, 0, *size, filter)
    for at, part in picture.strips(made.first_row, made.end_row):
        made.take(at, part, pool)
    out: np.ndarray = np.empty((*size, 3), np.uint8)
    made.pixels(out, pool)
    return Picture(*size, array=out)
