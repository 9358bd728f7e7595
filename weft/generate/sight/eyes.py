"""The eyes of a model that reads pictures: from what a caller gives to tokens of a prompt that are vectors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from weft.errors import FormatError, InputError, NotFoundError, TooLongError, WeftError
from weft.generate.sight.looks import ANY_MARK, KINDS, Files, Look
from weft.generate.sight.prompt import Prompt, Seen
from weft.pictures import PictureLimits, open_picture
from weft.progress import shown
from weft.runtime.checkpoint import read_object
from weft.runtime.projector import read_projector
from weft.runtime.tower import TokenTower, open_tower, picture_tokens

if TYPE_CHECKING:
    from weft.generate.sight.looks import Looking
    from weft.pictures import Patches
    from weft.runtime.decoder import Decoder
    from weft.runtime.projector import ProjectorFile
    from weft.text import Tokenizer

BAR_TILES = 3  # from which a bar may be drawn
CACHE_BYTES = 64 << 20  # of vectors of pictures seen before
# What a processor was saved to, by transformers before 5 and since.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
COMPUTES = ("f32", "bf16", "f16")  # of a tower; its weights are not quantised


def eyes_of(decoder: Decoder) -> Eyes | None:
    """The eyes of a model's folder; None for a model that does not see, or of which weft runs the text part only."""
    checkpoint = decoder.checkpoint
    if checkpoint.projector is not None:
        file = read_projector(checkpoint.projector, decoder.config.hidden_size)
        kind = picture_tokens(file.config)
        assert kind is not None  # only such towers have mmproj files
        ids = {name: checkpoint.config[name] for name in file.tokens}
        return Eyes(decoder, {**file.config, **ids}, KINDS[kind], file=file)
    if checkpoint.format != "safetensors" or not checkpoint.path.is_dir():
        return None
    config = read_object(checkpoint.path / "config.json", missing={})
    kind = picture_tokens(config)
    return None if kind is None else Eyes(decoder, config, KINDS[kind])


class Eyes:
    """The tower of a decoder. Vectors of the pictures seen last are kept, by the content of their parts.

    `limits` are those of pictures (weft.pictures.PictureLimits). `progress` True draws a bar while the tower works,
    None where it has many tiles and there is a terminal.
    """

    def __init__(
        self,
        decoder: Decoder,
        config: dict[str, Any],
        kind: Callable[[Files], Looking],
        limits: PictureLimits | None = None,
        file: ProjectorFile | None = None,
    ) -> None:
        self._decoder, self._config, self._kind, self._file = decoder, config, kind, file
        self._folder: Path = decoder.checkpoint.path
        self.limits = limits or PictureLimits()
        self.progress: bool | None = False
        self._kept: OrderedDict[bytes, tuple[np.ndarray, ...]] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def looking(self) -> Looking:
        """How the model looks at pictures, from the files beside it."""
        vision = self._config.get("vision_config")
        if not isinstance(vision, dict):
            what = f"must be an object in a {self._config.get('model_type')}"
            raise FormatError("config.json", what, field="vision_config", given=vision)
        if self._file is not None:
            said = dict(self._file.processor)
            return self._kind(Files(self._config, vision, said, self._file.name, self._decoder.tokenizer.token))
        for file in PROCESSORS:
            said = read_object(self._folder / file, missing={})
            said = said.get("image_processor", {}) if file == PROCESSORS[1] else said
            if said:
                return self._kind(Files(self._config, vision, said, file, self._decoder.tokenizer.token))
        what = f"{self._folder.name} does not say how pictures are prepared: it has no {PROCESSORS[0]}"
        raise NotFoundError("chat", what, advice="copy it from the model's repository")

    @cached_property
    def tower(self) -> TokenTower:
        decoder = self._decoder
        opened = None if self._file is None else self._file.tower
        checkpoint = opened or open_tower(self._folder, decoder.config.hidden_size)
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
        given = self._decoder.picture_token
        if type(given) is not int or not 0 <= given < self._decoder.vocab_size:
            what = f"must be a token id from 0 to {self._decoder.vocab_size - 1}"
            raise FormatError("config.json", what, field="image_token_id", given=given)
        return given

    def look(self, pictures: Sequence[Any]) -> list[Look]:
        """Pictures prepared; an error has the picture's index. Together they must leave room in the context."""
        looking, found, total, most = self.looking, list[Look](), 0, self._decoder.max_context
        for index, given in enumerate(pictures):
            try:
                picture = open_picture(given, self.limits)
                look = looking.look(picture, self.tower.count_of, self._decoder.thread_plan.count)
            except WeftError as error:
                raise error.but(index=index) if error.field == "picture" else error from None
            total += sum(map(self.tower.count_of, look.parts))
            if total >= most:
                what = f"are more than {total} tokens up to number {index}, and the context has {most}"
                advice = "give fewer or smaller pictures, or load the model with a longer context"
                raise TooLongError("chat", what, field="pictures", index=index, length=total, limit=most, advice=advice)
            found.append(look)
        return found

    def expanded(self, text: str, looks: Sequence[Look]) -> str:
        """A prompt's text with what stands for each picture in place of its mark."""
        parts = text.split(self.looking.mark)
        if len(parts) != len(looks) + 1:
            what = f"the prompt has {len(parts) - 1} places for {len(looks)} pictures"
            advice = f"write {self.looking.mark} for each picture; in a chat, its template does"
            raise InputError("chat", what, field="pictures", advice=advice)
        return parts[0] + "".join(look.text + part for look, part in zip(looks, parts[1:]))

    def prompt(self, ids: Sequence[int], looks: Sequence[Look]) -> Prompt:
        """The prompt of ids that were made of the expanded text: the tower runs over pictures that it does not know."""
        parts, runs = [part for look in looks for part in look.parts], list(_runs(ids, self.token))
        counts = [self.tower.count_of(part) for part in parts]
        if [end - at for at, end in runs] != counts:
            what = f"has no token of pictures of id {self.token}, or others of it in the prompt"
            raise FormatError("tokenizer", what, field="image_token_id")
        each = shown([(i, i + 1) for i in range(len(parts))], len(parts), self.progress, "pictures", BAR_TILES)
        return Prompt(ids, [self._seen(runs[i][0], parts[i]) for i, _ in each])

    def _seen(self, at: int, part: Patches) -> Seen:
        """The tokens of a part of a picture, at their place in the prompt."""
        vectors, *deep = self.tokens(part)
        block = self.tower.config.block
        grid = (part.rows // block, part.cols // block) if self.looking.turned else None
        return Seen(at, vectors, deep=tuple(deep), grid=grid, whole=self.looking.whole)

    def vectors(self, part: Patches) -> np.ndarray:
        """The tokens of a part of a picture, float32 [n, hidden]."""
        return self.tokens(part)[0]

    def tokens(self, part: Patches) -> tuple[np.ndarray, ...]:
        """The tokens of a part, and what is added to them after the first layers, from the tower or kept."""
        key = blake2b(repr((part.rows, part.cols)).encode() + part.values.tobytes(), digest_size=32).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            made = self.tower.tokens_of(part)
            self._kept[key] = made
            while sum(one.nbytes for all in self._kept.values() for one in all) > CACHE_BYTES and len(self._kept) > 1:
                self._kept.popitem(last=False)
        return made

    def prompt_ids(self, text: str, pictures: Sequence[Any], tokenizer: Tokenizer) -> Prompt:
        """The prompt of a raw text, with a mark for each picture; without marks the pictures come first."""
        looks = self.look(pictures)
        mark, first = self.looking.mark, self.looking.first
        if mark not in text:
            text = text.replace(ANY_MARK, first) if ANY_MARK in text else first * len(looks) + text
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
