"""Pictures for models that see: decoded within limits, and cut into patches as the model's files say."""

from weft.pictures.decoding import Picture, PictureLimits, is_picture, open_picture, picture_bytes
from weft.pictures.patches import Patches, patches_of
from weft.pictures.recipe import PictureRecipe, read_picture_recipe
from weft.pictures.tiles import TileRecipe, Tiles, read_tile_recipe, tiles_of

__all__ = [
    "Patches",
    "Picture",
    "PictureLimits",
    "PictureRecipe",
    "TileRecipe",
    "Tiles",
    "is_picture",
    "open_picture",
    "patches_of",
    "picture_bytes",
    "read_picture_recipe",
    "read_tile_recipe",
    "tiles_of",
]
