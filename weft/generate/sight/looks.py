"""How models look at pictures: what their towers read of one, and what stands for it in a prompt. One class for each
value of PICTURES in a model's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from weft.errors import FormatError
from weft.frozen import frozen
from weft.pictures import (
    crops_of,
    grid_of,
    read_crop_recipe,
    read_grid_recipe,
    read_tile_recipe,
    tiles_of,
)

if TYPE_CHECKING:
    from weft.pictures import CropRecipe, GridRecipe, Patches, Picture, TileRecipe

ANY_MARK = "<image>"  # what a raw prompt may have where a picture is, whatever the model


@frozen(eq=False)
class Look:
    """A picture that is prepared: the parts that the tower reads one by one, and the text that stands for them."""

    parts: tuple[Patches, ...]
    text: str


@frozen(eq=False)
class Files:
    """What a model's folder says: config.json, its vision_config, the processor's settings, and the file of these.
    `token` is the text of an id, None for one without."""

    config: Mapping[str, Any]
    vision: Mapping[str, Any]
    processor: Mapping[str, Any]
    name: str
    token: Callable[[int], str | None]

    def text(self, field: str, otherwise: int) -> str:
        """The text of the token whose id is a field of config.json."""
        id = self.config.get(field, otherwise)
        found = self.token(id) if type(id) is int else None
        if not found:
            raise FormatError("config.json", "must be the id of a token", field=field, given=id)
        return found


class Looking(Protocol):
    """`mark` is what a chat template writes where a picture is, `first` what stands for one before a raw prompt. With
    `whole` the tokens of a part see each other, with `turned` they are turned by their rows and columns."""

    whole: bool
    turned: bool

    @property
    def mark(self) -> str: ...

    @property
    def first(self) -> str: ...

    def look(self, picture: Picture, count: Callable[[Patches], int], threads: int) -> Look:
        """The picture's parts and text; `count` says how many tokens a part is."""


class Tiled:
    """Idefics3 and SmolVLM: tiles with their rows and columns, then the whole."""

    whole = turned = False
    mark = first = ANY_MARK

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def recipe(self) -> TileRecipe:
        return read_tile_recipe(self._files.processor, self._files.vision, self._files.name)

    def look(self, picture: Picture, count: Callable[[Patches], int], threads: int) -> Look:
        tiles = tiles_of(picture, self.recipe, threads=threads)
        places = [self.mark * count(tile) for tile in tiles.tiles]
        around, text = "<fake_token_around_image>", ""
        for row in range(tiles.rows):
            for col in range(tiles.cols):
                text += f"{around}<row_{row + 1}_col_{col + 1}>{places[row * tiles.cols + col]}"
            text += "\n"
        return Look(tiles.tiles, f"{text}{chr(10) if tiles.rows else ''}{around}<global-img>{places[-1]}{around}")


class Cropped:
    """Gemma 3: the whole, and crops of long pictures where the files ask for them; each sees itself both ways."""

    whole, turned = True, False

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def recipe(self) -> CropRecipe:
        return read_crop_recipe(self._files.processor, self._files.vision, self._files.name)

    @cached_property
    def mark(self) -> str:
        return self._files.text("boi_token_index", 255_999)

    @property
    def first(self) -> str:
        return self.mark

    def look(self, picture: Picture, count: Callable[[Patches], int], threads: int) -> Look:
        place, end = self._files.text("image_token_index", 262_144), self._files.text("eoi_token_index", 256_000)
        parts = crops_of(picture, self.recipe, threads=threads)
        texts = [f"\n\n{self.mark}{place * count(part)}{end}\n\n" for part in parts]
        if len(texts) == 1:
            return Look(parts, texts[0])
        crops = " ".join(texts[1:])
        return Look(
            parts, f"Here is the original image {texts[0]} and here are some crops to help you see better {crops}"
        )


class Gridded:
    """Qwen3-VL and relatives: one part in the picture's own proportions, turned by its rows and columns."""

    whole, turned = False, True

    def __init__(self, files: Files) -> None:
        self._files = files

    @cached_property
    def recipe(self) -> GridRecipe:
        return read_grid_recipe(self._files.processor, self._files.vision, self._files.name)

    @cached_property
    def mark(self) -> str:
        return self._files.text("image_token_id", 151_655)

    @property
    def first(self) -> str:
        start, end = ("vision_start_token_id", 151_652), ("vision_end_token_id", 151_653)
        return f"{self._files.text(*start)}{self.mark}{self._files.text(*end)}"

    def look(self, picture: Picture, count: Callable[[Patches], int], threads: int) -> Look:
        patches = grid_of(picture, self.recipe, threads=threads)
        return Look((patches,), self.mark * count(patches))


KINDS: Mapping[str, Callable[[Files], Looking]] = {"tiles": Tiled, "crops": Cropped, "grid": Gridded}
