"""The local embedder: texts in, float32 vectors out, the same whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import flags
from weft.embed.base import BaseEmbedder
from weft.embed.cache import open_cache
from weft.embed.computing import chosen
from weft.embed.cutting import Cutter, Sequences, TokenIds, check_truncate, joined
from weft.embed.fingerprint import Fingerprint, tokenizer_digest, weights_digest
from weft.embed.inputs import How, Limits, check_choice, check_count, check_ids, texts_of
from weft.embed.recipe import Recipe, entry_of, tell_of_prompts
from weft.embed.results import Embedded, EmbedInterrupted
from weft.embed.seeing import (
    TEMPLATE,
    Sight,
    embed_mixed,
    filled,
    holds_pictures,
    model_folder,
    padding_of,
    probabilities,
    recipe_of,
    sees,
)
from weft.errors import FingerprintError, InputError, UnsupportedError
from weft.pictures import is_picture
from weft.progress import shown
from weft.runtime import Encoder, open_checkpoint, token_ranges
from weft.weights.sources import locate

if TYPE_CHECKING:
    import numpy as np

    from weft.runtime import Adapter, Adapters
    from weft.text import Tokenizer
    from weft.weights.sources import Located

BATCH_TOKENS = 512  # tokens of one step: enough rows for matrix products, few enough that activations stay in cache
LEAST_TOKENS = 64  # of a step when threads run steps in parallel; for fewer, all threads share one step
LEAST_DIMENSIONS = 32  # shortest vector that `dimensions` may ask for
LEAST_LENGTH = 3  # tokens: two special ones and one of the text


class Embedder(BaseEmbedder):
    """An embedding model: `encode`, `encode_query`, `encode_document`, `similarity`, `rank`.

    `model` is a catalogue name, `org/name[@revision]`, a folder, a file or `registry:NAME@WHICH`; an adapter of the
    registry is loaded with its base. A text longer than the model takes is a TooLongError, unless `truncate` is "head"
    (keep the beginning), "tail" (keep the end) or "chunk" (embed all of it in overlapping windows; the vector is their
    mean, weighted by tokens); `embed` reports what was cut. `dimensions` shortens the vectors of a model trained for it
    (Matryoshka) to 32 or more numbers and normalises them again; WEFT_EMBED_DIM is its default, and `matryoshka=True`
    allows it for a model whose files do not say so. `prompts` are put before texts by role, {"query": "…", "document":
    "…"}, and override those of the model's files. `parse_special` reads special tokens in texts, such as "[SEP]", as
    such, and not as their characters. `cache` keeps vectors: "memory", "disk", a file, or an object of
    weft.embed.cache.

    `compute` is the arithmetic of activations (sentence-transformers' `precision` is the output type, `output_dtype`
    here). "bf16" rounds activations and weights to bfloat16: faster, and close to the same vectors. "f16" rounds them
    to half precision: as close, and faster than "f32" on Arm processors with half-precision arithmetic. "bf16x3" splits
    each into two bfloat16 numbers: faster than "f32" on a machine with a matrix unit, and within 3e-5 of its vectors.
    "int8" rounds activations, with a scale per token, and weights, with a scale per channel: the fastest; cosines of
    about 0.999, but less for models with several large activations per token. "auto" loads the model in int8, compares
    it with f32 on a few fixed texts, and falls back where a cosine is below 0.995 (decision 0034); `info` says what it
    chose and why.

    A pickle holds the model's name or path, its options and its fingerprint, from which the model is loaded again.
    """

    def __init__(
        self,
        model: str,
        *,
        pooling: str | None = None,
        normalise: bool | None = None,
        dimensions: int | None = None,
        matryoshka: bool | None = None,
        prompts: Mapping[str, str] | None = None,
        truncate: str = "error",
        parse_special: bool = False,
        compute: str = "f32",
        cache: Any = None,
        limits: Limits | None = None,
        threads: int | None = None,
        backend: str | None = None,
        device: str | None = None,
        offline: bool | None = None,
        progress: bool | None = None,
        precision: None = None,
    ) -> None:
        _refuse_precision(precision)
        check_choice(normalise, "normalise")
        check_choice(matryoshka, "matryoshka")
        if type(parse_special) is not bool:
            raise InputError("embed", "must be True or False", given=parse_special, field="parse_special")
        self.truncate = check_truncate(truncate)
        if limits is not None and not isinstance(limits, Limits):
            raise InputError("embed", "must be a weft.embed.Limits", given=limits, field="limits")
        self.limits = limits or Limits()
        self.cache = open_cache(cache)
        located = locate(str(model) if isinstance(model, PathLike) else model, offline=offline, progress=progress)
        path, entry = located.path.absolute(), entry_of(located)  # its files are read later, maybe elsewhere
        checkpoint = open_checkpoint(model_folder(path))
        self.recipe: Recipe = recipe_of(checkpoint, entry, pooling, path)
        self._may_want_prompts = entry is None and prompts is None and not self.recipe.prompts
        if matryoshka is not None:
            self.recipe = replace(self.recipe, matryoshka=matryoshka)
        if prompts is not None:
            self.recipe = self.recipe.with_prompts(prompts)
        self._normalise = self.recipe.normalise if normalise is None else normalise
        made = partial(Encoder, self.recipe.with_dense(checkpoint), self.recipe.head(self._normalise))
        self._encoder, self._compute_errors = chosen(partial(made, threads=threads, backend=device or backend), compute)
        self._dimensions = self._checked(dimensions)
        self._encoder.start()
        self._located = located
        self._own_adapter = self._loaded_own(located)
        self._path = str(Path(located.spec).expanduser().resolve())  # now: the working directory may change
        longest, how, self._parse_special = min(self.recipe.max_tokens, self.positions), self.recipe, parse_special
        self._cutter = Cutter(
            lambda: self._encoder.tokenizer,
            longest,
            prompt_pooled=how.include_prompt,
            lower=how.lower,
            parse_special=parse_special,
        )
        self._options: dict[str, Any] = {"pooling": pooling, "normalise": normalise, "dimensions": dimensions}
        self._options |= {"matryoshka": matryoshka, "prompts": None if prompts is None else dict(prompts)}
        self._options |= {"parse_special": parse_special, "cache": cache, "threads": threads, "offline": offline}
        self._options |= {"backend": device or backend, "progress": progress}

    def at(self, dimensions: int | None) -> Embedder:
        """The same model with vectors of `dimensions` numbers, None for its full length; weights are shared."""
        other = copy(self)
        other._dimensions = None if dimensions is None else self._checked(dimensions)
        return other

    def _checked(self, dimensions: int | None) -> int | None:
        """`dimensions`, else WEFT_EMBED_DIM, else the length in the model's files; refused if it does not allow it."""
        name = "dimensions"
        if dimensions is None:
            name, dimensions = "WEFT_EMBED_DIM", flags.get("WEFT_EMBED_DIM")
        native = self._encoder.dimension
        if dimensions is None and self.recipe.dimensions is not None:
            return min(self.recipe.dimensions, native)
        if dimensions is not None and type(dimensions) is not int:
            raise InputError("embed", "must be a whole number", given=dimensions, field=name)
        if dimensions is None or dimensions == native:
            return dimensions
        if not self.recipe.matryoshka:
            raise UnsupportedError(
                "embed",
                f"must be {native}, since this model was not trained for shorter vectors",
                given=dimensions,
                field=name,
                advice="leave it out; to shorten them anyway, in Python: Embedder(…, matryoshka=True)",
            )
        if not LEAST_DIMENSIONS <= dimensions <= native:
            raise InputError("embed", f"must be {LEAST_DIMENSIONS} to {native}", given=dimensions, field=name)
        return dimensions

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return self._dimensions or self._encoder.dimension

    @property
    def lasting_name(self) -> str:
        """The model's name, valid in every folder: an absolute path if it was loaded from a path, and for one of the
        registry the version that an alias meant.

        The source decides that, not the name: a folder may have the name of a model in the catalogue.
        """
        source = self._located.source
        if source.startswith("registry:"):
            return source
        return self._path if source in ("folder", "file") else self._located.spec

    @property
    def prompts(self) -> Mapping[str, str]:
        """What the model puts before a text, by the name of its role."""
        return self.recipe.prompts

    @property
    def similarity_name(self) -> str:
        """The model's own measure: cosine, dot, euclidean or manhattan."""
        return self.recipe.similarity

    @property
    def max_tokens(self) -> int:
        """The longest input in tokens, special tokens and prompt included; from the model's files, and may be set.

        At most `positions`; inputs longer than those the model was trained with are embedded less well.
        """
        return self._cutter.limit

    @max_tokens.setter
    def max_tokens(self, tokens: int) -> None:
        if type(tokens) is not int or not LEAST_LENGTH <= tokens <= self.positions:
            what = f"must be {LEAST_LENGTH} to {self.positions}, the positions of this model"
            raise InputError("embed", what, given=tokens, field="max_tokens")
        self._cutter = copy(self._cutter)  # embedders made by `at` share the old one
        self._cutter.limit = tokens

    @property
    def positions(self) -> int:
        """The most tokens that the model can process, whatever limit its files recommend."""
        return self._encoder.max_tokens

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""
        return self._encoder.vocab_size

    @property
    def tokenizer(self) -> Tokenizer:
        return self._encoder.tokenizer

    @property
    def info(self) -> dict[str, Any]:
        """How vectors are made: model, pooling, prompts, normalising, limits, kernels."""
        return {
            "model": self._located.spec,
            "source": self._located.source,
            **self._encoder.info,
            **({} if self._compute_errors is None else {"compute_errors": self._compute_errors}),
            "dimension": self.dimension,
            "pooling": self.recipe.pooling,
            "normalise": self._normalise,
            "prompts": dict(self.recipe.prompts),
            "matryoshka": self.recipe.matryoshka,
            "max_tokens": self.max_tokens,
            "similarity": self.recipe.similarity,
            "recipe": self.recipe.source,
            "fingerprint": str(self.fingerprint),
            "fingerprint_parts": self.fingerprint.parts,
        }

    @property
    def fingerprint(self) -> Fingerprint:
        """The digest of everything that decides a vector; stores keep `str()` of it beside vectors."""
        return self._native_fingerprint.changed(dimension=self.dimension)

    @cached_property
    def _native_fingerprint(self) -> Fingerprint:
        checkpoint = self._encoder.checkpoint
        return Fingerprint(
            weights=weights_digest(checkpoint),
            tokenizer=tokenizer_digest(checkpoint, None if checkpoint.make_tokenizer is None else self.tokenizer)
            + (" in lower case" if self.recipe.lower else "")
            + (" with special tokens in texts" if self._parse_special else ""),
            pooling=self.recipe.pooling
            + ("" if self.recipe.include_prompt else " without the prompt")
            + (f" with pictures by {self.sight.recipe}" if self.sees else ""),
            dense=tuple(layer.activation for layer in self.recipe.dense),
            prompts=self.recipe.used_prompts(),
            dimension=self._encoder.dimension,
            normalise=self._normalise,
            compute=self._encoder.info["compute"],
            adapter="" if (own := self._adapter(None)) is None else own.digest.hex(),
        )

    def __repr__(self) -> str:
        compute = self._encoder.info["compute"]
        return f"<weft.Embedder {self._located.spec}: {self.dimension} dimensions, {self.max_tokens} tokens, {compute}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickles: what the model is loaded from again, and the fingerprint that it must have then."""
        cache = self._options["cache"]
        if not (cache is None or isinstance(cache, (str, PathLike))):
            self._not_pickled("its cache is an object", 'give the cache by name: "memory", "disk" or a file')
        if len(self.adapters) > (self._own_adapter is not None):
            self._not_pickled("it has adapters", "load the adapters in each process, after the model")
        options = {**self._options, "compute": self._encoder.info["compute"], "truncate": self.truncate}
        set_since = {"_dimensions": self._dimensions, "max_tokens": self.max_tokens, "limits": self.limits}
        return _loaded_again, (type(self), self.lasting_name, options, set_since, str(self.fingerprint))

    def _not_pickled(self, why: str, advice: str) -> None:
        raise UnsupportedError("embed", f"this embedder cannot be pickled, since {why}", advice=advice)

    def token_ids(
        self,
        texts: Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: str | None = None,
    ) -> TokenIds:
        """The ids that `encode` computes with for each text, special tokens and prompt included."""
        items = texts_of(texts)
        mode = self.truncate if truncate is None else check_truncate(truncate)
        found = self._cutter.token_ids(items, self._prompt(prompt_name, prompt), mode)
        return found._replace(ids=self._filled(found.ids))

    def _filled(self, ids: list[np.ndarray]) -> list[np.ndarray]:
        """Sequences as long as the model wants them all, where it does (SigLIP)."""
        length = self.recipe.length
        return ids if length is None else filled(ids, length, self._padding[0], left=self._padding[1])

    def encode_ids(
        self,
        ids: Sequence[np.ndarray],
        *,
        adapter: str | None = None,
        batch_tokens: int = BATCH_TOKENS,
        progress: bool | None = False,
    ) -> np.ndarray:
        """Vectors of sequences of ids, each [n] and used unchanged, float32 [len(ids), dimension]."""
        check_count(batch_tokens, "batch_tokens")
        how = How(adapter=self._adapter(adapter), batch_tokens=batch_tokens, progress=progress)
        sequences = check_ids(ids)
        vectors, whole = self._run(sequences, how)
        if not whole:
            raise EmbedInterrupted(self._embedded(vectors, Sequences.of(sequences[: len(vectors)]), how))
        return vectors

    def _make(self, texts: list[str], how: How) -> Embedded:
        import numpy as np

        sequences = self._cutter.sequences(texts, how.prompt, how.truncate)
        vectors, whole = self._run(self._filled(sequences.ids), how)
        if not whole:
            sequences = sequences.first(int(np.searchsorted(sequences.starts, len(vectors), "right")) - 1)
            vectors = vectors[: len(sequences.ids)]
        made = self._embedded(joined(vectors, sequences, self._normalise), sequences, how)
        if not whole:
            raise EmbedInterrupted(made)
        return made

    @property
    def sees(self) -> bool:
        """Whether the model embeds pictures as well as texts."""
        return sees(self._encoder.checkpoint)

    @cached_property
    def sight(self) -> Sight:
        """The tower of pictures, of a model that sees."""
        return Sight(self._encoder, self._normalise)

    def embed(self, texts: Any, **options: Any) -> Embedded:
        """The vectors of `encode`, row i of item i, with their token counts, what was cut, and the fingerprint.

        Options are those of BaseEmbedder.embed; those of texts do not concern pictures. Of a model with pictures, items
        may be texts and pictures in any order.
        """
        given = [texts] if is_picture(texts) else texts
        if not self.sees or not holds_pictures(given):
            return super().embed(texts, **options)
        return embed_mixed(self, list(given), options)

    def zero_shot(self, pictures: Any, labels: Sequence[str], *, template: str = TEMPLATE) -> np.ndarray:
        """How well each label fits each picture, float32 [len(pictures), len(labels)]; texts are labels in `template`.

        By the model's own measure: CLIP's are shares of one, SigLIP's are probabilities by themselves.
        """
        named = texts_of(labels, "labels")
        if "{}" not in template:
            raise InputError("embed", "must have {} where the label goes", given=template, field="template")
        items = [pictures] if is_picture(pictures) else list(pictures)
        if not items or not named:
            raise InputError("embed", "must be one or more pictures and labels", field="zero_shot")
        if not self.sees or not all(map(is_picture, items)):
            raise InputError("embed", "must be pictures, for a model that sees", field="pictures")
        texts = [template.replace("{}", label) for label in named]
        cosines = self.similarity(self.encode(items), self.encode(texts))
        return probabilities(cosines, *self.sight.scale_and_bias, each=self.recipe.length is not None)

    @cached_property
    def _padding(self) -> tuple[int, bool]:
        return padding_of(self._encoder)

    def _embedded(self, vectors: np.ndarray, sequences: Sequences, how: How) -> Embedded:
        import numpy as np

        starts = sequences.starts
        tokens, windows = sequences.tokens, (starts[1:] - starts[:-1]).astype(np.int32)
        return Embedded(vectors, tokens, sequences.dropped, windows, lambda: self._identity(how))

    def _run(self, sequences: list[np.ndarray], how: How) -> tuple[np.ndarray, bool]:
        """The vectors of all sequences and True; after Ctrl-C those of the first sequences and False."""
        import numpy as np

        vectors = np.empty((len(sequences), self.dimension), np.float32)
        most = how.batch_tokens or self._encoder.backend.batch_tokens
        ranges = list(token_ranges(sequences, self._budget(sequences, most)))
        parts = [sequences[first:last] for first, last in ranges]
        made = self._encoder.vectors_each(parts) if how.adapter is None else self._adapted(parts, how.adapter)
        done = 0
        try:
            for first, last in shown(ranges, len(sequences), how.progress):
                if how.stopped:
                    return vectors[:done], False
                vectors[first:last] = self._shortened(next(made))
                done = last
        except KeyboardInterrupt:
            return vectors[:done], False
        return vectors, True

    def _shortened(self, vectors: np.ndarray) -> np.ndarray:
        """Vectors cut and normalised again: the same as cutting before normalising, which only scales."""
        import numpy as np

        if self.dimension == vectors.shape[1]:
            return vectors
        cut = vectors[:, : self.dimension]
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        return cut / np.maximum(norms, np.float32(1e-12)) if self._normalise else cut

    def _identity(self, how: How) -> str:
        return str(self.fingerprint.changed(adapter=None if how.adapter is None else how.adapter.digest.hex()))

    def _adapter(self, name: str | None) -> Adapter | None:
        name = self._own_adapter if name is None else name
        return None if name is None else self.adapters.get(name)

    def _loaded_own(self, located: Located) -> str | None:
        """The name of the adapter that belongs to the model, for texts that name none."""
        return None if located.adapter is None else self.adapters.load(located.source, located.adapter).name

    def _longest(self) -> int:
        return self.max_tokens

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters that `encode` can use by name: load, replace, blend, unload."""
        return self._encoder.adapters

    def _adapted(self, parts: list[list[np.ndarray]], adapter: Adapter) -> Iterator[np.ndarray]:
        """The vectors of each part, all computed with this version of the adapter."""
        import numpy as np

        held = self.adapters.hold(adapter)
        try:
            for part in parts:
                yield self._encoder.adapted_vectors(part, np.full(len(part), held.index, np.int32))
        finally:
            self.adapters.release(held)

    @property
    def hidden_size(self) -> int:
        """Length of a token's hidden state."""
        return self._encoder.hidden_size

    def hidden_states(self, ids: Sequence[int]) -> np.ndarray:
        """The last hidden state of every token of `ids`, float32 [len(ids), hidden]; no special tokens are added."""
        if self._own_adapter is not None:
            what = "hidden states are computed without adapters, and this model has one of its own"
            raise UnsupportedError("embed", what, advice="merge the adapter into the model")
        return self._encoder.hidden_states(ids)

    def _budget(self, ids: list[np.ndarray], most: int) -> int:
        """Tokens of a step, at most `most`, chosen so that all threads get the same number of steps."""
        lanes = self._encoder.thread_plan.count if self._encoder.backend.lanes else 1
        share = -(-sum(map(len, ids)) // lanes)
        rounds = -(-share // most) or 1
        return min(most, max(LEAST_TOKENS, -(-share // rounds)))

    def _prompt(self, name: str | None, text: str | None) -> str:
        if name == "query" and self._may_want_prompts:
            self._may_want_prompts = False
            tell_of_prompts(self._encoder.checkpoint)
        return super()._prompt(self.recipe.default_prompt if name is None else name, text)


def _loaded_again(
    kind: type[Embedder], model: str, options: dict[str, Any], set_since: dict[str, Any], fingerprint: str
) -> Embedder:
    """The embedder of a pickle."""
    made = kind(model, **options)
    for name, value in set_since.items():
        setattr(made, name, value)
    if str(made.fingerprint) != fingerprint:
        raise FingerprintError(
            "embed",
            f"the files of {model} are not those of the embedder that was pickled: fingerprint {made.fingerprint}",
            given=fingerprint,
            advice="pickle it again",
        )
    return made


def _refuse_precision(precision: Any) -> None:
    """`precision` is an argument of sentence-transformers, and means something else there."""
    if precision is not None:
        raise InputError(
            "embed",
            "is not an argument of weft.Embedder",
            given=precision,
            field="precision",
            advice="compute= sets the arithmetic (f32, f16, bf16, bf16x3, int8, auto), and output_dtype= of encode the "
            "type of the vectors (f32, f16, int8, binary)",
        )
