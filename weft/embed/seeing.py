"""Models with two towers, one of texts and one of pictures, whose vectors are of one space (CLIP, SigLIP).

Their recipe follows from the model's type: a text is its last token, projected. A folder of sentence-transformers may
say whether vectors are normalised; elsewhere they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from weft.embed.base import STOP, BaseEmbedder
from weft.embed.recipe import MODULES, Recipe, read_recipe
from weft.embed.results import Embedded, EmbedInterrupted, check_output, converted
from weft.errors import FormatError, NotFoundError, UnsupportedError, WeftError
from weft.pictures import PictureLimits, is_picture, open_picture, patches_of, read_picture_recipe
from weft.progress import shown
from weft.runtime import DenseLayer, Tower, open_tower, read_object
from weft.runtime.programs import model_module

if TYPE_CHECKING:
    import numpy as np

    from weft.pictures import Patches, PictureRecipe
    from weft.runtime import Checkpoint, Encoder
    from weft.weights.sources import Entry

BATCH_TOKENS = 1024  # of pictures in one step
# What a processor was saved to, by transformers before 5 and since.
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
TEMPLATE = "a photo of {}."


def model_folder(path: Path) -> Path:
    """The folder of the model itself: below `path`, where sentence-transformers has put it into a module's folder."""
    if not path.is_dir() or (path / "config.json").is_file() or not (path / MODULES).is_file():
        return path
    modules = read_object(path / MODULES, kind=list)
    first = modules[0] if modules and isinstance(modules[0], dict) else {}
    name = str(first.get("path") or "")
    inside = str(first.get("type")).endswith(".CLIPModel") and Path(name).name == name and name not in ("", ".", "..")
    return path / name if inside and (path / name / "config.json").is_file() else path


def sees(checkpoint: Checkpoint) -> bool:
    """Whether the model has a tower of pictures that weft runs."""
    if checkpoint.format != "safetensors":
        return False
    with checkpoint.naming():
        return hasattr(model_module(checkpoint.model_type), "VISION_TYPE")


def recipe_of(checkpoint: Checkpoint, entry: Entry | None, pooling: str | None, located: Path) -> Recipe:
    """The recipe of a model of either kind; `located` is the folder that was asked for."""
    if not sees(checkpoint):
        return read_recipe(checkpoint, entry, pooling)
    if pooling not in (None, "last"):
        raise UnsupportedError("embed", "is 'last' for a model with pictures", given=pooling, field="pooling")
    module = cast(Any, model_module(checkpoint.model_type))
    name, bias = module.PROJECTION
    weight = checkpoint.tensors.get(f"{name}.linear.weight")
    if weight is None:
        raise FormatError("model.safetensors", f"has no {name}, so texts and pictures have no vectors of one space")
    config = checkpoint.config
    longest = config.get("max_position_embeddings") or module.Config.max_position_embeddings
    source, normalise = f"a model of type {checkpoint.model_type}", True
    if (located / MODULES).is_file():
        source, normalise = "sentence-transformers folder", _normalised(located)
    return Recipe(
        pooling="last",
        max_tokens=longest,
        normalise=normalise,
        projection=DenseLayer(name, weight.view.shape[0], bias, "none"),
        lower=module.LENGTH is not None,  # SigLIP was trained on lower case, which not all of its tokenizers make
        length=longest if module.LENGTH is not None else None,
        source=source,
    )


def _normalised(folder: Path) -> bool:
    """Whether the modules of sentence-transformers normalise; refuses others than the model and that."""
    kinds = [str(m.get("type") if isinstance(m, dict) else m) for m in read_object(folder / MODULES, kind=list)]
    names = [kind.rpartition(".")[2] for kind in kinds]
    for at, (kind, name) in enumerate(zip(kinds, names)):
        if not kind.startswith("sentence_transformers.") or name not in ("CLIPModel", "Transformer", "Normalize"):
            what = "has a type that weft does not support beside pictures"
            raise UnsupportedError(MODULES, what, given=kind, field="entry", index=at)
    return "Normalize" in names


def filled(ids: Sequence[np.ndarray], length: int, pad: int, *, left: bool) -> list[np.ndarray]:
    """Sequences filled up to `length` with the padding token."""
    import numpy as np

    def one(row: np.ndarray) -> np.ndarray:
        rest = np.full(max(0, length - len(row)), pad, np.int32)
        return np.concatenate([rest, row] if left else [row, rest])

    return [one(row) for row in ids]


def padding_of(encoder: Encoder) -> tuple[int, bool]:
    """The id of the padding token, and whether it goes before texts."""
    said = read_object(encoder.checkpoint.path / "tokenizer_config.json", missing={})
    named = said.get("pad_token")
    word = named.get("content") if isinstance(named, dict) else named
    found = encoder.tokenizer.id(word) if isinstance(word, str) else encoder.checkpoint.config.get("pad_token_id")
    if type(found) is not int or not 0 <= found < encoder.vocab_size:
        what = "must name a token of the model, since its texts are filled up with it"
        raise FormatError("tokenizer_config.json", what, field="pad_token", given=word)
    return found, said.get("padding_side") == "left"


class Sight:
    """The tower of pictures of a model whose texts `encoder` embeds."""

    def __init__(self, encoder: Encoder, normalise: bool, limits: PictureLimits | None = None) -> None:
        self._folder = encoder.checkpoint.path
        self._encoder, self._normalise = encoder, normalise
        self.limits = limits or PictureLimits()

    @cached_property
    def recipe(self) -> PictureRecipe:
        """How pictures are resized and normalised, from the files beside the model."""
        config = read_object(self._folder / "config.json")
        if not isinstance(config.get("vision_config"), dict):
            what = f"must be an object in a {config.get('model_type')}"
            raise FormatError("config.json", what, field="vision_config", given=config.get("vision_config"))
        for file in PROCESSORS:
            said = read_object(self._folder / file, missing={})
            said = said.get("image_processor", {}) if file == PROCESSORS[1] else said
            if said:
                return read_picture_recipe(said, config["vision_config"], file)
        what = f"{self._folder.name} does not say how pictures are prepared: it has no {PROCESSORS[0]}"
        raise NotFoundError("embed", what, advice="copy it from the model's repository")

    @cached_property
    def tower(self) -> Tower:
        checkpoint = open_tower(self._folder)
        assert checkpoint is not None  # `sees`
        encoder = self._encoder
        return Tower(
            checkpoint,
            normalise=self._normalise,
            compute=encoder.info["compute"],
            threads=encoder.thread_plan.count,
            backend=encoder.backend,
        )

    @cached_property
    def scale_and_bias(self) -> tuple[float, float]:
        """What similarities are multiplied by, and what is added, to be the model's logits."""
        import numpy as np

        from weft.weights import open_safetensors

        weights = next(p for name in ("", ".index.json") if (p := self._folder / f"model.safetensors{name}").is_file())
        tensors = open_safetensors(weights).tensors
        if "logit_scale" not in tensors:
            raise FormatError("model.safetensors", "has no logit_scale, so similarities are no probabilities")
        scale, bias = (
            float(tensors[name].numpy().astype(np.float64).reshape(-1)[0]) if name in tensors else 0.0
            for name in ("logit_scale", "logit_bias")
        )
        return float(np.exp(scale)), bias

    def vectors(self, pictures: Sequence[Any], progress: bool | None = False) -> Iterator[tuple[np.ndarray, list[int]]]:
        """The vectors of pictures in parts, in order, and their counts of tokens. Errors have the picture's index."""
        for first, end in shown(list(self._ranges(len(pictures))), len(pictures), progress):
            patches = [self._patches(pictures[i], i) for i in range(first, end)]
            yield self.tower.vectors(patches), [self.tower.tokens(one) for one in patches]

    @property
    def most_tokens(self) -> int:
        """The most that one picture takes."""
        return int(self.recipe.max_patches or self.tower.config.positions)

    def _ranges(self, count: int) -> Iterator[tuple[int, int]]:
        step = max(1, BATCH_TOKENS // self.most_tokens)
        for first in range(0, count, step):
            yield first, min(first + step, count)

    def patches(self, given: Any, limits: PictureLimits | None = None) -> Patches:
        """The patches of one picture."""
        picture = open_picture(given, limits or self.limits)
        return patches_of(picture, self.recipe, threads=self._encoder.thread_plan.count)

    def _patches(self, given: Any, index: int) -> Patches:
        try:
            return self.patches(given)
        except WeftError as error:
            raise error.but(index=index) if error.field == "picture" else error from None


def holds_pictures(given: Any) -> bool:
    """Whether some of these items are pictures."""
    return isinstance(given, (list, tuple)) and any(map(is_picture, given))


def probabilities(similarities: np.ndarray, scale: float, bias: float, *, each: bool) -> np.ndarray:
    """Of cosines [n, labels]: with `each` of every label by itself (SigLIP), else of one of them (CLIP)."""
    import numpy as np

    logits = similarities.astype(np.float64) * scale + bias
    if each:
        found = 1.0 / (1.0 + np.exp(-logits))
    else:
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        found = powers / powers.sum(axis=1, keepdims=True)
    return cast("np.ndarray", found.astype(np.float32))


def embed_mixed(embedder: Any, items: list[Any], options: dict[str, Any]) -> Embedded:
    """Vectors of texts and pictures by an Embedder, in the order given. A picture's tokens are its patches.

    After Ctrl-C, EmbedInterrupted holds those of the first items, up to the first that is missing. Caches keep texts
    only.
    """
    import numpy as np

    dtype = check_output(options.get("output_dtype", "f32"))
    seen = [i for i, item in enumerate(items) if is_picture(item)]
    read = [i for i, item in enumerate(items) if not is_picture(item)]
    embedder.limits.check([""] * len(items))
    vectors = np.zeros((len(items), embedder.dimension), np.float32)
    tokens, dropped, windows = (np.zeros(len(items), np.int32) for _ in range(3))
    windows[seen] = 1
    done = np.zeros(len(items), bool)

    def result() -> Embedded:
        return Embedded(vectors, tokens, dropped, windows, lambda: str(embedder.fingerprint))

    def keep(made: Embedded) -> None:
        rows = read[: len(made)]
        vectors[rows], tokens[rows], done[rows] = made.vectors, made.tokens, True
        dropped[rows], windows[rows] = made.dropped, made.windows

    try:
        if read:
            keep(BaseEmbedder.embed(embedder, [items[i] for i in read], **{**options, "output_dtype": "f32"}))
        at, stop = 0, STOP.get()
        for part, counts in embedder.sight.vectors([items[i] for i in seen], options.get("progress")):
            rows = seen[at : at + len(part)]
            vectors[rows], tokens[rows], done[rows] = embedder._shortened(part), counts, True
            at += len(part)
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
    except WeftError as error:  # its index counts pictures, or texts
        places = seen if error.field == "picture" else read
        raise error.but(index=places[error.index]) if error.index is not None else error from None
    except EmbedInterrupted as error:
        keep(error.done)
        raise EmbedInterrupted(converted(result().first(_prefix(done)), dtype)) from None
    except KeyboardInterrupt:
        raise EmbedInterrupted(converted(result().first(_prefix(done)), dtype)) from None
    return converted(result(), dtype)


def _prefix(done: np.ndarray) -> int:
    """How many of the first items are done."""
    return len(done) if done.all() else int(done.argmin())
