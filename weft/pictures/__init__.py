"""Pictures for models that see: decoded within limits, and cut into patches as the model's files say."""

from weft.pictures.crops import CropRecipe, crops_of, read_crop_recipe
from weft.pictures.decoding import Picture, PictureLimits, is_picture, open_picture, picture_bytes
from weft.pictures.grid import GridRecipe, grid_of, read_grid_recipe
from weft.pictures.patches import Patches, patches_of
from weft.pictures.recipe import PictureRecipe, read_picture_recipe
from weft.pictures.tiles import TileRecipe, Tiles, read_tile_recipe, tiles_of

__all__ = [
    "CropRecipe",
    "GridRecipe",
    "Patches",
    "Picture",
    "PictureLimits",
    "PictureRecipe",
    "TileRecipe",
    "Tiles",
    "crops_of",
    "grid_of",
    "is_picture",
    "open_picture",
    "patches_of",
    "picture_bytes",
    "read_crop_recipe",
    "read_grid_recipe",
    "read_picture_recipe",
    "read_tile_recipe",
    "tiles_of",
]
