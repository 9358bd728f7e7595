"""What local and remote embedders have in common: roles, caches, ranking, streams, async forms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from weft.embed.cutting import check_truncate
from weft.embed.inputs import (
    STREAM_TEXTS,
    How,
    Limits,
    check_count,
    check_texts,
    many_texts,
    portions,
    portions_async,
    similarities,
    texts_of,
)
from weft.embed.results import Embedded, EmbedInterrupted, Ranked, check_output, converted
from weft.errors import BackendError, InputError, TooLongError, UnsupportedError
from weft.pictures import is_picture

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.cache import Cache

T = TypeVar("T")
E = TypeVar("E", bound="BaseEmbedder")

DOCUMENT_NAMES = (
    "document",
    "passage",
    "corpus",
)  # models' names for a document's prompt, sentence-transformers' order
ROLES = ("query", *DOCUMENT_NAMES)  # valid prompt names, whether or not a model has a prompt for them
# Set when the caller of an async form was cancelled.
STOP: ContextVar[Event | None] = ContextVar("weft_embed_stop", default=None)


class BaseEmbedder(ABC):
    """`encode`, `encode_query`, `encode_document`, `similarity`, `rank`, their async forms, and streams.

    A subclass computes the vectors (`_make`) and has a `fingerprint` and `prompts`.
    """

    truncate: str = "error"
    cache: Cache | None = None
    limits: Limits = Limits()
    cuts = True  # whether `truncate` may be other than "error"

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    @abstractmethod
    def info(self) -> dict[str, Any]:
        """How vectors are made; "fingerprint" is the digest of all of it, "model" a name for people."""

    @property
    @abstractmethod
    def fingerprint(self) -> Any:
        """The digest of everything that decides a vector; stores keep `str()` of it beside vectors."""

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """The text put before an input, by role."""

    @abstractmethod
    def _make(self, texts: list[str], how: How) -> Embedded:
        """Vectors of texts, float32; after Ctrl-C raises EmbedInterrupted with those of the first texts."""

    def __copy__(self: E) -> E:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)  # weights and connections are shared
        return made

    def __deepcopy__(self: E, memo: dict[int, Any]) -> E:
        return self.__copy__()

    def _identity(self, how: How) -> str:
        """The fingerprint of vectors made as `how` says."""
        return str(self.fingerprint)

    def _adapter(self, name: str | None) -> Any:
        """The adapter loaded under this name; an embedder without adapters refuses every name."""
        if name is not None:
            what = f"cannot be used, since a {type(self).__name__} has no adapters"
            raise UnsupportedError("embed", what, given=name, field="adapter", advice="leave it out")
        return None

    def _longest(self) -> int:
        """The length in tokens to which texts are cut; part of a cache key."""
        return 0

    def _portion_texts(self) -> int:
        """How many texts are embedded and stored before the next are begun, in a call with a cache."""
        return STREAM_TEXTS

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        truncate: str | None = None,
        adapter: str | None = None,
        output_dtype: str = "f32",
        batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Embedded:
        """The vectors of `encode`, row i of text i, with their token counts, what was cut, and the fingerprint.

        `prompt` is put before every text; `prompt_name` picks one of the model's own ("query", "document"). `adapter`
        is the name of a loaded one (`adapters.load`). `output_dtype` is f32, f16, int8 or binary (weft/embed/results.py
        has the formulas). Ctrl-C raises EmbedInterrupted, a KeyboardInterrupt with the vectors computed so far.
        """
        items = texts_of(texts)
        self.limits.check(items)
        check_output(output_dtype)
        check_count(batch_tokens, "batch_tokens")
        mode = self.truncate if truncate is None else check_truncate(truncate)
        before = self._prompt(prompt_name, prompt)
        how = How(before, mode, self._adapter(adapter), batch_tokens, progress, STOP.get())
        try:
            made = self._made(items, how)
        except EmbedInterrupted as error:
            raise EmbedInterrupted(converted(error.done, output_dtype)) from None
        if len(made) != len(items):
            raise BackendError(
                "embed", f"{len(items)} texts gave {len(made)} vectors, so none can be assigned to a text"
            )
        return converted(made, output_dtype)

    def _made(self, texts: list[str], how: How) -> Embedded:
        if self.cache is None:
            return self._make(texts, how)
        from weft.embed.cache import through_cache

        return through_cache(self, self.cache, texts, how)

    def encode(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of `texts`, float32 [len(texts), dimension]; one text alone gives [dimension]. Options: `embed`'s."""
        vectors = self.embed(texts, **options).vectors
        return vectors[0] if isinstance(texts, str) or is_picture(texts) else vectors

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for queries, if it has one."""
        return self.encode(texts, prompt_name="query", **_unnamed(options))

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for documents, if it has one."""
        return self.encode(texts, prompt_name=self.document_prompt_name, **_unnamed(options))

    @property
    def document_prompt_name(self) -> str:
        """This model's name for the prompt of documents."""
        return next((name for name in DOCUMENT_NAMES if self.prompts.get(name)), "document")

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[np.ndarray]:
        """A vector [dimension] for each of `texts`, in order: any number of texts in bounded memory.

        Texts are read a thousand at a time (or `Limits.texts`, if less), and their vectors are yielded together. If
        reading fails, the vectors of texts read before come first, then the error. EmbedInterrupted holds the vectors
        that were computed and not yielded yet.
        """
        first = 0
        for part in portions(many_texts(texts), self._stream_texts()):
            for vector in self._portion(part, first, options):
                yield vector.copy()  # a view would keep the whole array alive
            first += len(part)

    def _portion(self, part: list[str], first: int, options: Mapping[str, Any]) -> np.ndarray:
        """The vectors of a part of a stream; an error's `index` counts from the start of the stream."""
        check_texts(part, first)
        try:
            return self.encode(part, **{"progress": False, **options})
        except TooLongError as error:
            raise error.but(index=first + error.index) from None

    def similarity(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Similarity of each vector of `a` to each of `b` by the model's own measure, float32 [len(a), len(b)].

        Bits (`output_dtype="binary"`) count as 1 and -1.
        """
        return similarities(a, b, self.similarity_name, lambda: self.dimension)

    @property
    def similarity_name(self) -> str:
        """The model's own measure: cosine, dot, euclidean or manhattan."""
        return "cosine"

    def rank(self, query: str, documents: Sequence[str], top_k: int | None = None, **options: Any) -> list[Ranked]:
        """The documents nearest to the query, best first, all or `top_k` of them; equal ones in the order given."""
        import numpy as np

        if not isinstance(query, str):
            raise InputError("rank", "must be one string", given=query, field="query")
        check_count(top_k, "top_k")
        items = texts_of(many_texts(documents, "documents"), "documents")
        if not items:
            return []
        scores = self.similarity(self.encode_query(query, **options), self.encode_document(items, **options))[0]
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(i), float(scores[i])) for i in order]

    async def aembed(self, texts: str | Sequence[str], **options: Any) -> Embedded:
        """`embed` in another thread. If it is cancelled, it stops after the current step; a cache keeps the vectors
        computed until then."""
        return await _in_thread(self.embed, texts, **options)

    async def aencode(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` in another thread."""
        return await _in_thread(self.encode, texts, **options)

    async def aencode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode_query` in another thread."""
        return await _in_thread(self.encode_query, texts, **options)

    async def aencode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode_document` in another thread."""
        return await _in_thread(self.encode_document, texts, **options)

    async def arank(
        self, query: str, documents: Sequence[str], top_k: int | None = None, **options: Any
    ) -> list[Ranked]:
        """`rank` in another thread."""
        return await _in_thread(self.rank, query, documents, top_k, **options)

    async def aencode_stream(
        self, texts: Iterable[str] | AsyncIterable[str], **options: Any
    ) -> AsyncIterator[np.ndarray]:
        """`encode_stream` in another thread, a portion at a time. Texts are read in that thread too, unless `texts` is
        an async iterable."""
        first = 0
        async for part in self._portions(texts):
            for vector in await _in_thread(self._portion, part, first, options):
                yield vector.copy()
            first += len(part)

    async def _portions(self, texts: Iterable[str] | AsyncIterable[str]) -> AsyncIterator[list[str]]:
        count = self._stream_texts()
        if isinstance(texts, AsyncIterable):
            async for part in portions_async(texts, count):
                yield part
            return
        parts = portions(many_texts(texts), count)
        while part := await _in_thread(next, parts, []):
            yield part

    def _stream_texts(self) -> int:
        return min(STREAM_TEXTS, self.limits.texts or STREAM_TEXTS)

    def _prompt(self, name: str | None, text: str | None) -> str:
        """The text put before each input: `text` itself, or the prompt of this name."""
        if text is not None:
            if not isinstance(text, str):
                raise InputError("embed", "must be a string", given=text, field="prompt")
            return text
        if name is not None and not isinstance(name, str):
            advice = "give the name of a prompt, or any text as prompt="
            raise InputError("embed", "must be a string", given=name, field="prompt_name", advice=advice)
        if name is not None and name not in self.prompts and name not in ROLES:
            known = ", ".join(map(repr, self.prompts)) or "none"
            what = f"must be one of the model's prompts ({known})"
            raise InputError("embed", what, given=name, field="prompt_name", advice="or give any text as prompt=")
        return self.prompts.get(name or "", "")


def _unnamed(options: dict[str, Any]) -> dict[str, Any]:
    if "prompt_name" in options:
        what = "cannot be set here: encode_query and encode_document choose the prompt"
        raise InputError("embed", what, field="prompt_name", advice="use encode")
    return options


async def _in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    import asyncio  # here, because importing it takes 30 ms

    stop = Event()
    before = STOP.set(stop)
    try:
        return await asyncio.to_thread(function, *arguments, **options)
    except asyncio.CancelledError:
        stop.set()
        raise
    finally:
        STOP.reset(before)
