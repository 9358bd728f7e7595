"""The eyes of a model that reads pictures: from what a caller gives to tokens of a prompt that are vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.errors import FormatError, InputError, NotFoundError, TooLongError, WeftError
from weft.frozen import frozen
from weft.generate.sight.prompt import Prompt, Seen
from weft.pictures import PictureLimits, Tiles, open_picture, read_tile_recipe, tiles_of
from weft.progress import shown
from weft.runtime.checkpoint import read_object
from weft.runtime.tower import TokenTower, open_tower, picture_tokens

if TYPE_CHECKING:
    from weft.pictures import Patches, TileRecipe
    from weft.runtime.decoder import Decoder
    from weft.text import Tokenizer

BAR_TILES = 3  # from which a bar may be drawn
CACHE_BYTES = 64 << 20  # of vectors of pictures seen before
# What a processor was saved to, by transformers before 5 and since.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
COMPUTES = ("f32", "bf16", "f16")  # of a tower; its weights are not quantised


@frozen(eq=False)
class Look:
    """A picture that is prepared: its tiles, and the text that stands for them in a prompt."""

    tiles: Tiles
    text: str


def eyes_of(decoder: Decoder) -> Eyes | None:
    """The eyes of a model's folder; None for a model that does not see, or of which weft runs the text part only."""
    checkpoint = decoder.checkpoint
    if checkpoint.format != "safetensors" or not checkpoint.path.is_dir():
        return None
    config = read_object(checkpoint.path / "config.json", missing={})
    return None if picture_tokens(config) is None else Eyes(decoder, config)


class Eyes:
    """The tower of a decoder. Vectors of the pictures seen last are kept, by the content of their tiles.

    `limits` are those of pictures (weft.pictures.PictureLimits). `progress` True draws a bar while the tower works,
    None where it has many tiles and there is a terminal.
    """

    mark = "<image>"  # what a prompt has where a picture is

    def __init__(self, decoder: Decoder, config: dict[str, Any], limits: PictureLimits | None = None) -> None:
        self._decoder, self._config = decoder, config
        self._folder: Path = decoder.checkpoint.path
        self.limits = limits or PictureLimits()
        self.progress: bool | None = False
        self._kept: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def recipe(self) -> TileRecipe:
        """How pictures are prepared, from the files beside the model."""
        vision = self._config.get("vision_config")
        if not isinstance(vision, dict):
            what = f"must be an object in a {self._config.get('model_type')}"
            raise FormatError("config.json", what, field="vision_config", given=vision)
        for file in PROCESSORS:
            said = read_object(self._folder / file, missing={})
            said = said.get("image_processor", {}) if file == PROCESSORS[1] else said
            if said:
                return read_tile_recipe(said, vision, file)
        what = f"{self._folder.name} does not say how pictures are prepared: it has no {PROCESSORS[0]}"
        raise NotFoundError("chat", what, advice="copy it from the model's repository")

    @cached_property
    def tower(self) -> TokenTower:
        decoder = self._decoder
        checkpoint = open_tower(self._folder, decoder.config.hidden_size)
        assert checkpoint is not None  # `picture_tokens`
        compute = decoder.info["compute"]
        return TokenTower(
            checkpoint,
            normalise=False,
            compute=compute if compute in COMPUTES else "f32",
            threads=decoder.thread_plan.count,
            backend=decoder.backend,
        )

    @cached_property
    def token(self) -> int:
        """The id that stands for every token of a picture."""
        given = self._config.get("image_token_id", self._config.get("image_token_index"))
        if type(given) is not int or not 0 <= given < self._decoder.vocab_size:
            what = f"must be a token id from 0 to {self._decoder.vocab_size - 1}"
            raise FormatError("config.json", what, field="image_token_id", given=given)
        return given

    def look(self, pictures: Sequence[Any]) -> list[Look]:
        """Pictures prepared; an error has the picture's index. Together they must leave room in the context."""
        found, total, most = [], 0, self._decoder.max_context
        for index, given in enumerate(pictures):
            try:
                picture = open_picture(given, self.limits)
            except WeftError as error:
                raise error.but(index=index) if error.field == "picture" else error from None
            tiles = tiles_of(picture, self.recipe, threads=self._decoder.thread_plan.count)
            total += sum(map(self.tower.count_of, tiles.tiles))
            if total >= most:
                what = f"are more than {total} tokens up to number {index}, and the context has {most}"
                advice = "give fewer or smaller pictures, or load the model with a longer context"
                raise TooLongError("chat", what, field="pictures", index=index, length=total, limit=most, advice=advice)
            found.append(Look(tiles, self._written(tiles)))
        return found

    def _written(self, tiles: Tiles) -> str:
        """What stands for a picture in a prompt: the tiles with their rows and columns, then the whole."""
        places = [self.mark * self.tower.count_of(tile) for tile in tiles.tiles]
        around, text = "<fake_token_around_image>", ""
        for row in range(tiles.rows):
            for col in range(tiles.cols):
                text += f"{around}<row_{row + 1}_col_{col + 1}>{places[row * tiles.cols + col]}"
            text += "\n"
        return f"{text}{chr(10) if tiles.rows else ''}{around}<global-img>{places[-1]}{around}"

    def expanded(self, text: str, looks: Sequence[Look]) -> str:
        """A prompt's text with what stands for each picture in place of its mark."""
        parts = text.split(self.mark)
        if len(parts) != len(looks) + 1:
            what = f"the prompt has {len(parts) - 1} places for {len(looks)} pictures"
            advice = f"write {self.mark} for each picture; in a chat, its template does"
            raise InputError("chat", what, field="pictures", advice=advice)
        return parts[0] + "".join(look.text + part for look, part in zip(looks, parts[1:]))

    def prompt(self, ids: Sequence[int], looks: Sequence[Look]) -> Prompt:
        """The prompt of ids that were made of the expanded text: the tower runs over pictures that it does not know."""
        runs, tiles = list(_runs(ids, self.token)), [tile for look in looks for tile in look.tiles.tiles]
        if [end - at for at, end in runs] != [self.tower.count_of(tile) for tile in tiles]:
            what = f"has no token {self.mark} of id {self.token}, or others of it in the prompt"
            raise FormatError("tokenizer", what, field="image_token_id")
        each = shown([(i, i + 1) for i in range(len(tiles))], len(tiles), self.progress, "pictures", BAR_TILES)
        return Prompt(ids, [Seen(runs[i][0], self.vectors(tiles[i])) for i, _ in each])

    def vectors(self, tile: Patches) -> np.ndarray:
        """The tokens of a tile, from the tower, or kept from before."""
        key = blake2b(tile.values.tobytes(), digest_size=32).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            made = self.tower.tokens_of(tile)
            self._kept[key] = made
            while sum(one.nbytes for one in self._kept.values()) > CACHE_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made

    def prompt_ids(self, text: str, pictures: Sequence[Any], tokenizer: Tokenizer) -> Prompt:
        """The prompt of a raw text, with a mark for each picture; without marks the pictures come first."""
        looks = self.look(pictures)
        text = text if self.mark in text else self.mark * len(looks) + text
        ids = tokenizer.encode_prompt(self.expanded(text, looks), parse_special=True)
        return self.prompt(cast("list[int]", ids), looks)


def _runs(ids: Sequence[int], token: int) -> Iterator[tuple[int, int]]:
    """Where `token` stands several times one after another: first place, and the one after the last."""
    at = None
    for place, id in enumerate([*ids, -1]):
        if id == token and at is None:
            at = place
        elif id != token and at is not None:
            yield at, place
            at = None
