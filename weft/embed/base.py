"""What every embedder does, wherever its vectors are made: roles, caches, ranking, streams, async forms."""

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
from weft.embed.outputs import check_output, converted
from weft.embed.results import Embedded, EmbedInterrupted, Ranked
from weft.errors import BackendError, InputError, TooLongError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from weft.embed.cache import Cache

T = TypeVar("T")

DOCUMENT_NAMES = ("document", "passage", "corpus")  # what models call it, in sentence-transformers' order
ROLES = ("query", *DOCUMENT_NAMES)  # may be asked for whether or not a model has a prompt for them
# Set when nobody waits for a call any more.
STOP: ContextVar[Event | None] = ContextVar("weft_embed_stop", default=None)


class BaseEmbedder(ABC):
    """`encode`, `encode_query`, `encode_document`, `similarity`, `rank`, their async forms, and streams.

    A subclass says how vectors are made (`_make`), what made them (`fingerprint`), and which prompts there are.
    """

    truncate: str = "error"
    cache: Cache | None = None
    limits: Limits = Limits()
    cuts = True  # whether `truncate` may be something else than "error"

    @property
    @abstractmethod
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    @abstractmethod
    def info(self) -> dict[str, Any]:
        """How vectors are made; "fingerprint" names all of it, "model" is for people."""

    @property
    @abstractmethod
    def fingerprint(self) -> Any:
        """What makes these vectors and no others; `str()` of it is what stores keep beside them."""

    @property
    @abstractmethod
    def prompts(self) -> Mapping[str, str]:
        """What is put before a text, by the name of its role."""

    @abstractmethod
    def _make(self, texts: list[str], how: How) -> Embedded:
        """Vectors float32 of texts; raises EmbedInterrupted with the first of them after Ctrl-C."""

    def _identity(self, how: How) -> str:
        """The fingerprint of what `how` asks for."""
        return str(self.fingerprint)

    def _adapter(self, name: str | None) -> Any:
        """What the adapter of this name is now; an embedder without any refuses a name."""
        if name is not None:
            raise UnsupportedError(f"[embed] {type(self).__name__} has no adapters; leave {name!r} out")
        return None

    def _longest(self) -> int:
        """Where texts are cut: decides a vector when they are."""
        return 0

    def _portion_texts(self) -> int:
        """Of a long call with a cache, so many texts are made and put before the next are begun."""
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
        """What `encode` gives and how it was made: tokens, what was cut, the fingerprint. Row i is text i.

        `prompt` is put before every text; `prompt_name` picks one of the model's own ("query", "document"). `adapter`
        is the name of a loaded one (`adapters.load`). `output_dtype` is f32, f16, int8 or binary (weft/embed/outputs.py
        has the formulas). Ctrl-C raises EmbedInterrupted, a KeyboardInterrupt that carries what is done.
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
            raise BackendError(f"[embed] {len(items)} texts became {len(made)} vectors; none of them can be trusted")
        return converted(made, output_dtype)

    def _made(self, texts: list[str], how: How) -> Embedded:
        if self.cache is None:
            return self._make(texts, how)
        from weft.embed.cache import through_cache

        return through_cache(self, self.cache, texts, how)

    def encode(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """Vectors of `texts`, float32 [len(texts), dimension]; one text alone gives [dimension]. Options: `embed`'s."""
        vectors = self.embed(texts, **options).vectors
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for queries, where it has one."""
        return self.encode(texts, prompt_name="query", **_unnamed(options))

    def encode_document(self, texts: str | Sequence[str], **options: Any) -> np.ndarray:
        """`encode` with the model's prompt for documents, where it has one."""
        return self.encode(texts, prompt_name=self.document_prompt_name, **_unnamed(options))

    @property
    def document_prompt_name(self) -> str:
        """What this model calls the prompt of a document."""
        return next((name for name in DOCUMENT_NAMES if self.prompts.get(name)), "document")

    def encode_stream(self, texts: Iterable[str], **options: Any) -> Iterator[np.ndarray]:
        """A vector [dimension] for each of `texts`, in order: any number of texts in bounded memory.

        Texts are read a thousand at a time (`Limits.texts`, where that is less), and their vectors come together. Where
        reading fails, the vectors of what was read come before the error. EmbedInterrupted holds the vectors that were
        made and not given yet.
        """
        first = 0
        for part in portions(many_texts(texts), self._stream_texts()):
            for vector in self._portion(part, first, options):
                yield vector.copy()  # a row that is kept must not keep its neighbours
            first += len(part)

    def _portion(self, part: list[str], first: int, options: Mapping[str, Any]) -> np.ndarray:
        """The vectors of a part of a stream; errors name a text by its place in the stream."""
        check_texts(part, first)
        try:
            return self.encode(part, **{"progress": False, **options})
        except TooLongError as error:
            raise error.of_text(first + error.index) from None

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
            raise InputError(f"[rank] query is {type(query).__name__}; one string is ranked for")
        check_count(top_k, "top_k")
        items = texts_of(many_texts(documents, "documents"), "documents")
        if not items:
            return []
        scores = self.similarity(self.encode_query(query, **options), self.encode_document(items, **options))[0]
        order = np.argsort(-scores, kind="stable")[:top_k]
        return [Ranked(int(i), float(scores[i])) for i in order]

    async def aembed(self, texts: str | Sequence[str], **options: Any) -> Embedded:
        """`embed` in another thread; the event loop goes on meanwhile. Cancelled, it stops after the step in hand, and
        a cache keeps what was made."""
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
        """`encode_stream` in another thread, a portion at a time. Texts are read there, too, unless they come
        asynchronously."""
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
        """What goes before each text: `text` itself, or the prompt of this name."""
        if text is not None:
            if not isinstance(text, str):
                raise InputError(f"[embed] prompt is {type(text).__name__}; a string is put before each text")
            return text
        if name is not None and not isinstance(name, str):
            raise InputError(
                f"[embed] prompt_name is {type(name).__name__}; prompts have names, and `prompt` is a text"
            )
        if name is not None and name not in self.prompts and name not in ROLES:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(f"[embed] no prompt is called {name!r}; there are {known}, and `prompt` takes any text")
        return self.prompts.get(name or "", "")


def _unnamed(options: dict[str, Any]) -> dict[str, Any]:
    if "prompt_name" in options:
        raise InputError("[embed] the prompt is that of queries and documents here; `encode` takes a prompt_name")
    return options


async def _in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> T:
    import asyncio  # 30 ms that only those who await have to spend

    stop = Event()
    before = STOP.set(stop)
    try:
        return await asyncio.to_thread(function, *arguments, **options)
    except asyncio.CancelledError:
        stop.set()
        raise
    finally:
        STOP.reset(before)
