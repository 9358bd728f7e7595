"""A picture as patches, float32 [rows x cols, 3 patch²]: the input of a tower, one row for each of its tokens."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from weft.frozen import frozen

if TYPE_CHECKING:
    import numpy as np

    from weft.pictures.decoding import Picture
    from weft.pictures.recipe import PictureRecipe


@frozen(eq=False)
class Patches:
    """The patches of one picture, row by row, and how many rows and columns of them there are."""

    values: np.ndarray
    rows: int
    cols: int

    def __len__(self) -> int:
        return len(self.values)


@lru_cache(maxsize=8)
def _table(recipe: PictureRecipe) -> np.ndarray:
    return recipe.table()


def patches_of(picture: Picture, recipe: PictureRecipe, *, threads: int | None = None) -> Patches:
    """The patches that `recipe` makes of the picture, with the same bits for any number of threads."""
    import numpy as np

    resized, (rows, cols), pool = resize(picture, recipe, threads=threads)
    down, across = rows // recipe.patch, cols // recipe.patch
    out = np.empty((down * across, 3 * recipe.patch**2), np.float32)
    resized.patches(out, _table(recipe), recipe.patch, recipe.interleaved, pool)
    return Patches(out, down, across)


def resize(picture: Picture, recipe: PictureRecipe, *, threads: int | None = None) -> tuple[Any, tuple[int, int], Any]:
    """The core's resized window of the picture, its size, and the threads that made it."""
    from weft import _core
    from weft.runtime.threads import plan_threads

    pool = _core.Pool(plan_threads(threads).count)
    result = recipe.result(picture.rows, picture.cols)
    window = recipe.window(result)
    resized = _core.pictures.Resize(picture.rows, picture.cols, *result, *window, recipe.filter)
    for at, part in picture.strips(resized.first_row, resized.end_row):
        resized.take(at, part, pool)
    return resized, window[2:], pool
